"""A loss as a CUDA graph, which launches all kernels of a pass at once.

A loss consists of dozens of small kernels. For batches of a few hundred items, launching them takes longer than running
them. ``torch.cuda.make_graphed_callables`` records the kernels of the forward and of the backward pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Number
from types import NoneType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearkin.errors import UserError
from nearkin.losses.batch import Labels, checked_ids, full_precision, once_differentiable, unchecked


def graphed(
    loss: nn.Module, batch_size: int, dim: int, device: torch.device | str = "cuda", **more: Tensor
) -> nn.Module:
    """Records a loss as a CUDA graph, for batches of a constant size in your own training loop.

    The result is called like the loss and has the same parameters. It does not check whether embeddings are finite and
    labels in range. A batch of another shape is computed by the loss itself. On other devices than CUDA, the loss is
    returned as it is.

    Record the loss before the first batch is loaded, and call ``backward`` before the next batch: a graph keeps only
    the latest one. There are no second derivatives. After a setting of the loss has changed, the loss itself computes
    the batches; only facility location's γ and Magnet's α may change.

    Args:
        loss: any loss that reads no data on the host; the docs list those that do. It is moved to the device.
        batch_size: the number of items in a batch.
        dim: the number of dimensions of their embeddings, in single or half precision.
        device: where the embeddings are.
        more: an example of each further argument, for instance ``clusters=torch.zeros(128, dtype=torch.long)``.

    Returns:
        A module; its attribute ``loss`` is the loss itself.

    >>> from nearkin.losses import RankApproximationLoss
    >>> loss = graphed(RankApproximationLoss(), batch_size=128, dim=512)  # doctest: +SKIP
    >>> loss(network(images), labels).backward()  # doctest: +SKIP
    """
    for name, value in (("batch_size", batch_size), ("dim", dim)):
        if value < 1:
            raise UserError(f"{name} must be an integer >= 1, got {value}")
    if why := getattr(loss, "without_graph", ""):
        raise UserError(f"this loss cannot be recorded as a CUDA graph, because {why}; use it without graphed")
    device = torch.device(device)
    if device.type != "cuda":
        return loss.to(device)
    if not torch.cuda.is_available():
        raise UserError(
            "a CUDA graph needs a CUDA device, and none was found; pass device='cpu' to use the loss as it is"
        )
    with torch.cuda.device(device):
        embeddings = torch.randn(batch_size, dim, generator=torch.Generator())
        labels = torch.zeros(batch_size, dtype=torch.long)  # valid for every loss
        batch = {"embeddings": embeddings, "labels": labels, **more}
        return GraphedLoss(loss.to("cuda"), {name: example.to("cuda") for name, example in batch.items()})


class GraphedLoss(nn.Module):
    """A recorded loss; see `graphed`. ``batch`` contains an example of each input, on the device."""

    without_graph: ClassVar[str] = "it is recorded already"

    def __init__(self, loss: nn.Module, batch: dict[str, Tensor]) -> None:
        super().__init__()
        self.loss = loss
        self.plain = loss._compiled_call_impl or loss._call_impl  # even if the loss itself now calls this graph
        self.calls = 0
        self.device = batch["embeddings"].device
        self.shapes = {name: tensor.shape for name, tensor in batch.items() if name != "labels"}
        of_loss: tuple[str, ...] = getattr(loss, "changing", ())
        self.numbers = [name for name in of_loss if name not in loss._parameters]
        self.settings = self._settings()
        inputs = [tensor.detach().clone().requires_grad_(tensor.is_floating_point()) for tensor in batch.values()]
        inputs += [self._number(name).clone() for name in self.numbers]
        # The memory of the parameters in tensors of their own: recording a parameter itself would tie its later
        # gradients to the stream of the recording.
        parameters = {name: each.detach().requires_grad_() for name, each in loss.named_parameters()}

        def step(embeddings: Tensor, labels: Tensor, *others: Tensor) -> Tensor:
            names = list(batch)[2:]
            more = dict(zip(names, others, strict=False))  # then come the numbers and the parameters
            numbers = dict(zip(self.numbers, others[len(names) :], strict=False))
            with unchecked(), _attributes(loss, numbers):
                value: Tensor = functional_call(loss, parameters, (embeddings, labels), more)
                return value

        with torch.enable_grad(), full_precision(inputs[0]):
            self.replay = _recorded(step, (*inputs, *parameters.values()))

    def forward(self, embeddings: Tensor, labels: Labels, *others: Any, **more: Any) -> Tensor:
        """Computes the loss of a batch, like the recorded loss; see `Loss.forward`."""
        given = {"embeddings": embeddings, **{name: value for name, value in more.items() if value is not None}}
        if others or not self._fits(given):
            value: Tensor = self.plain(embeddings, labels, *others, **more)
            return value
        with unchecked():
            labels = checked_ids(labels, embeddings, "labels")
        further = [given[name].to(self.device) for name in list(self.shapes)[1:]]
        further += [self._number(name) for name in self.numbers]
        inputs = _Inputs.apply(self, embeddings, labels, *further, *self.loss.parameters())  # type: ignore[no-untyped-call]
        return self.replay(*inputs).clone()  # the next call overwrites the value in the graph

    def _fits(self, given: dict[str, Any]) -> bool:
        shapes = {name: each.shape for name, each in given.items() if isinstance(each, Tensor)}
        if shapes != self.shapes or len(given) > len(shapes) or self.settings != self._settings():
            return False
        embeddings = given["embeddings"]
        return embeddings.device == self.device and embeddings.dtype in (torch.float32, torch.bfloat16, torch.float16)

    def _settings(self) -> dict[str, Any]:
        """The settings of the loss; the graph is valid only while they stay as they were recorded."""
        plain, of_loss = (Number, str, NoneType), vars(self.loss).items()
        settings = {name: value for name, value in of_loss if isinstance(value, plain) and not name.startswith("_")}
        return {name: value for name, value in settings.items() if name not in self.numbers}

    def _number(self, name: str) -> Tensor:
        """The current value of an attribute that may change, as a scalar in float64 on the device."""
        value = getattr(self.loss, name)
        if isinstance(value, Tensor):
            return value.detach().to(self.device, torch.float64, non_blocking=True)
        return torch.full((), value, dtype=torch.float64, device=self.device)


class _Inputs(torch.autograd.Function):
    """The inputs of a graph. Their gradients are copied, because the next call overwrites those in the graph.

    Without copies, gradients of parameters would not accumulate: https://github.com/pytorch/pytorch/issues/181723
    """

    @staticmethod
    def forward(ctx: Any, graphed: GraphedLoss, *inputs: Tensor) -> tuple[Tensor, ...]:
        graphed.calls += 1
        ctx.graphed, ctx.call = graphed, graphed.calls
        ctx.set_materialize_grads(False)
        return tuple(each.view_as(each) for each in inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if ctx.call != ctx.graphed.calls:
            raise UserError(
                "a graphed loss keeps only its latest batch; call backward() before the next batch, "
                "or make one graphed loss for each"
            )
        return None, *(None if each is None else each.clone() for each in gradients)


def _recorded(step: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Callable[..., Tensor]:
    """Records a step that takes these inputs, which become the memory that every replay reads."""
    step(*inputs)  # the first call may read what later ones have in memory
    try:
        with _without_reads():
            step(*inputs)
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        raise UserError(
            "this loss reads data on the host, which a CUDA graph cannot do; use it without graphed"
        ) from error
    with warnings.catch_warnings():
        # torch trains its batches of warming up on another stream, and waits for it itself.
        warnings.filterwarnings("ignore", "The AccumulateGrad node's stream", UserWarning)
        replay: Any = torch.cuda.make_graphed_callables(step, inputs, allow_unused_input=True)
    return replay  # type: ignore[no-any-return]


@contextmanager
def _attributes(module: nn.Module, values: dict[str, Tensor]) -> Iterator[None]:
    """Replaces attributes of a module within this block."""
    before = {name: getattr(module, name) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


@contextmanager
def _without_reads() -> Iterator[None]:
    """Operations that wait for the GPU raise an error, before a recording that they would break."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that not all such operations are detected
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
