"""The summary printed before a run starts: data, model and training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearkin.data import Splits
from nearkin.data.splits import default_split
from nearkin.data.summary import counted, describe_splits, labelled
from nearkin.methods.batches import OWN
from nearkin.models.backbones.own import MODULE
from nearkin.training.settings import DataSettings, ModelSettings, Settings

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def describe_data(splits: Splits, settings: DataSettings) -> str:
    """Describes the data of a run and their splits.

    >>> from nearkin.data import load_dataset, make_splits
    >>> splits = make_splits(load_dataset("glyphs:classes=4,per_class=2,size=16"))
    >>> print(describe_data(splits, DataSettings("glyphs")))
    data          glyphs: 8 images, 4 classes
      split       official
      train       4 images, 2 classes
      test        4 images, 2 classes (unseen in training)
      size        16×16 pixels, grey
    """
    data, *details = describe_splits(splits)
    return "\n".join([data, labelled("  split", _split(splits, settings)), *details])


def describe_training(settings: Settings, fabric: Fabric, steps: int) -> str:
    """Describes the model and the training of a run, one line each.

    Args:
        settings: with all defaults filled in.
        steps: steps per epoch.

    >>> from nearkin.training.devices import make_fabric
    >>> tables = {"data": {"source": "glyphs"}, "training": {"batch_size": 4, "epochs": 20}}
    >>> settings = Settings.from_tables(tables).changed(model={"backbone": "small", "dim": 128})
    >>> print(describe_training(settings, make_fabric(settings.training), steps=3))
    model         small, 128-dimensional embedding
    training      rank on cpu, batch size 4, 3 steps per epoch, 20 epochs
    """
    training = settings.training
    where = fabric.device.type + (f" in {fabric.world_size} processes" if fabric.world_size > 1 else "")
    most = "at most " if training.patience > 0 else ""
    amount = f"{counted(steps, 'step')} per epoch, {most}{counted(training.epochs, 'epoch')}"
    method = settings.method + ("" if training.batches == OWN else f" with batches from {training.batches}")
    lines = [
        labelled("model", _model(settings.model)),
        labelled("training", f"{method} on {where}, batch size {training.batch_size:,}, {amount}"),
    ]
    return "\n".join(lines)


def _split(splits: Splits, data: DataSettings) -> str:
    descriptions = {
        "official": "official",
        "classes": f"a random half of the classes for training, the rest for testing (split_seed {data.split_seed})",
        "first-half": "the first half of the classes for training, the rest for testing",
        "all": "all data for training",
    }
    return descriptions[data.split or default_split(splits.train)]


def _model(model: ModelSettings) -> str:
    weights = {"": "", "none": " from scratch", "imagenet": " with ImageNet weights"}
    backbone = model.backbone
    if backbone != "linear":  # it has no weights
        backbone += f" from {model.init}" if model.init else weights.get(model.weights, " with your weights")
    if backbone.startswith(MODULE) and model.image_size:
        backbone += f", input size {model.image_size}×{model.image_size} (image_size)"
    embedding = f"{model.dim}-dimensional embedding" if model.dim else "no head"
    return f"{backbone}{', frozen' if model.freeze_backbone else ''}, {embedding}"
