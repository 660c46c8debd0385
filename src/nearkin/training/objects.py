"""Objects that a user passes because settings cannot describe them: data in memory, a method, a loss, a network."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from nearkin.data import Dataset, as_dataset
from nearkin.errors import UserError
from nearkin.methods import Method
from nearkin.methods.loss_module import LossModule
from nearkin.models import Embedder
from nearkin.models.backbones.own import module_name
from nearkin.training.run import Run

Callback = Callable[[Run, dict[str, Any]], None]  # called after every epoch with the run and {epoch, loss, scores}


class Objects(TypedDict, total=False):
    """The objects of a run; pass the same ones again to resume it."""

    dataset: Dataset
    method: Method
    backbone: nn.Module
    callbacks: Sequence[Callback]
    trial: Run  # a run with the same settings that never used the test split; the new run takes over its training


def take_objects(
    data: Any,
    settings: dict[str, Any],
    method: str | Method | None = None,
    loss: nn.Module | None = None,
    callbacks: Sequence[Callback] = (),
) -> tuple[dict[str, Any], Objects]:
    """Separates what the user passed into settings that can be saved and objects.

    >>> settings, objects = take_objects("photos/", {"epochs": 5, "backbone": nn.Flatten()})
    >>> settings, list(objects)
    ({'epochs': 5, 'backbone': 'module:torch.nn.modules.flatten.Flatten'}, ['backbone'])
    """
    _check_kinds(method, loss, callbacks, settings)
    settings, objects = dict(settings), Objects()
    if callbacks:
        objects["callbacks"] = callbacks
    if data is not None and not isinstance(data, str | Path):
        objects["dataset"] = as_dataset(data, settings.get("root"), settings.get("check_counts", True))
    if isinstance(method, Method):
        objects["method"] = method
    if loss is not None:
        if method is not None:
            raise UserError("a method has its own loss; pass either method=... or loss=...")
        objects["method"] = LossModule.of(loss, **batches_of(settings))
    if isinstance(settings.get("backbone"), nn.Module):
        objects["backbone"] = settings["backbone"]
        settings["backbone"] = module_name(settings["backbone"])
    if isinstance(settings.get("init"), Run | Path):
        init = settings["init"]
        settings["init"] = str(init.folder if isinstance(init, Run) else init)
    return settings, objects


def batches_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the batches for a loss module.

    >>> batches_of({"name": "rank", "alpha": 2.0, "per_class": 4})
    {'per_class': 4}
    """
    return {name: value for name, value in settings.items() if name == "per_class"}


def copied(objects: Objects) -> Objects:
    """The objects, with copies of the two that training changes: the method and the backbone."""
    copies = Objects(**objects)
    try:
        if "method" in objects:
            copies["method"] = deepcopy(objects["method"])
        if "backbone" in objects:
            copies["backbone"] = deepcopy(objects["backbone"])
    except Exception as error:  # third-party code may raise anything
        raise UserError(
            f"your backbone or loss cannot be copied ({type(error).__name__}: {error}), but every run trains a copy; "
            "remove what copy.deepcopy cannot copy"
        ) from error
    return copies


def module_digest(module: nn.Module, weights: bool) -> str:
    """A hash of a module's layers, their plain attributes, and the shapes of its weights.

    Args:
        weights: whether to hash the weights too; if not, modules that differ only in random weights are the same.

    >>> module_digest(nn.Dropout(0.1), False) == module_digest(nn.Dropout(0.2), False)
    False
    """
    digest = hashlib.sha256()
    for name, layer in module.named_modules():
        plain = {key: value for key, value in sorted(vars(layer).items()) if key != "training" and _is_plain(value)}
        digest.update(f"{name} {type(layer).__qualname__} {plain}\n".encode())
    for name, tensor in module.state_dict().items():
        if isinstance(tensor, Tensor):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            if weights:
                digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | None) or (
        isinstance(value, tuple | list) and all(map(_is_plain, value))
    )


def _check_kinds(method: Any, loss: Any, callbacks: Any, settings: dict[str, Any]) -> None:
    """Raises for objects of the wrong type; a common mistake is to pass a class instead of an object."""
    if not isinstance(method, str | Method | None):
        fix = _called(method) if isinstance(method, type) else 'method="rank"'
        raise UserError(f"method must be a name or a method object, got {kind_of(method)}; pass {fix}")
    if not isinstance(loss, nn.Module | None):
        fix = f"pass {_called(loss)}" if isinstance(loss, type) else "wrap a function in an nn.Module"
        if isinstance(loss, str):
            fix = f'to choose a method by name, use method="{loss}"'
        raise UserError(f"loss must be a torch module, got {kind_of(loss)}; {fix}")
    backbone = settings.get("backbone", "")
    if not isinstance(backbone, str | nn.Module):
        fix = _called(backbone) if isinstance(backbone, type) else 'backbone="resnet50"'
        raise UserError(f"backbone must be a name or a torch module, got {kind_of(backbone)}; pass {fix}")
    init = settings.get("init", "")
    if isinstance(init, Embedder):
        raise UserError('init must be a run or a folder, got an Embedder; save it: model.save("model"), init="model"')
    if not isinstance(init, str | Path | Run):
        raise UserError(f"init must be a run or a folder, got {kind_of(init)}")
    if isinstance(callbacks, str) or not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise UserError("callbacks must be a list of functions that take (run, metrics); pass callbacks=[function]")


def kind_of(value: Any) -> str:
    """The type of an argument, in words for a message.

    >>> kind_of(3), kind_of(int)
    ('an object of type int', 'the class int')
    """
    return f"the class {value.__name__}" if isinstance(value, type) else f"an object of type {type(value).__name__}"


def _called(kind: type) -> str:
    return f"an object, {kind.__name__}(...)"
