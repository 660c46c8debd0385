"""All losses: order and label values do not matter, gradients are correct and finite, bad batches are refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference.batches import DEGENERATE, gradient, random_batch
from safetensors.torch import load, save
from torch import Tensor, nn

from nearkin.errors import UserError
from nearkin.losses import (
    ContrastiveLoss,
    FacilityLocationLoss,
    LiftedStructureLoss,
    MagnetLoss,
    MarginLoss,
    NCALoss,
    NPairsLoss,
    ProxyNCALoss,
    RankApproximationLoss,
    SoftmaxLoss,
    SpectralClusteringLoss,
    TripletSemiHardLoss,
)
from nearkin.losses.batch import unchecked
from nearkin.losses.registry import registered_losses

CLASSES, DIM = 6, 3
# A loss for up to 6 classes in 3 dimensions. Losses with learnable parameters are built from one seed.
LOSSES: dict[str, Callable[[], nn.Module]] = {
    "contrastive": ContrastiveLoss,
    "contrastive, any length": lambda: ContrastiveLoss(normalize=False),
    "contrastive, squared": lambda: ContrastiveLoss(squared=True),
    "facility-location": FacilityLocationLoss,
    "facility-location, any length": lambda: FacilityLocationLoss(normalize=False, exchange="all", margin="ami"),
    "lifted": LiftedStructureLoss,
    "magnet": MagnetLoss,
    "magnet, eq5": lambda: MagnetLoss(variance="eq5"),
    "margin": lambda: MarginLoss(nu=0.01),
    "margin, any length": lambda: MarginLoss(normalize=False),
    "margin, per class": lambda: MarginLoss(classes=CLASSES),
    "nca": NCALoss,
    "nca, unit length": lambda: NCALoss(scale=4.0, normalize=True),
    "npairs": NPairsLoss,
    "proxy-nca": lambda: ProxyNCALoss(CLASSES, DIM),
    "proxy-nca, others": lambda: ProxyNCALoss(CLASSES, DIM, scale=4.0, positive_in_denominator=False),
    "rank": RankApproximationLoss,
    "rank, linear": lambda: RankApproximationLoss(alpha=1.0),
    "rank, root": lambda: RankApproximationLoss(alpha=0.5),
    "rank, everywhere": lambda: RankApproximationLoss(gradient_everywhere=True),
    "softmax": lambda: SoftmaxLoss(CLASSES, DIM),
    "spectral": SpectralClusteringLoss,
    "triplet": TripletSemiHardLoss,
    "triplet, any length": lambda: TripletSemiHardLoss(normalize=False),
}
# These know the number of classes in advance and need labels 0…classes−1.
DENSE_LABELS = {"margin, per class", "proxy-nca", "proxy-nca, others", "softmax"}
SCALE_FREE = {
    "contrastive",
    "magnet",
    "margin",
    "nca, unit length",
    "proxy-nca",
    "rank",
    "rank, everywhere",
    "spectral",
}
SCALE_FREE |= {"facility-location", "triplet"}
# These compute their gradient themselves.
WITHOUT_SECOND_DERIVATIVE = {"facility-location", "nca", "spectral"}
# These draw at random, so another order of the batch is another draw.
SAMPLED = {"margin", "margin, any length", "margin, per class"}


Loss = Callable[[Tensor, Tensor], Tensor]


def pure(name: str) -> Loss:
    """The loss as a function of the batch only."""
    torch.manual_seed(0)
    module = LOSSES[name]()

    def seeded(x: Tensor, y: Tensor) -> Tensor:
        torch.manual_seed(0)
        result: Tensor = module.to(x.device, x.dtype if x.dtype == torch.float64 else torch.float32)(x, y)
        return result

    return seeded


@pytest.fixture(params=LOSSES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def loss(name: str) -> Loss:
    return pure(name)


def test_it_is_a_scalar_of_full_precision_with_a_gradient(loss: Loss) -> None:
    x, y = random_batch()
    value = loss(x.float().requires_grad_(), y)
    assert value.shape == ()
    assert value.dtype == torch.float32
    assert gradient(loss, x, y).abs().sum() > 0


def test_the_gradient_is_right(loss: Loss) -> None:
    x, y = random_batch(3)
    assert torch.autograd.gradcheck(lambda x: loss(x, y), x.requires_grad_())


def test_the_second_derivative_is_right_or_refused(loss: Loss, name: str) -> None:
    x, y = random_batch(3)
    x.requires_grad_()
    along = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    if name.split(",")[0] in WITHOUT_SECOND_DERIVATIVE:
        with pytest.raises(UserError, match="no second derivative; remove create_graph=True"):
            torch.autograd.grad(loss(x, y), x, create_graph=True)
        return
    (slope,) = torch.autograd.grad(loss(x, y), x, create_graph=True)
    (found,) = torch.autograd.grad((slope * along).sum(), x)
    step = 1e-6 * along
    expected = (gradient(loss, x.detach() + step, y) - gradient(loss, x.detach() - step, y)) / 2e-6
    assert expected.abs().max() > 1e-3
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("name", ["contrastive", "lifted", "margin", "triplet"])
def test_coincident_points_have_a_finite_second_derivative(name: str) -> None:
    x, y = DEGENERATE["coincident pairs"]
    x = x.double().requires_grad_()
    (slope,) = torch.autograd.grad(pure(name)(x, y), x, create_graph=True)
    assert torch.autograd.grad(slope.square().sum(), x)[0].isfinite().all()


def test_every_registered_loss_is_tested_here() -> None:
    assert {name.split(",")[0] for name in LOSSES} == {
        name for name, kind in registered_losses().items() if kind.__module__.startswith("nearkin.")
    }


def test_the_order_of_the_batch_does_not_matter(loss: Loss, name: str) -> None:
    if name in SAMPLED:
        pytest.skip("another order is another draw")
    x, y = random_batch()
    order = torch.randperm(len(x))
    assert loss(x[order], y[order]).item() == pytest.approx(loss(x, y).item(), rel=1e-9)
    assert torch.allclose(gradient(loss, x[order], y[order]), gradient(loss, x, y)[order])


def test_the_names_of_the_classes_do_not_matter(loss: Loss, name: str) -> None:
    x, y = random_batch()
    renamed = torch.tensor([-7, 10**12, 3, 0])[y]
    if name in DENSE_LABELS:
        with pytest.raises(UserError, match="labels must be in 0…5"):
            loss(x, renamed)
    else:
        assert loss(x, renamed).item() == pytest.approx(loss(x, y).item(), rel=1e-12)


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e12])
@pytest.mark.parametrize("name", sorted(SCALE_FREE))
def test_the_scale_does_not_matter_where_it_should_not(name: str, scale: float) -> None:
    x, y = random_batch()
    loss = pure(name)
    assert loss(x * scale, y).item() == pytest.approx(loss(x, y).item(), rel=1e-9)
    assert loss(x.float() * scale, y).item() == pytest.approx(loss(x, y).item(), rel=1e-4)


@pytest.mark.parametrize("case", DEGENERATE)
def test_every_finite_batch_has_a_finite_loss_and_gradient(loss: Loss, case: str) -> None:
    x, y = DEGENERATE[case]
    assert loss(x, y).isfinite()
    assert gradient(loss, x, y).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(loss: Loss, dtype: torch.dtype) -> None:
    x, y = random_batch()
    half = x.to(dtype)
    half.requires_grad_()
    with torch.autocast("cpu", dtype=torch.float16):  # not all processors support bfloat16
        value = loss(half, y)
    value.backward()
    slope, half = half.grad, half.detach()
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(loss(half.double(), y).item(), rel=1e-4, abs=1e-5)
    assert slope.dtype == dtype
    assert slope.isfinite().all()


def test_integers_of_any_width_are_labels(loss: Loss) -> None:
    x, y = random_batch()
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.uint64):
        assert torch.equal(loss(x, y.to(dtype)), loss(x, y))


@pytest.mark.parametrize(
    "given", [Tensor.float, Tensor.half, Tensor.numpy, Tensor.tolist, lambda y: y.float()[:, None]]
)
def test_labels_may_be_floats_arrays_lists_and_columns(loss: Loss, given: Callable[[Tensor], Any]) -> None:
    x, y = random_batch()
    assert torch.equal(loss(x, given(y)), loss(x, y))


def test_labels_can_be_booleans(loss: Loss) -> None:
    x, y = random_batch(classes=2)
    assert torch.equal(loss(x, y.bool()), loss(x, y))


@pytest.mark.parametrize("name", [name for name in LOSSES if ", " not in name])
def test_a_large_batch_needs_no_cubic_memory(name: str) -> None:
    x = torch.randn(2500, DIM)  # the cube would be 62 GB
    assert gradient(pure(name), x, torch.arange(2500) % CLASSES).isfinite().all()


@pytest.mark.parametrize("name", [name for name in LOSSES if "any length" not in name])
def test_a_zero_vector_has_a_moderate_gradient(name: str) -> None:
    """If embeddings are divided by their length, the gradient of a zero vector is 0 instead of 1/0."""
    x, y = random_batch(items=24, dim=DIM, classes=CLASSES)
    x[0] = 0
    assert gradient(pure(name), x.float(), y).abs().max() < 1e4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gpu_and_cpu_agree(loss: Loss, name: str, dtype: torch.dtype) -> None:
    if name in SAMPLED:
        pytest.skip("draws other numbers")
    x, y = random_batch(items=60, dim=DIM, classes=CLASSES)
    x = x.to(dtype)
    on_gpu = x.cuda().requires_grad_()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        value = loss(on_gpu, y)  # labels may be on another device
    value.backward()
    assert on_gpu.grad is not None
    tolerance = 1e-4 if dtype == torch.float32 else 1e-8
    assert value.item() == pytest.approx(loss(x, y).item(), rel=tolerance)
    assert torch.allclose(on_gpu.grad.cpu(), gradient(loss, x, y), rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("case", DEGENERATE)
def test_on_the_gpu_too_every_finite_batch_has_a_finite_gradient(loss: Loss, case: str) -> None:
    x, y = DEGENERATE[case]
    assert gradient(loss, x.cuda(), y.cuda()).isfinite().all()


@pytest.mark.parametrize("case", ["random", *DEGENERATE])
def test_without_checks_the_loss_is_the_same(loss: Loss, name: str, case: str) -> None:
    x, y = random_batch() if case == "random" else DEGENERATE[case]
    with unchecked():
        found, slope = loss(x, y), gradient(loss, x, y)
    if name not in SAMPLED:  # which draw another number of negatives
        torch.testing.assert_close(found, loss(x, y))
        torch.testing.assert_close(slope, gradient(loss, x, y))
    assert found.isfinite() and slope.isfinite().all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize(
    "name", sorted(LOSSES.keys() - {"facility-location", "facility-location, any length", "spectral"})
)
def test_without_checks_the_gpu_is_never_waited_for_on_cuda(name: str) -> None:
    x, y = random_batch()
    x, y = x.float().cuda().requires_grad_(), y.cuda()
    module = LOSSES[name]().cuda()
    module(x, y).backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with unchecked():
            module(x, y).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_it_can_be_copied_saved_and_printed(name: str) -> None:
    torch.manual_seed(0)
    module = LOSSES[name]().double()
    x, y = random_batch()

    def value(loss: nn.Module) -> float:
        torch.manual_seed(1)
        return float(loss(x, y).detach())

    restored = LOSSES[name]().double()
    restored.load_state_dict(load(save(module.state_dict())))
    assert value(pickle.loads(pickle.dumps(module))) == value(copy.deepcopy(module)) == value(restored) == value(module)
    assert repr(module)


NAN = torch.tensor([[0.0, 1.0, 2.0], [3.0, float("nan"), 1.0]])


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (torch.zeros(4, DIM), ["a", "b", "c", "d"], r"must be integers; convert strings with numpy.unique\(labels"),
        (torch.zeros(4, DIM), [[0, 1], [2]], "must be integers"),
        (torch.zeros(4, DIM).numpy(), torch.zeros(4, dtype=torch.long), "embeddings must be a tensor"),
        (torch.zeros(4), torch.zeros(4, dtype=torch.long), "shape"),
        (torch.zeros(4, DIM, dtype=torch.long), torch.zeros(4, dtype=torch.long), "must be floats"),
        (torch.zeros(4, DIM), torch.zeros(3, dtype=torch.long), "do not match"),
        (torch.zeros(4, DIM), torch.zeros(1, 4, dtype=torch.long), "do not match"),
        (torch.zeros(4, DIM), torch.zeros(4, 2, dtype=torch.long), "do not match"),
        (torch.zeros(4, DIM), torch.tensor([0.0, 0.5, 1.0, 2.0]), "must be integers, got torch.float32"),
        (torch.zeros(4, DIM), torch.tensor([0.0, float("nan"), 1.0, 2.0]), "must be integers"),
        (torch.zeros(4, DIM), torch.tensor([0.0, float("inf"), 1.0, 2.0]), "must be integers"),
        (torch.zeros(4, DIM), torch.zeros(4, dtype=torch.complex64), "must be integers"),
        (torch.zeros(0, DIM), torch.zeros(0, dtype=torch.long), "empty"),
        (torch.zeros(2, 0), torch.zeros(2, dtype=torch.long), "empty"),
        (NAN, torch.tensor([0, 1]), "NaN or infinite"),
        (NAN.nan_to_num(float("inf")), torch.tensor([0, 1]), "NaN or infinite"),
    ],
)
def test_a_wrong_batch_is_refused(loss: Loss, x: Tensor, y: Tensor, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        loss(x, y)
