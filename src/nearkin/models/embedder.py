"""What a user keeps: a trained model that turns pictures or vectors into embeddings, saved as two plain files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from safetensors.torch import load_file, save

from nearkin.data.arrays import array_items
from nearkin.data.images import to_rgb
from nearkin.data.items import ImageArray, ImageFiles, Items
from nearkin.data.transforms import make_transform
from nearkin.errors import UserError
from nearkin.files import write_bytes, write_json
from nearkin.models.embed import embed_items
from nearkin.models.model import EmbeddingModel, ModelSpec

FORMAT = 1
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
        """From a run folder or its ``model/`` folder alone."""
        folder = Path(path).expanduser()
        if (folder / "model" / "model.json").is_file():
            folder = folder / "model"
        if not (folder / "model.json").is_file():
            raise UserError(f"{path} holds no model (model.json is missing); give a run folder or its model/ folder")
        try:
            description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
            spec = ModelSpec.from_json(description["spec"])
            weights = load_file(folder / "model.safetensors")
        except Exception as error:
            raise UserError(f"the model in {folder} cannot be read ({error}); it may be incomplete") from error
        if description["format"] > FORMAT:
            raise UserError(f"the model in {folder} was saved by a newer nearkin; upgrade nearkin to read it")
        model = EmbeddingModel(spec)
        model.load_state_dict(weights)
        return cls(model)

    def save(self, folder: Path) -> None:
        """Writes ``model.safetensors`` and ``model.json``, each whole or not at all."""
        weights = {name: tensor.contiguous() for name, tensor in self.model.state_dict().items()}
        write_bytes(folder / "model.safetensors", save(weights))
        write_json(folder / "model.json", {"format": FORMAT, "spec": self.model.spec.to_json()})

    def encode(self, data: Encodable, batch_size: int = 256, workers: int | None = None) -> npt.NDArray[np.float32]:
        """Embeddings (items, dim) float32, in the order given.

        Args:
            data: paths, Pillow images, an array (n, h, w[, 3]) uint8 of images, or (n, features) of vectors.
        """
        embeddings = embed_items(self.model, self._items(data), self.model.spec.preprocess, batch_size, workers)
        return np.asarray(embeddings.numpy(), dtype=np.float32)

    def to(self, device: str | torch.device) -> Embedder:
        self.model.to(device)
        return self

    def _items(self, data: Encodable) -> Items:
        if isinstance(data, str | Path | Image.Image):
            raise UserError("encode takes a list of items; put the single one in brackets: encode([item])")
        if len(data) == 0:
            raise UserError("there is nothing to encode: the input is empty")
        reads_vectors = self.model.spec.preprocess is None
        if isinstance(data, np.ndarray):
            return array_items(None if reads_vectors else data, data if reads_vectors else None, "encode")
        if reads_vectors:
            raise UserError("this model reads feature vectors; give an array of shape (n, features)")
        pictures = [picture for picture in data if isinstance(picture, Image.Image)]
        paths = [Path(path) for path in data if isinstance(path, str | Path)]
        if len(paths) == len(data):
            return ImageFiles(paths)
        if len(pictures) == len(data):
            return self._pictures(pictures)
        raise UserError("encode takes either paths or Pillow images in one call, not both or anything else")

    def _pictures(self, pictures: list[Image.Image]) -> ImageArray:
        preprocess = self.model.spec.preprocess
        assert preprocess is not None
        transform = make_transform(preprocess)
        pixels = torch.stack([transform(to_rgb(picture)) for picture in pictures]).permute(0, 2, 3, 1).numpy()
        return ImageArray(pixels[..., 0] if preprocess.channels == 1 else pixels)
