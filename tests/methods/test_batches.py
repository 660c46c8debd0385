"""Batches that look at the space, for any method: what is in them, and that all else stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Command
from torch import nn

from nearkin.api import make_settings
from nearkin.errors import Interrupted, UserError
from nearkin.experiments import compare
from nearkin.methods import Every, LossModule, Triplet, known_methods, make_method, takes_batches, with_batches
from nearkin.sampling import ClassNeighbourhoodSampler
from nearkin.space import Space
from nearkin.training import Run, loop
from nearkin.training.loop import Trainer, make_trainer

LABELS = np.repeat(np.arange(12), 6)
QUICK: dict[str, Any] = {"epochs": 4, "batch_size": 16, "dim": 8, "backbone": "mlp", "device": "cpu", "logger": "none"}
FREE = [method.name for method in known_methods() if takes_batches(make_method(method.name))]


def space_of(labels: np.ndarray, seed: int = 0) -> Space:
    rng = np.random.default_rng(seed)
    points = 2 * rng.normal(size=(labels.max() + 1, 4))[labels] + rng.normal(size=(len(labels), 4))
    return Space(torch.from_numpy(points), torch.from_numpy(labels), torch.arange(len(labels)))


def nearest_classes(space: Space) -> list[list[int]]:
    """All other classes of each class, nearest mean first."""
    points, labels = space.embeddings.numpy(), space.labels.numpy()
    means = [points[labels == label].mean(0) for label in range(labels.max() + 1)]
    order = [np.argsort([np.linalg.norm(mean - other) for other in means]) for mean in means]
    return [[int(other) for other in row if other != label] for label, row in enumerate(order)]


@pytest.mark.parametrize(("hard_share", "hard"), [(1.0, 3), (0.5, 2), (0.01, 1)])
def test_a_neighbourhood_is_a_seed_its_nearest_classes_and_random_ones(hard_share: float, hard: int) -> None:
    method = with_batches(make_method("triplet", per_class=3), "neighbourhoods", hard_share=hard_share)
    sampler = method.sampler(LABELS, 12, seed=1)
    for refresh in range(2):
        space = space_of(LABELS, refresh)
        method.on_refresh(space)
        nearest, others = nearest_classes(space), set[int]()
        for batch in [batch for _ in range(4) for batch in sampler]:
            classes = LABELS[batch].reshape(4, 3)
            assert (classes == classes[:, :1]).all() and len(set(batch)) == 12  # three of each
            seed, *rest = classes[:, 0].tolist()
            assert rest[:hard] == nearest[seed][:hard] and len({seed, *rest}) == 4
            others |= {nearest[seed].index(other) for other in rest[hard:]}
        assert hard == 3 or len(others) > 5


def test_every_class_is_a_seed_once_per_round_also_across_epochs() -> None:
    sampler = ClassNeighbourhoodSampler(LABELS, 12, per_class=3)
    seeds = [LABELS[batch[0]] for _ in range(4) for batch in sampler]
    assert len(sampler) == 6 and all(sorted(seeds[i : i + 12]) == list(range(12)) for i in (0, 12))
    assert seeds[:12] != seeds[12:]


def test_small_classes_are_made_up_for_by_more_classes() -> None:
    labels = np.r_[np.repeat(np.arange(10), 5), np.arange(10, 30)]
    sampler = ClassNeighbourhoodSampler(labels, 12, per_class=3)
    sampler.refresh(np.tile([28, 29, -1], (30, 1)))
    for batch in sampler:
        assert len(batch) == len(set(batch)) == 12 and {28, 29} <= set(labels[batch])


@pytest.mark.parametrize("name", ["triplet", "proxy-nca", "spectral", "facility-location"])
def test_a_batch_is_from_one_cluster_and_drawn_as_the_method_draws(name: str) -> None:
    items = torch.arange(600)
    space = Space(torch.randn(600, 2) + 40 * (items % 3)[:, None], items // 3 % 20, items)
    method = with_batches(make_method(name), "clusters", clusters=3)
    sampler = method.sampler(space.labels, 32, seed=0)
    method.on_refresh(space)
    batches = [np.array(batch) % 3 for _ in range(2) for batch in sampler]
    assert all(len(set(regions)) == 1 for regions in batches) and len({regions[0] for regions in batches}) == 3
    groups = method.groups()
    assert groups is not None and (groups.title, groups.name) == ("Clusters", "cluster")
    assert len({(i % 3, group) for i, group in enumerate(groups.group_of.tolist())}) == 3


@pytest.mark.parametrize("batches", ["groups", "neighbourhoods", "clusters"])
@pytest.mark.parametrize("name", FREE)
def test_all_but_the_batches_is_the_methods_own(name: str, batches: str) -> None:
    own = make_method(name)
    method = with_batches(own, batches, refresh_epochs=3)
    assert isinstance(method, type(own)) and method.settings() == own.settings()
    assert method.refresh_every == (None if batches == "groups" else Every(epochs=3)) and own.refresh_every is None
    changed = {"sampler", "on_refresh", "groups", "check", "state_dict", "load_state_dict", "batches"}
    for attribute in vars(type(own)).keys() - changed:
        if not attribute.startswith("_"):
            assert getattr(type(method), attribute) is getattr(type(own), attribute), attribute
    labels = np.repeat(np.arange(24), 6)
    batch = next(iter(method.sampler(labels, 24, seed=0)))
    counts = np.bincount(labels[batch])
    assert len(batch) == 24 and (batches == "clusters" or counts.max() == min(6, method.items_per_class()))


def test_an_object_of_the_user_gets_the_batches_and_stays_as_it_is(vectors: str, tmp_path: Path) -> None:
    settings = make_settings(vectors, "triplet", QUICK | {"batches": "neighbourhoods"})
    given = Triplet(margin=0.3), LossModule.of(nn.CosineEmbeddingLoss())
    for method in given:
        changed = settings.make_method(method)
        assert isinstance(changed.sampler(LABELS, 24, 0), ClassNeighbourhoodSampler) and changed.loss is method.loss
        assert type(method) in (Triplet, LossModule) and method.refresh_every is None
    trainer = make_trainer(settings, Run(tmp_path / "run"), method=given[0])
    assert isinstance(trainer.sampler, ClassNeighbourhoodSampler) and trainer.method.settings()["margin"] == 0.3


def stopped_at(step: int, trainer: Trainer) -> None:
    save = trainer._save_or_stop
    trainer._save_or_stop = lambda asked: save(asked or trainer.position.step == step)  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        trainer.train()


@pytest.mark.parametrize(("method", "batches"), [("margin", "neighbourhoods"), ("proxy-nca", "clusters")])
def test_a_run_that_is_stopped_in_mid_epoch_reaches_the_same_weights(
    vectors: str, tmp_path: Path, method: str, batches: str
) -> None:
    settings = make_settings(vectors, method, QUICK | {"batches": batches, "validation": 0.0})
    whole = loop.train(settings, tmp_path / "whole")
    steps = len(make_trainer(settings, Run(tmp_path / "none")).sampler)
    stopped_at(steps + steps // 2, make_trainer(settings, Run(tmp_path / "cut")))  # an epoch after the refresh
    resumed = loop.resume(tmp_path / "cut")
    assert resumed.metrics[-1]["map@r"] == whole.metrics[-1]["map@r"]
    weights = [(run.model_folder / "model.safetensors").read_bytes() for run in (whole, resumed)]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("method", "changes", "expected"),
    [
        ("magnet", {"batches": "groups"}, "'magnet' chooses its batches by the space itself; leave out batches"),
        ("divide-and-conquer", {"batches": "clusters"}, "'divide-and-conquer' chooses its batches by the space"),
        ("rank", {"batches": "neighbors"}, "did you mean 'neighbourhoods'"),
        ("rank", {"batch_refresh_epochs": 0}, "batch_refresh_epochs must be an integer >= 1, got 0"),
        ("rank", {"batch_clusters": 1}, "batch_clusters must be an integer >= 2, got 1"),
        ("rank", {"batch_hard_share": 0.0}, "batch_hard_share must be > 0 and <= 1, got 0"),
        ("rank", {"batches": "clusters", "batch_clusters": 500}, "items cannot be divided into 500 clusters"),
        (
            "triplet",
            {"batches": "neighbourhoods", "batch_size": 40},
            "a batch of 40 has most of the 12 training classes, .* use batch_size=24 or less",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(
    vectors: str, tmp_path: Path, method: str, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        make_trainer(make_settings(vectors, method, {**QUICK, "validation": 0.0, **changes}), Run(tmp_path / "run"))


def test_batches_can_be_compared_side_by_side(nearkin: Command, vectors: str, tmp_path: Path) -> None:
    options = [f"--set={name}={value}" for name, value in (QUICK | {"epochs": 1}).items()]
    methods = "triplet,triplet:batches=neighbourhoods,margin=0.3,magnet"
    out = str(tmp_path / "out")
    outcome = nearkin(
        "compare", vectors, "--methods", methods, "--seeds", "1", "--batches", "groups", "--out", out, *options
    )
    assert outcome.code == 0 and "triplet,batches=neighbourhoods,margin=0.3" in outcome.out, outcome.err
    found = {folder.name: Run(folder).settings() for folder in Path(out).glob("*-0")}
    assert {name: each.training.batches for name, each in found.items()} == {
        "triplet-0": "groups",
        "triplet,batches=neighbourhoods,margin=0.3-0": "neighbourhoods",
        "magnet-0": "own",  # it has its own neighbourhoods
    }
    assert found["triplet,batches=neighbourhoods,margin=0.3-0"].method_settings["margin"] == 0.3


@pytest.mark.parametrize(
    ("methods", "changes", "expected"),
    [
        ("magnet", {"batches": "groups"}, "leave out batches"),
        ("rank:dim=4", {}, "dim is the same for all rows of a comparison; leave it out of 'rank:dim=4'"),
        ("rank:seed=4", {}, "seed is the same for all rows"),
        ("rank:epochs=4", {}, "epochs is the same for all rows"),
        ("rank:stop_after=4", {}, "stop_after is the same for all rows"),
        ("rank:batchs=own", {}, "did you mean 'batches'"),
        ("rank:batches", {}, "write NAME=VALUE"),
    ],
)
def test_rows_that_would_not_be_comparable_are_refused(
    vectors: str, tmp_path: Path, methods: str, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        compare(vectors, methods, out=tmp_path / "out", **changes)


def test_train_takes_batches_as_an_option(
    nearkin: Command, vectors: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = [f"--set={name}={value}" for name, value in (QUICK | {"epochs": 1}).items()]
    outcome = nearkin("train", vectors, "--batches", "clusters", "--out", str(tmp_path / "run"), *options)
    assert outcome.code == 0 and "rank with batches from clusters on cpu" in caplog.text, outcome.err
    assert 'batches = "clusters"' in (tmp_path / "run" / "config.toml").read_text()
    refused = nearkin("train", vectors, "--method", "magnet", "--batches", "clusters")
    assert refused.code == 1 and "leave out --batches" in refused.err and refused.err.count("\n") == 1
