"""What a user keeps: a trained model that turns pictures or vectors into embeddings, saved as two plain files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from safetensors.torch import load_file, save
from torch import Tensor

from nearkin.data.arrays import array_items
from nearkin.data.images import to_rgb
from nearkin.data.items import ImageFiles, Items
from nearkin.data.loader import input_batches, sequential
from nearkin.data.transforms import Preprocess, Transform, make_transform
from nearkin.errors import UserError
from nearkin.fields import checked_fields
from nearkin.files import write_bytes, write_json
from nearkin.models.backbones import is_builtin, load_timm
from nearkin.models.embed import apply, device_of
from nearkin.models.googlenet import GOOGLENET
from nearkin.models.model import EmbeddingModel, ModelSpec
from nearkin.progress import track

FORMAT = 1
LARGEST_SIDE = 4096  # of the square a model reads; what a damaged or hostile file asks for is not even tried
LARGEST_TRIED = 640  # the side up to which a network is tried on a picture before it is trusted
Picture = str | Path | Image.Image
Encodable = Sequence[Picture] | npt.NDArray[np.generic]


class Embedder:
    """A model ready to use: ``encode`` pictures, paths or arrays.

    >>> embedder = Embedder(EmbeddingModel(ModelSpec("linear", dim=2, features=3)))
    >>> embedder.encode(np.ones((4, 3), dtype=np.float32)).shape
    (4, 2)
    """

    def __init__(self, model: EmbeddingModel) -> None:
        self.model = model.eval()

    @classmethod
    def load(cls, path: str | Path) -> Embedder:
        """From a run folder or its ``model/`` folder alone, which may come from anyone: it is data, never code.

        Nothing in it is executed, nothing is downloaded, and what does not fit together is refused.
        """
        folder = Path(path).expanduser()
        if (folder / "model" / "model.json").is_file():
            folder = folder / "model"
        if not (folder / "model.json").is_file():
            raise UserError(f"{path} holds no model (model.json is missing); give a run folder or its model/ folder")
        try:
            return cls(_read_model(folder))
        except UserError as error:
            raise UserError(f"the model in {folder} cannot be used: {' '.join(str(error).split())}") from error
        # Damaged files make JSON, safetensors, torch and timm raise nearly anything; for the user it is one thing.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".split("\n")[0]
            raise UserError(f"the model in {folder} cannot be read ({reason}); copy the whole folder again") from error

    def save(self, folder: Path) -> None:
        """Writes ``model.safetensors`` and ``model.json``, each whole or not at all."""
        weights = {name: tensor.contiguous() for name, tensor in self.model.state_dict().items()}
        write_bytes(folder / "model.safetensors", save(weights))
        write_json(folder / "model.json", {"format": FORMAT, "spec": self.model.spec.to_json()})

    def encode(
        self, data: Encodable, batch_size: int = 256, workers: int | None = None, progress: bool = True
    ) -> npt.NDArray[np.float32]:
        """Embeddings (items, dim) float32, in the order given, computed on the device where the model is.

        They have unit length, unless the model was trained without (``model.spec.normalize == "never"``).

        Args:
            data: paths, Pillow images (of any sizes), an array (n, h, w[, 3]) uint8 of images, or (n, features) of
                vectors. Of Pillow images only ``batch_size`` are prepared at once, and each is asked for when it is
                needed: the sequence may open them on demand.
            workers: processes that read paths; None: as many as there are cores, up to 16.
            progress: whether a bar with the time left is shown.
        """
        if batch_size < 1 or (workers or 0) < 0:
            raise UserError(f"batch_size ({batch_size}) must be positive and workers ({workers}) not negative")
        batches = self._batches(data, batch_size, workers)
        count = len(data)
        embeddings = np.empty((count, self.model.spec.dim), dtype=np.float32)
        device = device_of(self.model)
        self.model.eval()
        done = 0
        with torch.no_grad():
            for inputs in track(batches, "embedding", math.ceil(count / batch_size)) if progress else batches:
                embeddings[done : done + len(inputs)] = apply(self.model, inputs, device).numpy()
                done += len(inputs)
        return embeddings

    def to(self, device: str | torch.device) -> Embedder:
        self.model.to(device)
        return self

    def _batches(self, data: Encodable, batch_size: int, workers: int | None) -> Iterator[Tensor]:
        if isinstance(data, str | Path | Image.Image) or not hasattr(data, "__len__"):
            raise UserError("encode takes a list of items: encode([item]) for one, encode(list(items)) for an iterator")
        if np.size(data) == 0 if isinstance(data, np.ndarray) else len(data) == 0:
            raise UserError("there is nothing to encode: the input is empty")
        preprocess = self.model.spec.preprocess
        items: Items
        if isinstance(data, np.ndarray):
            items = array_items(None if preprocess is None else data, data if preprocess is None else None, "encode")
        elif preprocess is None:
            raise UserError("this model reads feature vectors; give an array of shape (n, features)")
        elif isinstance(data[0], Image.Image):
            return _picture_batches(data, make_transform(preprocess), batch_size)
        else:
            items = ImageFiles([_path(item) for item in data])
            if len(items) <= batch_size and workers is None:
                workers = 0  # one batch is one worker's work: not worth a process
        return input_batches(items, preprocess, sequential(len(items), batch_size), workers=workers)


def _picture_batches(pictures: Sequence[Any], transform: Transform, batch_size: int) -> Iterator[Tensor]:
    for start in range(0, len(pictures), batch_size):
        places = range(start, min(start + batch_size, len(pictures)))
        yield torch.stack([_square(pictures[place], place, transform) for place in places])


def _square(picture: Any, place: int, transform: Transform) -> Tensor:
    if not isinstance(picture, Image.Image):
        raise _of_another_kind(picture)
    try:
        return transform(to_rgb(picture))
    except Exception as error:  # an image that was opened but not yet read may turn out to be damaged
        raise UserError(f"picture {place} cannot be decoded ({error}); mend it or leave it out") from error


def _path(item: Any) -> Path:
    if not isinstance(item, str | Path):
        raise _of_another_kind(item)
    return Path(item)


def _of_another_kind(item: Any) -> UserError:
    return UserError(f"encode takes either paths or Pillow images in one call, not also {type(item).__name__}")


def _read_model(folder: Path) -> EmbeddingModel:
    description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    if description["format"] > FORMAT:
        raise UserError("it was saved by a newer nearkin; upgrade nearkin to read it")
    spec = _checked_spec(description["spec"])
    weights = load_file(folder / "model.safetensors")
    width = _check_weights(spec, weights)
    # Built anew: tables that a network keeps beside its weights are in no file.
    model = EmbeddingModel(spec, width=width if _too_large_to_try(spec) else None)
    model.load_state_dict(weights)
    return model


def _check_weights(spec: ModelSpec, weights: Mapping[str, Tensor]) -> int:
    """The width of the backbone's features, if the weights are those of such a model in all their shapes.

    Nothing is allocated for that: a description alone could ask for more memory and time than there is.
    """
    inputs = spec.features if spec.preprocess is None else spec.preprocess.channels
    learners = 0 if spec.head == "none" else min(spec.slices, len(weights) + 1)
    heads = [f"head.project.{learner}.weight" for learner in range(learners)]
    lengths = {"standardise.mean": inputs} | dict.fromkeys(heads, spec.dim // spec.slices)
    _check_fit([name for name, length in lengths.items() if _shape(weights, name)[:1] != (length,)])
    width = weights[heads[0]].shape[-1] if heads else spec.dim
    if not is_builtin(spec.backbone):
        load_timm()  # not first where no tensor has values: its constants would stay without
    with torch.device("meta"):
        # Without a head no tensor tells the width; a picture without values finds it in no time.
        unknown = not heads and _too_large_to_try(spec)
        wanted = EmbeddingModel(spec, width=None if unknown else width).state_dict()
    names = sorted({*wanted, *weights})
    _check_fit([name for name in names if _shape(weights, name) != _shape(wanted, name)])
    return width


def _too_large_to_try(spec: ModelSpec) -> bool:
    return spec.preprocess is not None and spec.preprocess.size > LARGEST_TRIED


def _shape(tensors: Mapping[str, Tensor], name: str) -> tuple[int, ...] | str:
    return tuple(tensors[name].shape) if name in tensors else "absent"


def _check_fit(misfits: list[str]) -> None:
    if misfits:
        raise UserError(
            f"its weights are not those of its description ({len(misfits)} tensors are missing, unknown or of another "
            f"shape, the first '{misfits[0]}'); copy model.json and model.safetensors of one and the same model"
        )


def _checked_spec(values: dict[str, Any]) -> ModelSpec:
    """A description from anywhere: every key known, every value of its type and in its range."""
    spec = ModelSpec.from_json(values)
    checked_fields(ModelSpec, {name: value for name, value in vars(spec).items() if name != "preprocess"}, "model.json")
    if spec.dim < 1:
        raise UserError(f"an embedding needs at least one dimension, not {spec.dim}")
    # timm would look elsewhere for names such as hf-hub:someone/model or local-dir:folder.
    if spec.backbone != GOOGLENET and not re.fullmatch(r"[A-Za-z0-9_.-]+", spec.backbone):
        raise UserError(f"backbone '{spec.backbone}' is no plain name of a network; nothing is fetched from elsewhere")
    if spec.preprocess is not None:
        _check_preprocess(spec.preprocess, (1, 3) if is_builtin(spec.backbone) else (3,))
    return spec


def _check_preprocess(found: Preprocess, channels: tuple[int, ...]) -> None:
    plain = {name: value for name, value in vars(found).items() if name not in ("mean", "std")}
    checked_fields(Preprocess, plain, "model.json")
    sides = 1 <= found.size <= LARGEST_SIDE and 1 <= found.resize <= LARGEST_SIDE
    colours = found.channels in channels and len(found.mean) == len(found.std) == found.channels
    if not (sides and colours and all(map(math.isfinite, found.mean)) and all(0 < each < 1e6 for each in found.std)):
        raise UserError("model.json: preprocess describes no picture that a network could read")
    make_transform(found)  # refuses an interpolation that does not exist
