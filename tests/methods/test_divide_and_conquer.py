"""Divide and conquer: which learner trains on which items, and that no other learner changes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nearkin.api import make_settings
from nearkin.errors import Interrupted
from nearkin.methods import Batch, Phase, make_method
from nearkin.methods.divide_and_conquer import DivideAndConquer
from nearkin.space import Space
from nearkin.training import Run
from nearkin.training.loop import Trainer, make_trainer


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 10)
    centres = rng.normal(size=(20, 6)) * 2
    file = tmp_path_factory.mktemp("vectors") / "x.npz"
    np.savez(file, vectors=centres[labels] + rng.normal(size=(200, 6)), labels=labels)
    return file


def trainer(vectors: Path, folder: Path, **changes: Any) -> Trainer:
    usual = {"epochs": 4, "batch_size": 16, "dim": 8, "learners": 4, "backbone": "mlp", "evaluate_every": 0}
    return make_trainer(make_settings(vectors, "divide-and-conquer", usual | changes), Run(folder))


def method_of(trainer: Trainer) -> DivideAndConquer:
    assert isinstance(trainer.method, DivideAndConquer)
    return trainer.method


def parts_of(trainer: Trainer) -> dict[str, list[Tensor]]:
    """All parameters and their optimiser state, by owner."""
    method, head = method_of(trainer), trainer.model.head
    found = {f"learner {k}": [*head.project[k].parameters()] for k in range(4)}
    for k in range(4):
        found[f"learner {k}"] += method.learner_methods[k].loss.parameters()
    found["joint loss"] = list(method.joint_method.loss.parameters())
    found["backbone"] = list(trainer.model.backbone.parameters())
    states = trainer.optimizer.state
    return {
        name: [
            tensor.detach().clone()
            for parameter in parameters
            for tensor in (parameter, *(v for v in states[parameter].values() if isinstance(v, Tensor)))
        ]
        for name, parameters in found.items()
    }


@pytest.mark.parametrize("wraps", ["margin", "proxy-nca"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "rmsprop"])
def test_a_step_changes_only_the_backbone_and_one_learner(
    vectors: Path, tmp_path: Path, wraps: str, optimizer: str
) -> None:
    run = trainer(vectors, tmp_path / "run", wraps=wraps, optimizer=optimizer, weight_decay=0.1, finetune=0.25)
    take_step, seen = run._step, set()

    def checked(batch: Batch) -> None:
        before = parts_of(run)
        take_step(batch)
        after = parts_of(run)
        moved = {
            name
            for name in before
            if len(before[name]) != len(after[name])
            or any(not torch.equal(a, b) for a, b in zip(before[name], after[name], strict=True))
        }
        if run.position.epoch < 3:
            learner = method_of(run).batch_sampler.part_of(batch.step)
            assert moved == {"backbone", f"learner {learner}"}
            items = set(method_of(run).batch_sampler.parts[learner].tolist())
            assert set(batch.items.tolist()) <= items
        else:  # the joint epoch: all slices, and the loss of the whole embedding; the learners' own losses rest
            assert {"backbone", "joint loss", *(f"learner {k}" for k in range(4))} == moved
        seen.add(tuple(sorted(moved)))

    run._step = checked  # type: ignore[method-assign]
    run.train()
    assert len(seen) == 5  # four learners, and all together


def test_a_learner_sees_only_its_own_slice(vectors: Path, tmp_path: Path) -> None:
    run = trainer(vectors, tmp_path / "run", wraps="triplet")
    inputs = torch.randn(5, 6)
    run.learner.eval()
    whole = run.model.head.project
    features = run.model.features(inputs)
    slices = [run._embed(inputs, learner) for learner in range(4)]
    assert [tuple(part.shape) for part in slices] == [(5, 2)] * 4
    for k, part in enumerate(slices):
        expected = torch.nn.functional.normalize(whole[k](features), dim=1)
        torch.testing.assert_close(part, expected)
    joined = torch.cat([project(features) for project in whole], dim=1)
    torch.testing.assert_close(run._embed(inputs), torch.nn.functional.normalize(joined, dim=1))


def divided(points: Tensor, labels: Tensor, batch_size: int = 4, **changes: Any) -> DivideAndConquer:
    method = make_method("divide-and-conquer", **({"wraps": "triplet:per_class=2"} | changes))
    assert isinstance(method, DivideAndConquer)
    method.sampler(labels.numpy(), batch_size, seed=0)
    method.on_refresh(Space.of(points, labels))
    return method


CORNERS = torch.tensor([[0.0, 0.0], [0.0, 50.0], [50.0, 0.0], [50.0, 50.0]])
LABELS = torch.arange(64) % 16
BLOBS = CORNERS[LABELS % 4] + torch.randn(64, 2, generator=torch.Generator().manual_seed(0))


def test_items_are_divided_by_their_whole_embedding() -> None:
    method = divided(BLOBS, LABELS)
    groups = method.cluster_of
    assert groups is not None
    assert len({(int(a), int(b)) for a, b in zip(groups, LABELS % 4, strict=True)}) == 4
    for learner, items in enumerate(method.batch_sampler.parts):
        assert (groups[torch.from_numpy(items)] == learner).all()


def test_learners_keep_their_items_when_clusters_are_found_in_another_order() -> None:
    method = divided(BLOBS, LABELS)
    before = method.cluster_of
    for seed in range(1, 6):  # k-means numbers its clusters differently
        method.batch_sampler.seed = seed
        method.on_refresh(Space.of(BLOBS, LABELS))
        assert method.cluster_of is not None and torch.equal(method.cluster_of, before)


def test_a_cluster_too_small_for_a_batch_borrows_the_nearest_items() -> None:
    lonely = torch.tensor([[0.0, 900.0]])
    points, labels = torch.cat([BLOBS[:-1], lonely]), LABELS
    method = divided(points, labels, learners=5)
    groups = method.cluster_of
    assert groups is not None
    (small,) = [k for k in range(5) if (groups == k).sum() == 1]
    items = method.batch_sampler.parts[small]
    assert 63 in items
    assert method.batch_sampler.can_fill_a_batch(items)
    distance = (points - lonely).square().sum(1)
    nearest = distance.argsort()[: len(items)]
    assert set(items.tolist()) == set(nearest.tolist())
    assert not method.batch_sampler.can_fill_a_batch(nearest[:-1].numpy())  # it borrows no more than it needs
    assert method.record()["borrowed_share"] == round((1 - 1 / len(items)) / 5, 4)


def blobs_of_classes(per_class: int, classes: int = 40) -> tuple[Tensor, Tensor]:
    """Classes in four corners."""
    labels = torch.arange(classes).repeat_interleave(per_class)
    return CORNERS[labels % 4] + torch.randn(len(labels), 2, generator=torch.Generator().manual_seed(0)), labels


@pytest.mark.parametrize("wraps", ["triplet:per_class=2", "rank:per_class=2", "facility-location:class_ratio=0.5"])
def test_a_cluster_with_few_classes_gives_more_items_of_each_instead_of_borrowing(wraps: str) -> None:
    points, labels = blobs_of_classes(per_class=20)  # ten classes in a cluster; a batch would have sixteen
    method = divided(points, labels, batch_size=32, wraps=wraps)
    assert method.record() == {"borrowed_share": 0.0}
    for batch in method.batch_sampler:
        assert len(set((labels[batch] % 4).tolist())) == 1  # all from one cluster
        assert len(set(batch)) == 32


def test_a_cluster_smaller_than_a_batch_repeats_its_items_instead_of_borrowing() -> None:
    points, labels = blobs_of_classes(per_class=2)
    method = divided(points, labels, batch_size=32, wraps="triplet:per_class=2")
    assert method.record() == {"borrowed_share": 0.0}
    for batch in method.batch_sampler:
        assert len(batch) == 32 and len(set((labels[batch] % 4).tolist())) == 1
        assert max(batch.count(item) for item in batch) == 2


def test_a_large_cluster_that_borrows_keeps_its_own_items() -> None:
    """A third of the items are the only ones of their class, and form a cluster far from the others."""
    labels = torch.cat([torch.arange(40), 40 + torch.arange(80) // 4])
    points = torch.cat([torch.zeros(40, 2), torch.full((80, 2), 9.0)]) + torch.randn(
        120, 2, generator=torch.Generator().manual_seed(0)
    )
    method = divided(points, labels, learners=2)
    groups = method.cluster_of
    assert groups is not None
    for learner, items in enumerate(method.batch_sampler.parts):
        own = set((groups == learner).nonzero().squeeze(1).tolist())
        assert own <= set(items.tolist())
        assert len(items) > 40 if 0 in own else set(items.tolist()) == own


@pytest.mark.parametrize("freeze_backbone", [False, True])
@pytest.mark.parametrize(("cluster_by", "width"), [("embedding", 8), ("features", 512)])
def test_k_means_sees_the_embedding_or_the_features(
    vectors: Path, tmp_path: Path, cluster_by: str, width: int, freeze_backbone: bool
) -> None:
    run = trainer(vectors, tmp_path / "run", cluster_by=cluster_by, freeze_backbone=freeze_backbone)
    found: list[Tensor] = []
    run.method.on_refresh = lambda space: found.append(space.embeddings)  # type: ignore[method-assign]
    run.refresh_seconds = 0.0
    run._refresh()
    (points,) = found
    assert points.shape == (len(run.train_set), width)
    embeddings = run._space(run.train_set).embeddings
    if cluster_by == "features":
        points = run.model.head.eval()(points)
    torch.testing.assert_close(points, embeddings)


def test_features_are_clustered_by_their_direction() -> None:
    """In four directions, at any length."""
    directions = nn.functional.normalize(torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]))
    points = directions[LABELS % 4] * (1 + 99 * torch.rand(64, 1, generator=torch.Generator().manual_seed(0)))
    groups = divided(points, LABELS, cluster_by="features").cluster_of
    assert groups is not None
    assert len({(int(a), int(b)) for a, b in zip(groups, LABELS % 4, strict=True)}) == 4


def test_random_parts_are_even() -> None:
    method = divided(BLOBS, LABELS, partition="random")
    before = method.cluster_of
    assert before is not None and torch.bincount(before).tolist() == [16] * 4


def test_parts_by_labels_contain_whole_classes() -> None:
    method = divided(BLOBS, LABELS, partition="labels")
    before = method.cluster_of
    assert before is not None
    assert len({(int(a), int(b)) for a, b in zip(before, LABELS, strict=True)}) == 16
    assert len(set(before.tolist())) == 4


def test_without_split_embedding_clusters_only_choose_the_batches(vectors: Path, tmp_path: Path) -> None:
    run = trainer(vectors, tmp_path / "run", split_embedding=False, finetune=0.0)
    assert len(run.model.head.project) == 1
    assert sum(1 for _ in run.method.loss.parameters()) == 1  # one β
    run.train()
    assert len(method_of(run).batch_sampler.parts) == 4


@pytest.mark.parametrize(
    ("epochs", "finetune", "first"),
    [(20, 0.1, 18), (5, 0.1, 4), (3, 0.0, 3), (1, 0.1, 1), (4, 0.25, 3), (2, 1.0, 0)],
)
def test_the_last_epochs_are_joint(vectors: Path, tmp_path: Path, epochs: int, finetune: float, first: int) -> None:
    method = method_of(trainer(vectors, tmp_path / "run", epochs=epochs, finetune=finetune))
    for epoch in range(epochs):
        method.start_epoch(epoch)
        assert method.joint == (epoch >= first)
        assert (method.refresh_every is None) == method.joint


def test_the_joint_epochs_have_a_schedule_of_their_own(vectors: Path, tmp_path: Path) -> None:
    changes = {"epochs": 5, "finetune": 0.4, "schedule": "cosine", "learning_rate": 0.01, "finetune_rate_factor": 0.5}
    run, rates = trainer(vectors, tmp_path / "run", **changes), []
    run.optimizer.register_step_post_hook(lambda *_: rates.append(run.optimizer.param_groups[0]["lr"]))
    run.train()
    steps = len(run.sampler)
    slices, joint = rates[: 3 * steps], rates[3 * steps :]
    assert slices == sorted(slices, reverse=True) and joint == sorted(joint, reverse=True)
    assert (slices[0], joint[0]) == (0.01, 0.005)
    assert max(slices[-1], joint[-1]) < 0.001


@pytest.mark.parametrize(("wraps", "start"), [("margin", "mean"), ("proxy-nca", "concatenated")])
def test_the_joint_loss_starts_from_the_learners(vectors: Path, tmp_path: Path, wraps: str, start: str) -> None:
    run, seen = trainer(vectors, tmp_path / "run", wraps=wraps, finetune=0.5, learning_rate=0.01), []
    take_step, method = run._step, method_of(run)

    def noted(batch: Batch) -> None:
        if method.joint:
            seen.append([next(each.parameters()).detach().clone() for each in method.loss])
        take_step(batch)

    run._step = noted  # type: ignore[method-assign]
    run.train()
    *learners, joint = seen[0]
    assert len({tuple(each.flatten().tolist()) for each in learners}) == 4  # each has learnt something else
    expected = torch.stack(learners).mean(0) if start == "mean" else torch.cat(learners, dim=1) / 2
    torch.testing.assert_close(joint, expected)
    assert len({tuple(joint.flatten().tolist()) for *_, joint in seen}) == len(seen)  # and it learns from there


@pytest.mark.parametrize("from_older_checkpoint", [False, True])
def test_the_losses_are_joined_when_joint_epochs_begin(
    vectors: Path, tmp_path: Path, from_older_checkpoint: bool
) -> None:
    """Also without a checkpoint, which joins them; older versions did not join them for one."""
    method = method_of(trainer(vectors, tmp_path / "run", wraps="margin", finetune=0.5))
    betas = [next(each.loss.parameters()) for each in (*method.learner_methods, method.joint_method)]
    with torch.no_grad():
        for learner, beta in enumerate(betas):
            beta.fill_(learner)
    if from_older_checkpoint:
        loss = {name: tensor.clone() for name, tensor in method.loss.state_dict().items()}
        method.load_state_dict(method.state_dict() | {"loss": loss, "joined_at": None})
    assert betas[-1].item() == 4
    method.start_epoch(method.first_joint_epoch)
    assert betas[-1].item() == 1.5


@pytest.mark.parametrize(
    ("partition", "every", "refreshed"),
    [("k-means", 2, [0, 2, 4]), ("k-means", 3, [0, 3]), ("random", 2, [0]), ("labels", 1, [0])],
)
def test_the_space_is_refreshed_every_few_epochs(
    vectors: Path, tmp_path: Path, partition: str, every: int, refreshed: list[int]
) -> None:
    run = trainer(vectors, tmp_path / "run", epochs=6, recluster_epochs=every, partition=partition, finetune=0.0)
    method, epochs = method_of(run), []
    on_refresh = method.on_refresh

    def noted(space: Space) -> None:
        epochs.append(run.position.epoch)
        on_refresh(space)

    method.on_refresh = noted  # type: ignore[method-assign]
    run.train()
    assert epochs == refreshed


def test_the_wrapped_method_decides_what_is_needed() -> None:
    proxies, spectral = (make_method("divide-and-conquer", wraps=name) for name in ("proxy-nca", "spectral"))
    assert (proxies.needs_pairs, proxies.usual_batch, proxies.normalize) == (False, 128, "always")
    assert (spectral.needs_pairs, spectral.usual_batch, spectral.normalize) == (True, 1260, "test")
    scores = spectral.read_out(Space.of(BLOBS, LABELS), None, clustering=None)
    assert "with_sc_map@r" in scores


def test_one_learner_is_the_wrapped_method_itself(vectors: Path, tmp_path: Path) -> None:
    """With K = 1 there is one slice, one cluster and one loss."""
    run = trainer(vectors, tmp_path / "run", learners=1)
    run.train()
    assert len(run.model.head.project) == 1
    (items,) = method_of(run).batch_sampler.parts
    assert len(items) == len(run.train_set)


def around_softmax() -> DivideAndConquer:
    method = make_method("divide-and-conquer", wraps="softmax", learners=2, finetune=0.0)
    assert isinstance(method, DivideAndConquer)
    method.prepare(classes=3, dim=4, epochs=5)
    method.sampler(np.arange(60) % 3, batch_size=6, seed=0)
    return method


def test_before_joint_epochs_the_read_out_has_the_learners_classifiers() -> None:
    method = around_softmax()
    learnt = [learner.loss.classifier.weight.detach() for learner in method.learner_methods]
    classifier = torch.cat(learnt, dim=1)
    points = torch.randn(200, 4)
    space = Space.of(points, (points @ classifier.T).argmax(1))
    assert method.read_out(space, space)["classifier_error"] == 0
    torch.testing.assert_close(method.buffers["classifier"], classifier / 2**0.5)


def test_a_classifier_that_was_trained_jointly_or_loaded_is_not_that_of_the_learners_again() -> None:
    method, resumed, kept = around_softmax(), around_softmax(), torch.randn(3, 4)
    with torch.no_grad():
        method.joint_method.loss.classifier.weight.copy_(method.buffers["classifier"] + 1)  # a joint step
    trained = method.buffers["classifier"].clone()
    resumed.load_state_dict(method.state_dict())
    torch.testing.assert_close(resumed.buffers["classifier"], trained)
    method.buffers = {"classifier": kept}  # of an earlier epoch, or of another run
    torch.testing.assert_close(method.buffers["classifier"], kept)


def test_a_run_stopped_in_a_joint_epoch_and_extended_ends_that_epoch_jointly(vectors: Path, tmp_path: Path) -> None:
    stopped = trainer(vectors, tmp_path / "run", epochs=3)
    take_step = stopped._step

    def interrupted(batch: Batch) -> None:
        take_step(batch)
        if stopped.position.epoch == 2:
            os.kill(os.getpid(), signal.SIGINT)

    stopped._step = interrupted  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        stopped.train()
    begun = Run.open(tmp_path / "run")
    changes = {"epochs": 6, "checkpoint_steps": 1}
    extended = make_trainer(begun.settings().changed(training=changes), begun, resumed=True)
    take_next_step, last = extended._step, parts_of(extended)

    def checked(batch: Batch) -> None:
        before = parts_of(extended)
        take_next_step(batch)
        if extended.position.epoch == 2:
            after = parts_of(extended)
            learners = [name for name in before if name.startswith("learner")]
            assert all(not torch.equal(before[name][0], after[name][0]) for name in learners)  # their slices
            assert torch.equal(before["joint loss"][0], last["joint loss"][0])  # no checkpoint has changed it
            assert not torch.equal(before["joint loss"][0], after["joint loss"][0])
            last.update(after)

    extended._step = checked  # type: ignore[method-assign]
    extended.train()


@pytest.mark.parametrize("partition", ["k-means", "random"])
def test_a_run_that_trains_on_after_joint_epochs_divides_the_items_again(
    vectors: Path, tmp_path: Path, partition: str
) -> None:
    trainer(vectors, tmp_path / "run", epochs=3, partition=partition).train()
    begun = Run.open(tmp_path / "run")
    run = make_trainer(begun.settings().changed(training={"epochs": 6}), begun, resumed=True)
    take_step, parts = run._step, {}

    def noted(batch: Batch) -> None:
        parts[run.position.epoch] = len(method_of(run).batch_sampler.parts)
        take_step(batch)

    run._step = noted  # type: ignore[method-assign]
    run.train()
    assert parts == {3: 4, 4: 4, 5: 1}


def test_without_epochs_before_them_joint_epochs_have_the_full_learning_rate() -> None:
    method = make_method("divide-and-conquer", finetune=1.0)
    method.prepare(classes=4, dim=8, epochs=5)
    assert method.phases == (Phase(0),)
