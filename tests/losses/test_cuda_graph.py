"""A loss as a CUDA graph: the same values and gradients, whatever a training loop keeps from one batch to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from losses.test_every_loss import CLASSES, DIM, LOSSES, SAMPLED
from torch import Tensor, nn

from nearkin.errors import UserError
from nearkin.losses import (
    FacilityLocationLoss,
    MagnetLoss,
    MarginLoss,
    NCALoss,
    NPairsLoss,
    PMLLoss,
    ProxyNCALoss,
    SpectralClusteringLoss,
    graphed,
)
from nearkin.losses.batch import unchecked
from nearkin.losses.cuda_graph import GraphedLoss

BATCH = 12
READS = {"facility-location, any length", "spectral"}
on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def a_batch(seed: int = 0, items: int = BATCH, device: str = "cpu") -> tuple[Tensor, Tensor]:
    points = torch.randn(items, DIM, generator=torch.Generator().manual_seed(seed))
    return points.to(device).requires_grad_(), torch.arange(items, device=device) % 4


def in_static_memory(step: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Callable[..., Tensor]:
    """A recording without CUDA: every call reads, returns and differentiates in the same memory."""
    value, gradients, graph = torch.zeros(()), [torch.zeros_like(each) for each in inputs], [torch.zeros(())]
    floats = [each for each in inputs if each.requires_grad]

    class Replay(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, *given: Tensor) -> Tensor:
            for static, each in zip(inputs, given, strict=True):
                if static.data_ptr() != each.data_ptr():
                    static.copy_(each)
            with torch.enable_grad():
                graph[0] = step(*inputs)
            return value.copy_(graph[0]).detach()

        @staticmethod
        def backward(_ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
            found = iter(torch.autograd.grad(graph[0], floats, gradient, retain_graph=True, materialize_grads=True))
            return tuple(
                memory.copy_(next(found)).detach() if each.requires_grad else None
                for memory, each in zip(gradients, inputs, strict=True)
            )

    return Replay.apply


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Callable[..., nn.Module]:
    monkeypatch.setattr("nearkin.losses.cuda_graph._recorded", in_static_memory)
    return lambda loss, **more: GraphedLoss(loss, dict(zip(("embeddings", "labels"), a_batch(9), strict=True)) | more)


def test_values_stay_and_gradients_of_parameters_accumulate(record: Callable[..., nn.Module]) -> None:
    """pytorch#181723: in the graph's memory, the second gradient would replace the first and count twice."""
    plain = ProxyNCALoss(CLASSES, DIM)
    loss = record(plain)
    values = [loss(*a_batch(0))]
    values[0].backward()
    values.append(loss(*a_batch(1)))
    values[1].backward()
    found, plain.proxies.grad = plain.proxies.grad, None
    expected = [plain(*a_batch(seed)) for seed in (0, 1)]
    (expected[0] + expected[1]).backward()
    assert torch.allclose(torch.stack(values), torch.stack(expected))
    assert found is not None and torch.allclose(found, plain.proxies.grad)


def test_parameters_train(record: Callable[..., nn.Module]) -> None:
    plain = MarginLoss()
    loss = record(plain)
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    before = loss(*a_batch())
    before.backward()
    optimizer.step()
    torch.manual_seed(0)
    after = loss(*a_batch())
    torch.manual_seed(0)
    with unchecked():
        assert after.item() == plain(*a_batch()).item() != before.item()


def test_further_inputs_get_gradients_too(record: Callable[..., nn.Module]) -> None:
    (x, y), (positives, _) = a_batch(0), a_batch(1)
    loss = record(NPairsLoss(), positives=torch.zeros(BATCH, DIM))
    loss(x, y, positives=positives).backward()
    expected = torch.autograd.grad(NPairsLoss()(x, y, positives=positives), (x, positives))
    assert torch.allclose(x.grad, expected[0]) and torch.allclose(positives.grad, expected[1])


def test_labels_and_half_precision_are_taken_as_by_the_loss(record: Callable[..., nn.Module]) -> None:
    x, y = a_batch()
    half = x.detach().bfloat16().requires_grad_()
    loss = record(NCALoss())
    loss(half, y.tolist()).backward()
    assert loss.calls == 1
    assert torch.equal(half.grad, torch.autograd.grad(NCALoss()(half, y), half)[0])


def test_a_batch_that_was_not_recorded_is_computed_by_the_loss(record: Callable[..., nn.Module]) -> None:
    loss, clusters = record(MagnetLoss(), clusters=torch.arange(BATCH)), torch.arange(BATCH) % 8
    x, y = a_batch()
    assert loss(x, y, clusters=clusters).item() == pytest.approx(MagnetLoss()(x, y, clusters=clusters).item())
    assert loss.calls == 1
    for points, labels in (a_batch(items=7), (x, y), (x.double(), y)):
        assert loss(points, labels).item() == MagnetLoss()(points, labels).item()
    assert loss.calls == 1


