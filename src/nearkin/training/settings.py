"""The settings of a run: four sections, written as TOML, read back with every key and type checked."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from nearkin.data.transforms import AUGMENTATIONS
from nearkin.errors import UserError, unknown_name
from nearkin.fields import checked_fields
from nearkin.files import read_toml
from nearkin.methods import Method, make_method, method_class

HEAD_INIT = ("svd", "random", "init")


@dataclass(frozen=True)
class DataSettings:
    """What is trained on.

    Attributes:
        source: a folder, .csv, .npz, or a dataset's name.
        root: where to look for a benchmark.
        split: official, classes (half of them at random), first-half or all; empty: official where there is one, else
            classes.
        split_seed: which classes "classes" draws; the training seed does not change them.
        validation: share of the training classes held out to choose the model; -1: a tenth (a fifth of few classes),
            unless there is a validation split already or ``keep`` does not ask for one.
        collapse_pairs: train on random pairs of classes as one class each; the test split keeps its classes.
        augment: none, crop-flip or resized-crop-flip; empty: crop-flip for files, none for arrays.
        unreadable: skip or stop.
        check_counts: whether a benchmark must be complete.
        workers: processes that decode images; -1: as many as there are cores, up to 16.
        keep_decoded: decode every image file once and hold all of them in the device's memory, cut to squares.
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
            raise UserError(f"split_seed must be 0 or more, not {self.split_seed}")
        if self.workers < -1:
            raise UserError(f"workers must be 0 or more, or -1 for as many as there are cores, not {self.workers}")
        if self.keep_decoded and self.augment not in ("", "none", "crop-flip"):
            raise UserError(f"decoded images are cut with crop-flip or none; leave keep_decoded out for {self.augment}")

    @property
    def processes(self) -> int | None:
        """``workers`` as loaders take it: None for as many as there are cores."""
        return None if self.workers < 0 else self.workers


