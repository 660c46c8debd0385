"""Losses by name: those of nearkin, those of pytorch-metric-learning, and an error for each mistake."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners
from reference.batches import gradient, random_batch
from torch import Tensor, nn

import nearkin.losses
from nearkin.errors import UserError
from nearkin.losses import PMLLoss, known_losses, make_loss, register_loss, registry

CLASSES, DIM = 4, 8
FOR_CLASSES = {"num_classes": CLASSES, "embedding_size": DIM}
# The required arguments of losses without defaults.
NEEDED: dict[str, dict[str, Any]] = {
    "proxy-nca": {"classes": CLASSES, "dim": DIM},
    "softmax": {"classes": CLASSES, "dim": DIM},
    **{f"pml:{name}Loss": FOR_CLASSES for name in ("ArcFace", "CosFace", "LargeMarginSoftmax", "NormalizedSoftmax")},
    **{f"pml:{name}Loss": FOR_CLASSES for name in ("ProxyAnchor", "ProxyNCA", "SphereFace", "SubCenterArcFace")},
    "pml:SoftTripleLoss": FOR_CLASSES,
    "pml:P2SGradLoss": {"num_classes": CLASSES, "descriptors_dim": DIM},
    "pml:HistogramLoss": {"n_bins": 20},
    "pml:RankedListLoss": {"margin": 0.4, "Tn": 1},
    "pml:CrossBatchMemory": {"loss": losses.ContrastiveLoss(), "embedding_size": DIM},
    "pml:MultipleLosses": {"losses": [losses.ContrastiveLoss(), losses.NTXentLoss()], "weights": [1.0, 2.0]},
}


def batch() -> tuple[Tensor, Tensor]:
    x, _ = random_batch(items=16, dim=DIM)
    return x.float(), torch.arange(16) % CLASSES


@pytest.mark.parametrize("name", known_losses())
def test_every_name_makes_a_loss(name: str) -> None:
    torch.manual_seed(0)
    loss = make_loss(name, **NEEDED.get(name, {}))
    x, y = batch()
    value = loss(x.requires_grad_(), y)
    assert value.shape == ()
    assert value.dtype == torch.float32
    value.backward()
    assert x.grad.isfinite().all()
    assert all(parameter.grad is not None for parameter in loss.parameters())


def test_every_nearkin_loss_has_a_name() -> None:
    exported = {
        kind for kind in vars(nearkin.losses).values() if isinstance(kind, type) and issubclass(kind, nn.Module)
    } - {nearkin.losses.Loss}
    named = {type(make_loss(name, **NEEDED.get(name, {}))) for name in known_losses()}
    assert exported == named


def test_every_loss_of_pytorch_metric_learning_that_takes_labels_is_known() -> None:
    theirs = {name for name in dir(losses) if name.endswith(("Loss", "Losses", "Memory"))}
    known = {name.removeprefix("pml:") for name in known_losses()}
    assert theirs - known == {"GenericPairLoss", "ManifoldLoss", "SelfSupervisedLoss", "VICRegLoss"}


def test_pml_losses_accept_any_labels() -> None:
    x, y = batch()
    renamed = torch.tensor([-7, 10**12, 3, 0])[y]
    for name in ("SmoothAPLoss", "FastAPLoss", "SupConLoss", "InstanceLoss"):
        assert PMLLoss(name)(x, renamed).isfinite()


def test_arguments_reach_the_loss_including_objects() -> None:
    x, y = batch()
    distance = distances.LpDistance(normalize_embeddings=False, power=2)
    ours = make_loss("pml:TripletMarginLoss", margin=0.7, distance=distance)
    assert ours(x, y).item() == losses.TripletMarginLoss(margin=0.7, distance=distance)(x, y).item()
    miner = miners.MultiSimilarityMiner()
    memory = PMLLoss("CrossBatchMemory", loss=losses.NTXentLoss(), embedding_size=DIM, miner=miner)
    assert memory(x, y).isfinite()


def test_parameters_of_a_pml_loss_are_registered() -> None:
    loss = PMLLoss("ProxyAnchorLoss", **FOR_CLASSES)
    assert [tuple(parameter.shape) for parameter in loss.parameters()] == [(CLASSES, DIM)]
    assert list(loss.state_dict()) == ["loss.proxies"]


def test_half_precision_is_computed_in_single() -> None:
    x, y = batch()
    half = x.half()
    with torch.autocast("cpu", dtype=torch.float16):
        value = PMLLoss("MultiSimilarityLoss")(half, y)
        slope = gradient(PMLLoss("MultiSimilarityLoss"), half, y)
    assert value.dtype == torch.float32
    assert value.item() == losses.MultiSimilarityLoss()(half.float(), y).item()
    assert slope.dtype == torch.float16


def test_batches_of_pml_losses_are_checked() -> None:
    with pytest.raises(UserError, match="labels must be integers"):
        PMLLoss("CircleLoss")(torch.zeros(2, 2), torch.tensor([0.0, 0.5]))
    with pytest.raises(UserError, match="labels must be in 0…3"):
        PMLLoss("ArcFaceLoss", **FOR_CLASSES)(torch.ones(1, DIM), torch.tensor([4]))


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("ranks", {}, "loss 'ranks' is unknown; did you mean 'rank'?"),
        ("pml:CircelLoss", {}, "loss 'pml:CircelLoss' is unknown; did you mean 'pml:CircleLoss'?"),
        ("pml:VICRegLoss", {}, "compares two views of each item, without labels; choose a loss that uses labels"),
        ("rank", {"alhpa": 1}, "loss 'rank': setting 'alhpa' is unknown; did you mean 'alpha'?"),
        ("rank", {"alpha": -1}, "alpha must be a finite number > 0, got -1"),
        ("rank", {"alpha": "big"}, "loss 'rank': alpha must be a number, got 'big'"),
        ("rank", {"alpha": float("inf")}, "loss 'rank': alpha must be a finite number, got inf"),
        ("triplet", {"normalize": "no"}, "loss 'triplet': normalize must be true or false, got 'no'"),
        ("softmax", {"classes": 2.5, "dim": 3}, "loss 'softmax': classes must be an integer, got 2.5"),
        ("facility-location", {"margin": "NMI"}, "margin 'NMI' is unknown; did you mean 'nmi'?"),
        ("proxy-nca", {}, "loss 'proxy-nca' needs classes and dim"),
        ("pml:TripletMarginLoss", {"margni": 1}, "did you mean 'margin'.* Known: .*distance"),
        ("pml:CosFaceLoss", {"margin": 1}, "loss 'pml:CosFaceLoss' needs num_classes and embedding_size"),
        ("pml:CircleLoss", {"distance": distances.LpDistance()}, "loss 'pml:CircleLoss' cannot be made from"),
    ],
)
def test_each_mistake_is_named(name: str, settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        make_loss(name, **settings)


LOSS_FILE = '''
import torch

from nearkin.losses import register_loss


@register_loss("spread")
class SpreadLoss(torch.nn.Module):
    """Pushes all items apart."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, embeddings, labels):
        return (-self.scale * torch.pdist(embeddings)).exp().mean()