@pytest.mark.parametrize(("kind", "name"), [(FacilityLocationLoss, "gamma"), (MagnetLoss, "alpha")])
@pytest.mark.parametrize("value", [3.0, torch.tensor(3.0, dtype=torch.float64)])
def test_numbers_that_change_from_batch_to_batch_are_read_anew(
    record: Callable[..., nn.Module], kind: Callable[..., nn.Module], name: str, value: float | Tensor
) -> None:
    recorded = record(loss := kind())
    before = recorded(*a_batch())
    setattr(loss, name, value)
    after = recorded(*a_batch())
    assert recorded.calls == 2 and getattr(loss, name) is value
    assert before.item() != after.item() == pytest.approx(kind(value)(*a_batch()).item())


def test_a_recorded_loss_is_not_recorded_again(record: Callable[..., nn.Module]) -> None:
    with pytest.raises(UserError, match="because it is recorded already"):
        graphed(record(NCALoss()), BATCH, DIM)


def test_a_number_given_as_a_tensor_stays_what_it_is(record: Callable[..., nn.Module]) -> None:
    recorded = record(loss := MagnetLoss(alpha := torch.tensor(2.0, dtype=torch.float64)))
    for value in (1.0, 0.5):
        loss.alpha = alpha * value
        recorded(*a_batch())
    assert alpha.item() == 2


def test_a_number_that_is_a_parameter_trains(record: Callable[..., nn.Module]) -> None:
    loss = MagnetLoss()
    del loss.alpha
    loss.alpha = nn.Parameter(torch.tensor(3.0))
    record(loss)(*a_batch()).backward()
    assert loss.alpha.grad is not None and loss.alpha.grad.item() > 0


def test_after_a_setting_has_changed_the_loss_itself_is_called(record: Callable[..., nn.Module]) -> None:
    recorded, expected = record(plain := NCALoss(scale=1.0)), NCALoss(scale=2.0)
    plain.scale = 2.0
    assert recorded(*a_batch()).item() == expected(*a_batch()).item()
    plain.scale = 1.0
    recorded(*a_batch())
    assert recorded.calls == 1


def test_a_loss_may_call_its_own_recording(record: Callable[..., nn.Module]) -> None:
    loss = NCALoss()
    recorded = record(loss)
    recorded.replay = lambda *_: torch.tensor(5.0)  # a graph does not call the loss
    loss._compiled_call_impl = recorded.forward
    assert loss(*a_batch()).item() == 5
    assert loss(*a_batch(items=7)).item() == NCALoss()(*a_batch(items=7)).item() != 5


def test_gradients_that_the_graph_no_longer_has_are_refused(record: Callable[..., nn.Module]) -> None:
    loss = record(NCALoss())
    first, second = loss(*a_batch(0)), loss(*a_batch(1))
    with pytest.raises(UserError, match="keeps only its latest batch; call backward"):
        (first + second).backward()
    with pytest.raises(UserError, match="no second derivative"):
        torch.autograd.grad(loss(x := a_batch()[0], a_batch()[1]), x, create_graph=True)


def test_without_cuda_the_loss_is_returned_or_an_error_says_so() -> None:
    loss = NCALoss()
    assert graphed(loss, 8, 4, device="cpu") is loss
    with pytest.raises(UserError, match="batch_size must be an integer >= 1, got 0"):
        graphed(loss, 0, 4)
    with pytest.raises(UserError, match="cannot be recorded as a CUDA graph, because it reads data on the host"):
        graphed(SpectralClusteringLoss(), 8, 4)
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="needs a CUDA device"):
            graphed(loss, 8, 4)


@on_cuda
@pytest.mark.parametrize("name", [name for name in LOSSES if name not in READS])
def test_on_cuda_every_loss_has_its_values_and_gradients(name: str) -> None:
    plain = LOSSES[name]().cuda()
    loss = graphed(plain, BATCH, DIM)

    def results(of: nn.Module, seed: int) -> Tensor:
        torch.cuda.manual_seed(seed)
        x, y = a_batch(seed, device="cuda")
        with unchecked():  # which draws as a graph does
            value = of(x, y)
        gradients = torch.autograd.grad(value, [x, *plain.parameters()])
        return torch.cat([value.detach()[None], *(each.flatten() for each in gradients)])

    found, expected = ([results(of, seed) for seed in range(3)] for of in (loss, plain))
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(found, expected, strict=True))
    if name in SAMPLED:
        x, y = a_batch(device="cuda")
        assert len({loss(x, y).item() for _ in range(8)}) > 1, "every step has its own draws"


class ReadsData(nn.Module):
    def forward(self, embeddings: Tensor, _: Tensor) -> Tensor:
        return embeddings.sum() * embeddings.detach().max().item()


@on_cuda
@pytest.mark.parametrize("loss", [FacilityLocationLoss(margin="ami"), PMLLoss("ContrastiveLoss"), ReadsData()])
def test_on_cuda_losses_that_read_data_are_refused(loss: nn.Module) -> None:
    with pytest.raises(UserError, match="data on the host"):
        graphed(loss, BATCH, DIM)
    assert torch.ones(1, device="cuda").item() == 1  # no lasting effect
