"""The training of Magnet: the cluster index, the sampling, the running variance, the read-out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from reference.samplers import neighbourhood
from torch import Tensor

from nearkin.api import make_settings
from nearkin.losses import magnet_loss
from nearkin.methods import Batch, make_method
from nearkin.methods.magnet import ALPHA_STEP, BATCH_WEIGHT, Magnet
from nearkin.space import Space
from nearkin.training import Run
from nearkin.training.loop import make_trainer

LABELS = np.repeat([4, 7, 9], [24, 24, 6])


def space() -> Space:
    """Two clouds for each class, 10 apart; the last class is small."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 2, 5)) * 10
    points = centres[np.searchsorted([4, 7, 9], LABELS), np.arange(len(LABELS)) % 2]
    return Space.of(torch.from_numpy(points + rng.normal(size=points.shape)), torch.from_numpy(LABELS))


def magnet(**changes: object) -> Magnet:
    method = make_method("magnet", **changes)
    assert isinstance(method, Magnet)
    method.sampler(LABELS, 12, seed=0)
    method.on_refresh(space())
    return method


def class_of(method: Magnet) -> list[int]:
    """The class of each cluster, which all its items have."""
    cluster_of = method.batch_sampler.index.cluster_of
    classes = [set(LABELS[cluster_of == cluster].tolist()) for cluster in range(cluster_of.max() + 1)]
    return [only for (only,) in classes]


def test_the_index_holds_the_clusters_of_every_class_and_their_nearest_impostors() -> None:
    method = magnet(clusters=2, per_cluster=3)
    index = method.batch_sampler.index
    assert class_of(method) == [4, 4, 7, 7, 9, 9]
    centroids = np.stack([space().embeddings[index.cluster_of == cluster].mean(0).numpy() for cluster in range(6)])
    for cluster in range(6):
        expected = neighbourhood(cluster, centroids, np.array(class_of(method)), clusters_in_batch=4)
        np.testing.assert_array_equal(method.batch_sampler.neighbourhood(cluster), expected)
        assert len(set(np.flatnonzero(index.cluster_of == cluster) % 2)) == 1  # one of the two clouds


def test_small_classes_get_fewer_clusters() -> None:
    assert class_of(magnet(clusters=4, per_cluster=4)) == [4] * 4 + [7] * 4 + [9]


def test_the_number_of_clusters_can_be_chosen_for_each_class() -> None:
    method = magnet(clusters=5, per_cluster=3, choose_clusters=True)
    assert class_of(method) == [4, 4, 7, 7, 9, 9]  # two clouds each, and two clusters were found


def stepped(method: Magnet, steps: int = 1) -> tuple[list[Batch], list[Tensor], list[Tensor]]:
    """Takes steps with random embeddings."""
    generator = torch.Generator().manual_seed(0)
    embedded = [torch.randn(12, 5, generator=generator, requires_grad=True) for _ in range(steps)]
    batches = []
    losses = []
    for step, (items, embeddings) in enumerate(zip(method.batch_sampler, embedded, strict=False)):
        batch = Batch(torch.zeros(12, 1), torch.from_numpy(LABELS[items]), torch.tensor(items), step)
        batches.append(batch)
        losses.append(method.step(lambda inputs, learner=None, e=embeddings: e, batch))  # type: ignore[misc] # noqa: ARG005
    return batches, embedded, losses


def test_a_step_computes_the_loss_of_its_clusters_and_records_it_for_sampling() -> None:
    method = magnet(per_cluster=3)
    (batch,), (embeddings,), (loss,) = stepped(method)
    clusters = torch.from_numpy(method.batch_sampler.index.cluster_of[batch.items.numpy()])
    expected = magnet_loss(embeddings, batch.labels, clusters, reduction="none", alpha=8.0, scaling=15.0)
    assert loss.item() == pytest.approx(expected.mean().item())
    assert loss.requires_grad
    method.batch_sampler.refresh(method.batch_sampler.index)  # all losses count
    known = method.batch_sampler.losses.settled
    np.testing.assert_allclose(known[batch.items.numpy()], expected.detach().numpy(), rtol=1e-6)
    assert np.isnan(np.delete(known, batch.items.numpy())).all()


def test_impostors_can_come_from_the_whole_index() -> None:
    method = magnet(per_cluster=6, candidates="index", hinge="soft", variance="eq5", alpha=1.0, scaling=1.0)
    (batch,), (embeddings,), (loss,) = stepped(method)
    cluster_of = method.batch_sampler.index.cluster_of
    clusters = torch.from_numpy(cluster_of[batch.items.numpy()])
    assert set(clusters.tolist()) < set(cluster_of)
    centroids = torch.stack([space().embeddings[cluster_of == cluster].mean(0) for cluster in range(5)])
    form = {"variance": "eq5", "hinge": "soft", "centroids": centroids, "centroid_labels": class_of(method)}
    assert loss.item() == pytest.approx(magnet_loss(embeddings, batch.labels, clusters, **form).item())  # type: ignore[arg-type]