@dataclass(frozen=True)
class ModelSettings:
    """What is trained.

    Attributes:
        backbone: small, mlp, linear, torchvision:googlenet, or any name of timm; empty: by the kind of data. A module
            of the user's own is named ``module:`` and its class.
        weights: imagenet, none or a file; empty: imagenet for timm, none for the built-in ones; own: those that a
            module of the user's comes with.
        init: a run or model folder whose weights are the start; empty: none.
        dim: length of the embedding; 0: the backbone's features as they are, without a head; -1: for a pretrained
            backbone 512, or as many as it has features where the training items are fewer than 2,048; otherwise 128.
        head_init: svd (the main directions of the training features), random, or init (the head of ``init``); empty:
            svd for a pretrained backbone.
        normalize: always, test or never; empty: as the method's paper does, but never
            without on a pretrained backbone.
        image_size: side of the network's input; 0: the backbone's own.
        freeze_backbone: train the head alone, on features computed once.
        freeze_batch_norm: keep batch norm's statistics as they come with the weights; None: for a pretrained backbone.
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
        if self.dim < -1 or self.image_size < 0:
            raise UserError(
                f"dim ({self.dim}) and image_size ({self.image_size}) must be positive, or 0: for dim, no head"
            )
        if self.head_init not in ("", *HEAD_INIT):
            raise unknown_name("head_init", self.head_init, HEAD_INIT)


@dataclass(frozen=True)
class TrainingSettings:
    """How it is trained.

    Attributes:
        epochs: passes over the data; -1: 10 to 100, as many as make 100,000 items in all; 10 where no classes
            are held out on a pretrained backbone.
        batch_size: items in a global batch, over all devices; 0: the method's usual number, or as many as the data
            can fill.
        micro_batch: items embedded at once on a device; the gradient is that of the whole batch; 0: all of them.
        optimizer: adam, adamw, sgd or rmsprop.
        learning_rate: for the head (and for everything where the next two are 0); 0: the method's for a pretrained
            backbone, otherwise 1e-3.
        backbone_learning_rate: for the backbone; 0: a tenth of the head's if it is pretrained, otherwise the same.
        loss_learning_rate: for what a loss itself learns; 0: the head's.
        momentum: of sgd and rmsprop.
        weight_decay: of the optimiser.
        schedule: constant, cosine, linear or step.
        warmup_steps: steps over which the rates rise from zero; -1: a twentieth of all for a pretrained backbone,
            otherwise none.
        decay_every, decay_factor: epochs and factor of the step schedule.
        clip_norm: largest gradient norm; 0: not clipped.
        evaluate_every: epochs between evaluations; 0: only at the end; -1: about 20 in all.
        keep: last, best-on-validation, or best-on-test (the papers' protocol: it chooses on what it reports).
        patience: evaluations without improvement after which training stops; 0: never; -1: 5 where the model is chosen
            on validation classes.
        stop_after: epochs after which training stops, with the rates as if it went on; 0: all of them.
        checkpoint_steps: steps between checkpoints; 0: one per epoch.
        logger: tensorboard, csv, wandb, mlflow, or several with commas between; none.
        device: auto, cpu or cuda.
        precision: 32-true or bf16-mixed; empty: bf16-mixed on CUDA.
        seed: random seed.
    """

    epochs: int = -1
    batch_size: int = 0
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
    seed: int = 0


@dataclass(frozen=True)
class Settings:
    """All that is needed to repeat a run."""

    data: DataSettings
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    method: str = "rank"
    method_settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        never_chosen = self.training.keep in ("last", "best-on-test") or not self.training.evaluate_every
        if self.data.validation < 0 and never_chosen:  # classes held out would serve nothing
            object.__setattr__(self, "data", replace(self.data, validation=0.0))

    @classmethod
    def read(cls, file: str | Path) -> Settings:
        """From a TOML file such as a run's ``config.toml``."""
        try:
            tables = read_toml(Path(file))
        except FileNotFoundError:
            raise UserError(f"there is no settings file {file}") from None
        except OSError as error:
            raise UserError(f"{file} cannot be read ({error.strerror or error}); give a settings file") from error
        return cls.from_tables(tables, str(file))

    @classmethod
    def from_tables(cls, tables: dict[str, Any], where: str = "settings") -> Settings:
        sections = ("data", "model", "method", "training")
        for section, table in tables.items():
            if section not in sections:
                raise unknown_name(f"{where}: section", section, sections)
            if not isinstance(table, dict):
                raise UserError(f"{where}: [{section}] must be a table of settings")
        if "source" not in tables.get("data", {}):
            raise UserError(f"{where}: no data given; name a folder, a .csv, a .npz or a dataset as data.source")
        method = dict(tables.get("method", {}))
        return cls(
            data=DataSettings(**checked_fields(DataSettings, tables["data"], where)),
            model=ModelSettings(**checked_fields(ModelSettings, tables.get("model", {}), where)),
            training=TrainingSettings(**checked_fields(TrainingSettings, tables.get("training", {}), where)),
            method=method.pop("name", "rank"),
            method_settings=method,
        )

    def make_method(self) -> Method:
        return make_method(self.method, **self.method_settings)

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
            # TOML has no word for what is left open.
            + "".join(f"{name} = {_toml(value)}\n" for name, value in table.items() if value is not None)
            for section, table in self.to_tables().items()
        )
        return "\n".join([*self._objects_in_words(), *blocks])

    @property
    def objects(self) -> list[str]:
        """The keywords of what was given as an object that no setting describes, to be passed again."""
        given = {"data": self.data.source.startswith("<"), "backbone": self.model.backbone.startswith("module:")}
        given |= {"loss": self.method == "loss"}
        return [name for name, is_object in given.items() if is_object]

    def _objects_in_words(self) -> list[str]:
        """A comment about these objects: what to pass again, and how."""
        names = self.objects
        if not names:
            return []
        again = "".join(f", {name}=..." for name in names)
        measured = "".join(f", {name}=..." for name in names if name != "loss")
        return [
            f"# {' and '.join(names)}: objects in Python, which no setting describes. Pass the same ones again:\n"
            f"# nearkin.resume(run{again}), nearkin.evaluate(run{measured}), nearkin.train(config=...{again})\n"
        ]

    def changed(self, **sections: dict[str, Any]) -> Settings:
        """A copy with some settings replaced: ``settings.changed(training={"epochs": 3})``."""
        tables = self.to_tables()
        return Settings.from_tables({name: table | sections.get(name, {}) for name, table in tables.items()})


def make_settings(data: str | Path, method: str, settings: dict[str, Any]) -> Settings:
    """The settings of a run from flat ones.

    >>> make_settings("glyphs", "rank", {"epochs": 3}).training.epochs
    3
    """
    tables = by_section(method, {"source": str(data), **settings})
    tables.setdefault("method", {})["name"] = method
    return Settings.from_tables(tables)


def by_section(method: str | type[Method], values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Flat settings sorted into their sections; no two sections share a name.

    Args:
        method: a method's name, or its class where it is not registered.

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
        tables.setdefault(section_of[name], {})[name] = value
    return tables


def knows(method: str | type[Method], setting: str) -> bool:
    """Whether there is such a setting in a run of the method.

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
    # JSON's strings and numbers are TOML's too, but for one letter.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
