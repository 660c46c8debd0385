"""The settings of a run as options of every command that trains: to add one is to add a line here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, TypedDict, get_type_hints

import typer

from nearkin.cli.app import CountCheck


class TrainingOptions(TypedDict, total=False):
    """Those that were given, by the name of the setting."""

    backbone: Annotated[str, typer.Option(help="small, mlp, linear, torchvision:googlenet, any of timm.")]
    weights: Annotated[str, typer.Option(help="imagenet, none, or a file.")]
    init: Annotated[str, typer.Option(help="Start from this trained model: a run folder or a model folder.")]
    dim: Annotated[int, typer.Option(help="Length of the embedding; 0: no head. Default: 512 if pretrained, or 128.")]
    head_init: Annotated[
        str, typer.Option(help="svd (of the training features) or random. Default: svd if pretrained.")
    ]
    freeze_backbone: Annotated[bool, typer.Option("--freeze-backbone", help="Train the head alone.")]
    epochs: Annotated[int, typer.Option(help="Passes over the training data. Default: by their number.")]
    batch_size: Annotated[int, typer.Option(help="Items in a batch, over all devices.")]
    micro_batch: Annotated[
        int, typer.Option(help="Items embedded at once: large batches in little memory, with the same gradient.")
    ]
    learning_rate: Annotated[float, typer.Option(help="Of the head. Default: the method's.")]
    backbone_learning_rate: Annotated[float, typer.Option(help="Of the backbone. Default: a tenth (pretrained).")]
    optimizer: Annotated[str, typer.Option(help="adam, adamw, sgd or rmsprop.")]
    split: Annotated[str, typer.Option(help="official, classes (half of them, at random), first-half or all.")]
    root: Annotated[str, typer.Option(help="Where benchmark datasets are.")]
    check_counts: Annotated[bool, CountCheck]
    unreadable: Annotated[str, typer.Option(help="Images that cannot be decoded: skip or stop.")]
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")]
    logger: Annotated[str, typer.Option(help="tensorboard, csv, wandb, mlflow, several with commas, or none.")]


def with_training_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose keyword ``options`` is a `TrainingOptions`, as typer wants it: with each of them by itself."""
    hints = get_type_hints(command, include_extras=True)
    known = get_type_hints(TrainingOptions, include_extras=True)
    single = [_optional(name, hint) for name, hint in known.items()]
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        others = [parameter.replace(annotation=hints[parameter.name])]
        parameters += single if parameter.name == "options" else others

    @wraps(command)
    def called(**values: Any) -> None:
        options = {name: value for name in known if (value := values.pop(name)) is not None}
        command(**values, options=options)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def _optional(name: str, hint: Any) -> inspect.Parameter:
    """An option that is None where it is not given."""
    annotation = Annotated[hint.__origin__ | None, *hint.__metadata__]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
