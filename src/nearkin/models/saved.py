"""Saves and reads models: a folder with a safetensors file and a JSON file.

The files may come from an untrusted source: no code in them is executed, nothing is downloaded, and files that do not
match are refused before they take time or memory.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from nearkin.data.transforms import Preprocess, make_transform
from nearkin.errors import UserError
from nearkin.fields import checked_fields
from nearkin.files import check_regular, read_json, sweep, write_bytes, write_json
from nearkin.models.backbones import find_backbone, known_backbones
from nearkin.models.backbones.own import MODULE
from nearkin.models.model import EmbeddingModel, ModelSpec

FORMAT = 1
LARGEST_SIDE = 4096  # pixels; a damaged or hostile file may claim any input size
LARGEST_TRIED = 640  # pixels; with a larger input, a forward pass to find the width takes too long


def save_model(model: EmbeddingModel, folder: str | Path) -> None:
    """Writes ``model.safetensors`` and ``model.json``, each atomically."""
    folder = Path(folder).expanduser()
    sweep(folder)
    write_tensors(folder / "model.safetensors", model.state_dict())
    write_json(folder / "model.json", {"format": FORMAT, "spec": model.spec.to_json()})


def read_model(path: str | Path, backbone: nn.Module | None = None) -> EmbeddingModel:
    """Reads the model of a run folder, or of its ``model/`` folder.

    ``backbone``: for a model with the user's own module as its backbone, an instance of that module, for the weights.
    """
    folder = _model_folder(path)
    try:
        return _read_model(folder, backbone)
    except UserError as error:
        raise UserError(f"the model in {folder} cannot be used: {' '.join(str(error).split())}") from error
    # With damaged files, JSON, safetensors, torch and timm may raise almost anything.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise UserError(f"the model in {folder} cannot be read ({reason}); copy the whole folder again") from error


def restore_weights(model: EmbeddingModel, folder: Path) -> None:
    """Loads the weights of a model folder into a model with the same spec."""
    try:
        _load(model, saved_weights(folder))
    except UserError as error:
        raise UserError(f"the model in {folder} cannot be used: {error}") from error


def saved_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of a model folder, memory-mapped: a huge file takes no memory until it is used."""
    return read_tensors(_file(folder, "model.safetensors"))


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes a safetensors file atomically."""
    write_bytes(file, save({name: tensor.contiguous() for name, tensor in tensors.items()}))


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, memory-mapped."""
    try:
        return load_file(check_regular(file, follow=False))
    except Exception as error:  # safetensors and torch raise many kinds of errors
        reason = str(error).split("\n")[0]
        raise UserError(f"{file.name} cannot be read ({reason}); copy the whole folder again") from error


