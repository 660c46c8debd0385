"""`Embedder`: a trained model that turns images or vectors into embeddings."""

from __future__ import annotations

import math
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize as unit_length

from nearkin.errors import UserError
from nearkin.models.embed import apply
from nearkin.models.inputs import Encodable, read_inputs
from nearkin.models.model import EmbeddingModel, device_of, evaluating
from nearkin.models.saved import read_model, save_model
from nearkin.progress import track

if TYPE_CHECKING:
    from nearkin.models.onnx import Exported

Array = npt.NDArray[np.float32]


class Embedder:
    """A trained model: ``encode`` items, compare their embeddings, ``save`` or ``export`` it.

    >>> from nearkin.models import ModelSpec
    >>> embedder = Embedder(EmbeddingModel(ModelSpec("linear", dim=2, features=3)))
    >>> embedder
    Embedder(backbone='linear', input=(3,), dim=2, normalize='always', device='cpu')
    >>> embedder.encode([1.0, 2.0, 3.0]).shape, embedder.encode([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).shape
    ((2,), (2, 2))
    """

    def __init__(self, model: EmbeddingModel) -> None:
        self.model = model.eval()

    @classmethod
    def load(cls, path: str | Path, backbone: nn.Module | None = None) -> Embedder:
        """Loads a model. No code in the files is executed, so they may come from an untrusted source.

        Args:
            path: a run folder, or its ``model/`` folder.
            backbone: for a model with your own module as its backbone, an instance of that module. It gets the weights.
        """
        return cls(read_model(path, backbone))

    def save(self, folder: str | Path) -> None:
        """Writes ``model.safetensors`` and ``model.json`` for `nearkin.load`."""
        save_model(self.model, folder)

    @property
    def dim(self) -> int:
        """Length of the embeddings."""
        return self.model.spec.dim

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return device_of(self.model)

    def to(self, device: str | torch.device) -> Embedder:
        """Moves the model to a device, and returns this embedder."""
        self.model.to(device)
        return self

    @overload
    def encode(
        self,
        items: Encodable,
        batch_size: int = ...,
        workers: int | None = ...,
        progress: bool = ...,
        convert_to_tensor: Literal[False] = ...,
    ) -> Array: ...

    @overload
    def encode(
        self,
        items: Encodable,
        batch_size: int = ...,
        workers: int | None = ...,
        progress: bool = ...,
        *,
        convert_to_tensor: Literal[True],
    ) -> Tensor: ...

    def encode(
        self,
        items: Encodable,
        batch_size: int = 256,
        workers: int | None = None,
        progress: bool = True,
        convert_to_tensor: bool = False,
    ) -> Array | Tensor:
        """Computes float32 embeddings on the model's device: (dim,) for one item, (n, dim) for n items, in order.

        They have unit length, unless the model was trained with ``normalize="never"``.

        Args:
            items: one item or many. Models for images take paths, Pillow images, arrays (height, width, 3) and
                tensors (3, height, width), in any mixture of kinds and sizes. Grey images have no dimension of length
                3; batches have one more dimension in front. Models for vectors take numbers (features,) or
                (n, features). Images in memory are uint8, or floating point in 0…1 if they already have the model's
                input size. Do not standardise them: the model does.
            batch_size: number of items per batch. A sequence may open its images on demand.
            workers: number of processes that read image files; None: one per core, at most 16.
            progress: whether to show a progress bar if there is more than one batch.
            convert_to_tensor: return a tensor on the model's device instead of a NumPy array.

        >>> embedder.encode("cat.jpg").shape, embedder.encode(["cat.jpg", image]).shape  # doctest: +SKIP
        ((128,), (2, 128))
        """
        inputs = read_inputs(items, self.model.spec.preprocess, batch_size, workers)
        embeddings = torch.empty(inputs.count, self.dim)
        steps = math.ceil(inputs.count / batch_size)
        batches = track(inputs.batches, "embedding", steps) if progress and steps > 1 else inputs.batches
        done = 0
        with evaluating(self.model), torch.no_grad():
            for batch in batches:
                embeddings[done : done + len(batch)] = apply(self.model, batch, self.device)
                done += len(batch)
        found = embeddings[0] if inputs.single else embeddings
        return found.to(self.device) if convert_to_tensor else found.numpy()

    @overload
    def similarity(self, a: Tensor, b: Tensor) -> Tensor: ...

    @overload
    def similarity(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Array: ...

    def similarity(self, a: Any, b: Any) -> Any:
        """Similarity (n, m) of embeddings a (n, dim) and b (m, dim); one embedding (dim,) counts as (1, dim).

        Cosine similarity; for models with ``normalize="never"``, the negative Euclidean distance.

        >>> from nearkin.models import ModelSpec
        >>> embedder = Embedder(EmbeddingModel(ModelSpec("linear", dim=2, features=3)))
        >>> embedder.similarity([[1.0, 0.0]], [[2.0, 0.0], [0.0, 1.0]])
        array([[1., 0.]], dtype=float32)
        """
        left = torch.atleast_2d(torch.as_tensor(a, dtype=torch.float32))
        right = torch.atleast_2d(torch.as_tensor(b, dtype=torch.float32, device=left.device))
        for each in (left, right):
            if each.ndim != 2 or each.shape[1] != self.dim:
                raise UserError(f"embeddings must have shape (n, {self.dim}) for this model, got {tuple(each.shape)}")
        if self.model.spec.normalize == "never":
            found = -torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")
        else:
            found = unit_length(left, dim=1) @ unit_length(right, dim=1).T
        return found if isinstance(a, Tensor) else found.numpy()

    def export(self, file: str | Path, check_on: Encodable | None = None) -> Exported:
        """Exports the model to one ONNX file, if its embeddings there agree with torch; see `export_onnx`.

        Args:
            file: the file to write.
            check_on: real items to also compare on; up to ten are used.

        >>> nearkin.load("runs/photos").export("photos.onnx", check_on=["cat.jpg"])  # doctest: +SKIP
        """
        from nearkin.models.onnx import export_onnx

        return export_onnx(deepcopy(self.model).cpu(), file, check_on)

    def __repr__(self) -> str:
        spec = self.model.spec
        preprocess = spec.preprocess
        shape = (spec.features,) if preprocess is None else (preprocess.channels, preprocess.size, preprocess.size)
        return (
            f"Embedder(backbone={spec.backbone!r}, input={shape}, dim={self.dim}, normalize={spec.normalize!r}, "
            f"device='{self.device}')"
        )