'''


@pytest.fixture
def spread(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "spread_loss.py").write_text(LOSS_FILE)
    yield tmp_path
    registry._LOSSES.pop("spread", None)
    sys.modules.pop("nearkin.losses.spread_loss", None)
    sys.modules.pop("spread_loss", None)


def test_a_file_in_the_package_is_enough_for_a_name(spread: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearkin.losses, "__path__", [*nearkin.losses.__path__, str(spread)])
    registry.register_files("nearkin.losses", nearkin.losses.__path__)
    assert "spread" in known_losses()
    assert make_loss("spread", scale=2.0)(*batch()).item() > 0
    with pytest.raises(UserError, match="setting 'scael' is unknown; did you mean 'scale'"):
        make_loss("spread", scael=2.0)


def test_a_file_elsewhere_registers_when_it_is_imported(spread: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(spread)
    with pytest.raises(UserError, match="loss 'spread' is unknown"):
        make_loss("spread")
    module = importlib.import_module("spread_loss")
    assert isinstance(make_loss("spread"), module.SpreadLoss)
    again = importlib.reload(module)
    assert type(make_loss("spread")) is again.SpreadLoss


def test_a_name_can_be_registered_only_once() -> None:
    with pytest.raises(UserError, match=r"loss 'rank' is already nearkin\.losses\.rank\.RankApproximationLoss"):
        register_loss("rank")(nn.Identity)
    assert isinstance(make_loss("rank"), nearkin.losses.RankApproximationLoss)
