"""The settings of a run: four sections, saved as TOML; every key and type is checked on reading."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from nearkin.data.transforms import AUGMENTATIONS
from nearkin.errors import UserError, unknown_name
from nearkin.fields import checked_fields
from nearkin.files import read_toml
from nearkin.methods import Method, make_method, method_class, with_batches

HEAD_INIT = ("svd", "random", "init")


@dataclass(frozen=True)
class DataSettings:
    """The data of a run.

    Attributes:
        source: a folder, a .csv or .npz file, or a dataset name.
        root: folder that contains the benchmark datasets.
        split: how to split the data: official, classes (random halves), first-half or all (no test split); empty:
            official if there is an official split, else classes.
        split_seed: random seed of the split "classes"; it does not depend on the training seed.
        validation: fraction of the training classes held out to choose the best epoch; 0: none; -1: 0.1, or up to 0.2
            if there are few classes, unless there is a validation split or ``keep`` does not need one.
        collapse_pairs: merge random pairs of classes into one for training; the test split keeps its classes.
        augment: none, crop-flip, rescaled-crop-flip or resized-crop-flip; empty: crop-flip for files, none for arrays.
        unreadable: what to do with images that cannot be decoded: skip or stop.
        check_counts: whether to require a benchmark dataset to be complete.
        workers: number of processes that decode images; -1: the number of cores, up to 16.
        keep_decoded: decode every image file once and keep all of them in device memory, cropped to squares.
    """

    source: str
    root: str = ""
    split: str = ""
    split_seed: int = 0
    validation: float = -1.0
    collapse_pairs: bool = False
    augment: str = ""
    unreadable: str = "skip"
    check_counts: bool = True
    workers: int = -1
    keep_decoded: bool = False

    def __post_init__(self) -> None:
        if self.augment not in ("", *AUGMENTATIONS):
            raise unknown_name("augment", self.augment, AUGMENTATIONS)
        if self.split_seed < 0:
            raise UserError(f"split_seed must be an integer >= 0, got {self.split_seed}")
        if self.workers < -1:
            raise UserError(f"workers must be an integer >= 0, or -1 for the number of cores, got {self.workers}")
        if self.keep_decoded and self.augment not in ("", "none", "crop-flip"):
            raise UserError(f"keep_decoded needs crop-flip or no augmentation; leave it out for {self.augment}")

    @property
    def processes(self) -> int | None:
        """``workers`` as loaders take it: None for the number of cores."""
        return None if self.workers < 0 else self.workers


@dataclass(frozen=True)
class ModelSettings:
    """The model of a run.

    Attributes:
        backbone: small, mlp, linear, torchvision:googlenet or any timm model; empty: depends on the data. Your own
            module is called ``module:`` and the name of its class.
        weights: backbone weights: imagenet, none or a file; empty: imagenet for timm, none for the built-in ones; own:
            those of your own module.
        init: trained model to start from: a run folder or a model folder; empty: none.
        dim: embedding dimension; 0: no head, the embedding is the backbone's features; -1: 512 for a pretrained
            backbone (or its number of features, with fewer than 2,048 training items), else 128.
        head_init: initialisation of the head: svd (of the training features), random, or init (the head of ``init``);
            empty: svd for a pretrained backbone, else random.
        normalize: whether embeddings have unit length: always, test (not in training) or never; empty: as in the
            method's paper, but not "never" for a pretrained backbone.
        image_size: input size of the network in pixels; 0: the backbone's own.
        freeze_backbone: train only the head, on features that are computed once.
        freeze_batch_norm: keep the batch norm statistics of the weights; None: only for a pretrained backbone.
    """

    backbone: str = ""
    weights: str = ""
    init: str = ""
    dim: int = -1
    head_init: str = ""
    normalize: str = ""
    image_size: int = 0
    freeze_backbone: bool = False
    freeze_batch_norm: bool | None = None

    def __post_init__(self) -> None:
        if self.dim < -1:
            raise UserError(f"dim must be an integer >= 0, or -1 for the default, got {self.dim}")
        if self.image_size < 0:
            raise UserError(f"image_size must be an integer >= 0, got {self.image_size}")
        if self.head_init not in ("", *HEAD_INIT):
            raise unknown_name("head_init", self.head_init, HEAD_INIT)


@dataclass(frozen=True)
class TrainingSettings:
    """The training of a run.

    Attributes:
        epochs: number of epochs; -1: 10 to 100, so that training sees about 100,000 items; 10 for a pretrained
            backbone without validation classes.
        batch_size: batch size, over all devices; 0: the method's, or the largest that the data allow.
        batches: how batches are drawn: own (as the method does), groups (k classes × n items), neighbourhoods (a class
            and its nearest classes, n items of each) or clusters (as own, but from one cluster of the space at a time).
        batch_refresh_epochs: epochs between two refreshes of neighbourhoods or clusters.
        batch_hard_share: share of the classes in a neighbourhood, besides the first, that are nearest to it; the rest
            are random.
        batch_clusters: number of clusters that batches are drawn from.
        micro_batch: items to embed at a time on a device; the gradient is that of the whole batch; 0: all of them.
        optimizer: adam, adamw, sgd or rmsprop.
        learning_rate: learning rate of the head (and of everything, if the next two are 0); 0: the method's for a
            pretrained backbone, else 1e-3.
        backbone_learning_rate: learning rate of the backbone; 0: a tenth of the head's if it is pretrained, else the
            same.
        loss_learning_rate: learning rate of the loss's own parameters; 0: the head's.
        momentum: momentum of sgd and rmsprop.
        weight_decay: weight decay of the optimizer.
        schedule: learning rate schedule: constant, cosine, linear or step.
        warmup_steps: number of warm-up steps; -1: a twentieth of all steps for a pretrained backbone, else none.
        decay_every, decay_factor: epochs and factor of the step schedule.
        clip_norm: largest gradient norm; 0: no clipping.
        evaluate_every: epochs between evaluations; 0: only at the end; -1: about 20 evaluations in all.
        keep: model to keep: last, best-on-validation or best-on-test (optimistic, but common in papers).
        patience: evaluations without improvement before training stops; 0: never stop early; -1: 5 if the model is
            chosen on validation classes.
        stop_after: epoch to stop after, without changing the schedule; 0: train for all epochs.
        checkpoint_steps: steps between checkpoints; 0: one per epoch.
        logger: loggers, separated by commas: tensorboard, csv, wandb, mlflow; or none.
        device: auto, cpu or cuda.
        precision: 32-true or bf16-mixed; empty: bf16-mixed on CUDA.
        compile: whether to use torch.compile: on, off or auto (on CUDA, if training is long enough to gain from it).
        seed: random seed.
    """

    epochs: int = -1
    batch_size: int = 0
    batches: str = "own"
    batch_refresh_epochs: int = 2
    batch_hard_share: float = 0.5
    batch_clusters: int = 4
    micro_batch: int = 0
    optimizer: str = "adamw"
    learning_rate: float = 0.0
    backbone_learning_rate: float = 0.0
    loss_learning_rate: float = 0.0
    momentum: float = 0.9
    weight_decay: float = 1e-4
    schedule: str = "cosine"
    warmup_steps: int = -1
    decay_every: int = 10
    decay_factor: float = 0.1
    clip_norm: float = 0.0
    evaluate_every: int = -1
    keep: str = ""
    patience: int = -1
    stop_after: int = 0
    checkpoint_steps: int = 0
    logger: str = "tensorboard"
    device: str = "auto"
    precision: str = ""
    compile: str = "auto"
    seed: int = 0


@dataclass(frozen=True)
class Settings:
    """All settings needed to repeat a run."""

    data: DataSettings
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    method: str = "rank"
    method_settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        never_chosen = self.training.keep in ("last", "best-on-test") or not self.training.evaluate_every
        if self.data.validation < 0 and never_chosen:  # nothing would use held-out classes
            object.__setattr__(self, "data", replace(self.data, validation=0.0))

    @classmethod
    def read(cls, file: str | Path) -> Settings:
        """Reads a TOML file such as a run's ``config.toml``."""
        try:
            tables = read_toml(Path(file))
        except FileNotFoundError:
            raise UserError(f"settings file {file} does not exist; use the config.toml of a run") from None
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"{file} cannot be read ({reason}); use the config.toml of a run") from error
        return cls.from_tables(tables, str(file))

    @classmethod
    def from_tables(cls, tables: dict[str, Any], where: str = "") -> Settings:
        """Checks and converts the content of a settings file, or the same tables made by hand."""
        origin = where or "settings"
        sections = ("data", "model", "method", "training")
        for section, table in tables.items():
            if section not in sections:
                raise unknown_name(f"{origin}: section", section, sections)
            if not isinstance(table, dict):
                raise UserError(f"{origin}: [{section}] must be a table of settings")
        if "source" not in tables.get("data", {}):
            raise UserError(
                f"{origin}: data.source is missing; set it to a folder, a .csv or .npz file, or a dataset name"
            )
        method = dict(tables.get("method", {}))
        return cls(
            data=DataSettings(**checked_fields(DataSettings, tables["data"], where)),
            model=ModelSettings(**checked_fields(ModelSettings, tables.get("model", {}), where)),
            training=TrainingSettings(**checked_fields(TrainingSettings, tables.get("training", {}), where)),
            method=method.pop("name", "rank"),
            method_settings=method,
        )

    def make_method(self, given: Method | None = None) -> Method:
        """The method, with the batches of these settings; ``given``: an object that the settings cannot describe."""
        method, chosen = given or make_method(self.method, **self.method_settings), self.training
        own = (chosen.batch_refresh_epochs, chosen.batch_hard_share, chosen.batch_clusters)
        return with_batches(method, chosen.batches, *own)

    def to_tables(self) -> dict[str, dict[str, Any]]:
        return {
            "data": dict(vars(self.data)),
            "model": dict(vars(self.model)),
            "method": {"name": self.method, **self.method_settings},
            "training": dict(vars(self.training)),
        }

    def to_toml(self) -> str:
        blocks = (
            f"[{section}]\n"
            # TOML has no null: None is left out.
            + "".join(f"{name} = {_toml(value)}\n" for name, value in table.items() if value is not None)
            for section, table in self.to_tables().items()
        )
        return "\n".join([*self._objects_in_words(), *blocks])

    @property
    def objects(self) -> list[str]:
        """The keywords of objects that the settings cannot describe; the user must pass them again."""
        given = {"data": self.data.source.startswith("<"), "backbone": self.model.backbone.startswith("module:")}
        given |= {"loss": self.method == "loss"}
        return [name for name, is_object in given.items() if is_object]

    def _objects_in_words(self) -> list[str]:
        """A comment that says which objects to pass again, and how."""
        names = self.objects
        if not names:
            return []
        again = "".join(f", {name}=..." for name in names)
        measured = "".join(f", {name}=..." for name in names if name != "loss")
        return [
            f"# {' and '.join(names)}: Python objects, which are not saved here. Pass the same ones again:\n"
            f"# nearkin.resume(run{again}), nearkin.evaluate(run{measured}), nearkin.train(config=...{again})\n"
        ]

    def changed(self, **sections: dict[str, Any]) -> Settings:
        """A copy with some settings replaced: ``settings.changed(training={"epochs": 3})``."""
        tables = self.to_tables()
        return Settings.from_tables({name: table | sections.get(name, {}) for name, table in tables.items()})