def read_spec(path: str | Path) -> ModelSpec:
    """Reads the spec of a run's or model's folder, without the weights."""
    folder = _model_folder(path)
    try:
        return ModelSpec.from_json(read_json(_file(folder, "model.json"))["spec"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"the model in {folder} cannot be read ({error}); copy the whole folder again") from error


def _model_folder(path: str | Path) -> Path:
    folder = Path(path).expanduser()
    for each in (folder / "model", folder):
        if os.path.lexists(each / "model.json"):
            if each != folder and each.is_symlink():
                raise UserError(
                    f"{each} is a symbolic link, which nearkin does not follow; use the folder it points to"
                )
            return each
    if not folder.exists():
        raise UserError(f"{path} does not exist; use a run folder, its model/ folder or the name of a network")
    runs = sorted(each.parent for each in folder.glob("*/config.toml"))
    example = f", such as {runs[0]}" if runs else ""
    raise UserError(f"{path} has no model (model.json is missing); use a run folder or its model/ folder{example}")


def _file(folder: Path, name: str) -> Path:
    """A model file. Links are not followed, except in the Hugging Face cache, where every file links to a blob."""
    target = Path(os.path.realpath(folder / name))
    blobs = [place.parent / "blobs" for place in folder.resolve().parents if place.name == "snapshots"]
    return target if target.parent in blobs else folder / name


def _read_model(folder: Path, backbone: nn.Module | None) -> EmbeddingModel:
    description = read_json(_file(folder, "model.json"))
    if not isinstance(description["format"], int):
        raise UserError("format in model.json is not an integer; copy the whole folder again")
    if description["format"] > FORMAT:
        raise UserError("it was saved by a newer version of nearkin; upgrade nearkin")
    spec = _checked_spec(description["spec"], backbone)
    weights = saved_weights(folder)
    width = _check_head(spec, weights)
    if backbone is None:
        with torch.device("meta"):
            # Without a head, no tensor has the width; a forward pass on the meta device finds it and costs nothing.
            unknown = spec.head == "none" and _too_large_to_try(spec)
            _check_match(EmbeddingModel(spec, width=None if unknown else width), weights)
    # Built again on a real device: non-persistent buffers are not in the file.
    model = EmbeddingModel(spec, width=width if _too_large_to_try(spec) else None, backbone=backbone)
    _load(model, weights)
    return model


def _load(model: EmbeddingModel, weights: Mapping[str, Tensor]) -> None:
    _check_match(model, weights)
    if broken := [name for name, tensor in weights.items() if not tensor.isfinite().all()]:
        raise UserError(f"its weights contain NaN or infinity, first in '{broken[0]}'; train it again")
    model.load_state_dict(weights)


def _check_head(spec: ModelSpec, weights: Mapping[str, Tensor]) -> int:
    """Checks that the weights of the head match the spec; returns the width of the backbone's features.

    No memory is allocated, because a hostile spec could claim any size.
    """
    inputs = spec.features if spec.preprocess is None else spec.preprocess.channels
    learners = 0 if spec.head == "none" else min(spec.slices, len(weights) + 1)
    heads = [f"head.project.{learner}.weight" for learner in range(learners)]
    lengths = {"standardise.mean": inputs} | dict.fromkeys(heads, spec.dim // spec.slices)
    _refuse([name for name, length in lengths.items() if _shape(weights, name)[:1] != (length,)])
    return weights[heads[0]].shape[-1] if heads else spec.dim


def _check_match(model: EmbeddingModel, weights: Mapping[str, Tensor]) -> None:
    expected = model.state_dict()
    _refuse([name for name in sorted({*expected, *weights}) if _shape(weights, name) != _shape(expected, name)])


def _too_large_to_try(spec: ModelSpec) -> bool:
    return spec.preprocess is not None and spec.preprocess.size > LARGEST_TRIED


def _shape(tensors: Mapping[str, Tensor], name: str) -> tuple[int, ...] | str:
    return tuple(tensors[name].shape) if name in tensors else "absent"


def _refuse(misfits: list[str]) -> None:
    if misfits:
        raise UserError(
            f"model.safetensors does not match model.json ({len(misfits)} tensors are missing, unknown or have another "
            f"shape, first '{misfits[0]}'); copy both files from the same model"
        )


def _checked_spec(values: dict[str, Any], backbone: nn.Module | None) -> ModelSpec:
    """The spec in model.json, after checking the name, type and range of every value."""
    spec = ModelSpec.from_json(values)
    checked_fields(ModelSpec, {name: value for name, value in vars(spec).items() if name != "preprocess"}, "model.json")
    if spec.dim < 1:
        raise UserError(f"dim must be an integer >= 1, got {spec.dim}")
    own = re.fullmatch(rf"{MODULE}[\w.]+", spec.backbone)
    # timm would download or read other names, such as hf-hub:someone/model or local-dir:folder.
    if not own and spec.backbone not in known_backbones() and not re.fullmatch(r"[A-Za-z0-9_.-]+", spec.backbone):
        raise UserError(f"backbone {spec.backbone!r} is not the name of a network in nearkin, timm or torchvision")
    if backbone is not None and not own:
        raise UserError(f"its backbone '{spec.backbone}' is not your own module; leave out backbone")
    kind = find_backbone(spec.backbone if backbone is None else backbone)
    if spec.preprocess is not None:
        _check_preprocess(spec.preprocess, (1, 3) if kind.grey else (3,))
    return spec


def _check_preprocess(found: Preprocess, channels: tuple[int, ...]) -> None:
    plain = {name: value for name, value in vars(found).items() if name not in ("mean", "std")}
    checked_fields(Preprocess, plain, "model.json")
    sides = 1 <= found.size <= LARGEST_SIDE and 1 <= found.resize <= LARGEST_SIDE
    colours = found.channels in channels and len(found.mean) == len(found.std) == found.channels
    if not (sides and colours and all(map(math.isfinite, found.mean)) and all(0 < each < 1e6 for each in found.std)):
        raise UserError("preprocess in model.json does not describe a valid network input")
    make_transform(found)  # checks the interpolation