def test_classes_are_numbered_in_the_index_as_in_the_batches(vectors: str, tmp_path: Path) -> None:
    """Also if the training split does not have every class."""
    changes = {"candidates": "index", "batch_size": 8, "epochs": 1, "evaluate_every": 0, "dim": 4, "backbone": "mlp"}
    run = make_trainer(make_settings(vectors, "magnet", changes), Run(tmp_path / "run"))
    assert len(run.train_set.present_classes) <= run.train_set.labels.max()
    run.train()
    assert isinstance(run.method, Magnet)
    of_centroids = run.method._impostors["centroid_labels"].numpy()
    np.testing.assert_array_equal(of_centroids[run.method.batch_sampler.index.cluster_of], run.labels)


def test_alpha_grows_while_too_few_items_have_a_loss() -> None:
    method = magnet(per_cluster=3, alpha=-100.0, active_share=0.5)
    _, _, losses = stepped(method, steps=3)
    assert sum(losses).item() == 0.0
    assert method.buffers["alpha"] == pytest.approx(-100 + 3 * 0.5 * ALPHA_STEP)
    method.buffers = {"alpha": 100.0}  # every item has a loss
    stepped(method)
    assert method.buffers["alpha"] == pytest.approx(100 - 0.5 * ALPHA_STEP)
    method = magnet(per_cluster=3, alpha=100.0, active_share=0.5)
    stepped(method)
    assert method.buffers["alpha"] == 100.0  # not below the setting


def test_the_variance_is_a_running_average_of_the_batches() -> None:
    method = magnet(per_cluster=3)
    batches, embedded, _ = stepped(method, steps=3)
    average = 0.0
    for step, (batch, embeddings) in enumerate(zip(batches, embedded, strict=True)):
        clusters = method.batch_sampler.index.cluster_of[batch.items.numpy()]
        points = embeddings.detach().double().numpy()
        squares = sum(
            np.square(points[clusters == cluster] - points[clusters == cluster].mean(0)).sum()
            for cluster in set(clusters)
        )
        average = BATCH_WEIGHT * squares / 11 + (1 - BATCH_WEIGHT) * average if step else squares / 11
    assert method.buffers["variance"].item() == pytest.approx(average)


def test_its_state_survives_an_interruption() -> None:
    method = magnet(per_cluster=3, candidates="index", active_share=0.9)
    stepped(method, steps=3)
    other = make_method("magnet", per_cluster=3, candidates="index", active_share=0.9)
    assert isinstance(other, Magnet)
    other.sampler(LABELS, 12, seed=0)
    other.load_state_dict(method.state_dict())
    other.batch_sampler.load_state_dict(method.batch_sampler.state_dict())
    assert other.buffers == method.buffers
    assert other._impostors.keys() == {"centroids", "centroid_labels"}
    assert all(torch.equal(column, method._impostors[name]) for name, column in other._impostors.items())
    np.testing.assert_array_equal(other.batch_sampler.index.cluster_of, method.batch_sampler.index.cluster_of)
    np.testing.assert_array_equal(other.batch_sampler.index.impostors, method.batch_sampler.index.impostors)
    known, expected = (each.batch_sampler.losses.known_at(99) for each in (other, method))
    assert known.means.total == expected.means.total > 0


def test_the_running_variance_decides_how_far_clusters_vote() -> None:
    """One cluster of class 4 nearby, three of class 7 a little farther: a wide σ lets the three win."""
    near, far = torch.tensor([[1.0, 0.0]]), torch.tensor([[-1.2, 0.0], [0.0, 1.2], [0.0, -1.2]])
    known = Space.of(torch.cat([near.repeat(6, 1), far.repeat_interleave(2, 0)]), torch.tensor([4] * 6 + [7] * 6))
    query = Space.of(torch.zeros(1, 2), torch.tensor([4]))
    method = make_method("magnet", per_cluster=2, clusters=3)
    errors = []
    for variance in (0.01, 100.0):
        method.buffers = {"variance": torch.tensor(variance)}
        errors.append(method.read_out(query, known, clustering=None)["nearest_cluster_error"])
    assert errors == [0.0, 1.0]


def test_more_clusters_than_items_are_allowed() -> None:
    assert class_of(magnet(clusters=10**9, per_cluster=3, choose_clusters=True)) == [4, 4, 7, 7, 9, 9]


def test_classes_are_predicted_from_the_nearest_clusters() -> None:
    method = magnet(per_cluster=3)
    shifted = Space.of(space().embeddings + 0.1, space().labels)
    assert method.read_out(shifted, space(), clustering=None) == {"soft_knn_error": 0.0, "nearest_cluster_error": 0.0}
    assert method.read_out(shifted, None, clustering=None) == {}