def make_settings(data: str | Path, method: str, settings: dict[str, Any]) -> Settings:
    """Makes the settings of a run from flat keyword settings.

    >>> make_settings("glyphs", "rank", {"epochs": 3}).training.epochs
    3
    """
    tables = by_section(method, {"source": str(data), **settings})
    tables.setdefault("method", {})["name"] = method
    return Settings.from_tables(tables)


def by_section(method: str | type[Method], values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Sorts flat settings into their sections; no two sections share a name.

    Args:
        method: name of a method, or its class if it is not registered.

    >>> by_section("rank", {"epochs": 3, "alpha": 2.0, "source": "glyphs"})
    {'training': {'epochs': 3}, 'method': {'alpha': 2.0}, 'data': {'source': 'glyphs'}}
    """
    kinds = {
        "data": DataSettings,
        "model": ModelSettings,
        "method": method_class(method) if isinstance(method, str) else method,
        "training": TrainingSettings,
    }
    section_of = {entry.name: section for section, kind in kinds.items() for entry in fields(kind)}
    tables: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name not in section_of:
            raise unknown_name("setting", name, section_of)
        if name == "epochs" and value == TrainingSettings.epochs:
            raise UserError(f"epochs must be an integer >= 0, got {value}; leave it out for the default")
        tables.setdefault(section_of[name], {})[name] = value
    return tables


def knows(method: str | type[Method], setting: str) -> bool:
    """Whether a run of the method has this setting.

    >>> knows("triplet", "margin"), knows("rank", "margin")
    (True, False)
    """
    try:
        by_section(method, {setting: None})
    except UserError:
        return False
    return True


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # JSON strings and numbers are valid TOML, except for the character U+007F.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
