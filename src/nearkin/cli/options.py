"""Training options, shared by all commands that train. To add an option, add it to `TrainingOptions`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, TypedDict, get_type_hints

import typer

from nearkin.cli.app import ROOT, CountCheck, Unreadable


class TrainingOptions(TypedDict, total=False):
    """The options that were given, by name of the setting."""

    backbone: Annotated[
        str, typer.Option(help="Backbone: small, mlp, linear, torchvision:googlenet or any timm model.")
    ]
    weights: Annotated[str, typer.Option(help="Backbone weights: imagenet, none or a file.")]
    init: Annotated[str, typer.Option(help="Trained model to start from: a run folder or a model folder.")]
    dim: Annotated[
        int, typer.Option(help="Embedding dimension; 0 for no head. Default: 512 for a pretrained backbone, else 128.")
    ]
    head_init: Annotated[
        str,
        typer.Option(
            help="Initialisation of the head: svd (of the training features) or random. "
            "Default: svd for a pretrained backbone."
        ),
    ]
    freeze_backbone: Annotated[bool, typer.Option("--freeze-backbone", help="Train only the head.")]
    epochs: Annotated[int, typer.Option(help="Number of epochs. Default: depends on the size of the dataset.")]
    batch_size: Annotated[int, typer.Option(help="Batch size, over all devices. Default: the method's.")]
    batches: Annotated[
        str,
        typer.Option(
            help="Batches: own (the method's), groups (classes × items), neighbourhoods (a class and its nearest "
            "classes) or clusters (one region of the embedding space at a time)."
        ),
    ]
    micro_batch: Annotated[
        int, typer.Option(help="Items to embed at a time. Saves memory; the gradient is that of the whole batch.")
    ]
    learning_rate: Annotated[float, typer.Option(help="Learning rate of the head. Default: the method's.")]
    backbone_learning_rate: Annotated[
        float,
        typer.Option(help="Learning rate of the backbone. Default: a tenth of the head's if it is pretrained."),
    ]
    optimizer: Annotated[str, typer.Option(help="Optimizer: adam, adamw, sgd or rmsprop.")]
    split: Annotated[
        str,
        typer.Option(
            help="How to split the data: official, classes (random halves), first-half or all (no test split)."
        ),
    ]
    root: Annotated[str, typer.Option(help=ROOT)]
    check_counts: Annotated[bool, CountCheck]
    unreadable: Annotated[str, Unreadable]
    device: Annotated[str, typer.Option(help="Device: auto, cpu or cuda.")]
    logger: Annotated[str, typer.Option(help="Loggers, separated by commas: tensorboard, csv, wandb, mlflow; or none.")]


def with_training_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces the keyword ``options`` of a command by one parameter per training option, as typer needs it."""
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
    """An option with the default None."""
    annotation = Annotated[hint.__origin__ | None, *hint.__metadata__]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
