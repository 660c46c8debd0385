"""Exports a model to one ONNX file, and checks it against torch before it is written."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

import nearkin
from nearkin.errors import UserError
from nearkin.files import write_bytes
from nearkin.models.inputs import Encodable, read_inputs
from nearkin.models.model import EmbeddingModel, ModelSpec

TOLERANCE = 1e-4
LARGEST_FILE = 2**31 - 2**20  # bytes; the limit of a protobuf file
BATCHES = (1, 2, 7)


@dataclass(frozen=True)
class Exported:
    """An ONNX file and the result of its check.

    Attributes:
        file: the file that was written.
        megabytes: its size.
        checked_on: number of items that it was compared on.
        real: how many of these were real items; the others are noise and smooth random images.
        largest_difference: largest difference of any number from torch, relative to the length of long embeddings.
    """

    file: Path
    megabytes: float
    checked_on: int
    real: int
    largest_difference: float


def export_onnx(network: EmbeddingModel, file: str | Path, check_on: Encodable | None = None) -> Exported:
    """Exports a model that is on the CPU to one ONNX file.

    The file takes ``images`` (batch, channels, size, size) uint8, or ``vectors`` (batch, features) float32, with any
    batch size, and returns ``embeddings`` (batch, dim) float32. Its metadata describes how to prepare images.

    The file is compared with torch on batches of 1, 2 and 7 items. It is not written if any number differs by more than
    1e-4, or by more than 1e-4 times the embedding's length if that is above one.

    Args:
        network: the model to export.
        file: the file to write.
        check_on: real items to also compare on; up to ten are used. See `Embedder.encode`.

    >>> export_onnx(EmbeddingModel(ModelSpec("linear", 2, features=3)), "small.onnx").checked_on  # doctest: +SKIP
    10
    """
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]
    if missing:
        raise UserError(f"export needs {' and '.join(missing)}; run `pip install 'nearkin[onnx]'`")
    network.eval()
    content = _converted(network)
    made = [*_noise(network, BATCHES), *_smooth(network)]
    real = [] if check_on is None else _first_batches(network, check_on)
    difference = _largest_difference(network, content, made + real)
    if not difference <= TOLERANCE:
        raise UserError(
            f"{file} was not written: its embeddings differ from PyTorch's by up to {difference:.1e} "
            f"(more than the tolerance of {TOLERANCE:.0e}); try another version of torch or onnxruntime"
        )
    out = Path(file).expanduser()
    write_bytes(out, content)
    return Exported(out, len(content) / 1e6, sum(map(len, made + real)), sum(map(len, real)), difference)


def _converted(network: EmbeddingModel) -> bytes:
    import onnx

    if sum(tensor.nbytes for tensor in network.state_dict().values()) > LARGEST_FILE:
        raise UserError("the model is larger than 2 GB, the limit of an ONNX file; use a smaller backbone")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's warnings are for its own developers
        try:
            program: Any = torch.onnx.export(
                network,
                (next(_noise(network, (2,))),),
                input_names=[_input_name(network.spec)],
                output_names=["embeddings"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                verbose=False,
            )
            proto = program.model_proto
        # Exporters raise many kinds of errors, with pages of advice for developers.
        except Exception as error:
            reason = str(error.__cause__ or error).split("\n")[0]
            raise UserError(f"backbone '{network.spec.backbone}' cannot be exported to ONNX ({reason})") from error
    onnx.helper.set_model_props(proto, _metadata(network.spec))
    content: bytes = proto.SerializeToString()
    return content


def _metadata(spec: ModelSpec) -> dict[str, str]:
    """Describes the input and the output, for users who have only the file."""
    about = {"nearkin": nearkin.__version__, "dim": str(spec.dim), "normalize": spec.normalize}
    if spec.preprocess is None:
        return about | {"features": str(spec.features)}
    return about | {
        "layout": "batch, channels, height, width; uint8",
        "mode": "L" if spec.preprocess.channels == 1 else "RGB",
        "resize": str(spec.preprocess.resize),
        "size": str(spec.preprocess.size),
        "interpolation": spec.preprocess.interpolation,
        "rule": "upright RGB; shorter side to `resize`; centre crop `size` × `size`; then `mode`; do not standardise",
    }


def _largest_difference(network: EmbeddingModel, content: bytes, batches: list[Tensor]) -> float:
    """The largest difference of any number, divided by the embedding's length if that is above one."""
    import onnxruntime

    largest = 0.0
    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        for inputs in batches:
            with torch.no_grad():
                expected = network(inputs)
            found = torch.from_numpy(session.run(None, {_input_name(network.spec): inputs.numpy()})[0])
            differences = (found - expected).abs().amax(dim=1) / expected.norm(dim=1).clamp(min=1)
            largest = max(largest, differences.nan_to_num(torch.inf).max().item())
    except Exception as error:  # onnxruntime's errors have no common base class
        reason = str(error).split("\n")[0]
        raise UserError(
            f"onnxruntime cannot run the exported model ({reason}); try another version of onnxruntime"
        ) from error
    return largest


def _first_batches(network: EmbeddingModel, items: Encodable) -> list[Tensor]:
    """At most two batches of five items, in the format that the file takes."""
    found = islice(read_inputs(items, network.spec.preprocess, batch_size=5, workers=0).batches, 2)
    if network.spec.preprocess is None:
        return [*found]
    return [(255 * each).to(torch.uint8) if each.is_floating_point() else each for each in found]


def _smooth(network: EmbeddingModel) -> Iterator[Tensor]:
    """Smooth random images, with less detail than noise."""
    if network.spec.preprocess is not None:
        for pixels in _noise(network, BATCHES):
            coarse = interpolate(pixels.float(), size=(4, 4))
            yield interpolate(coarse, size=pixels.shape[2:], mode="bilinear").to(torch.uint8)


def _noise(network: EmbeddingModel, batches: tuple[int, ...]) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    for count in batches:
        if (preprocess := network.spec.preprocess) is None:
            draws = torch.randn(count, network.spec.features, generator=generator)
            yield draws * network.standardise.std + network.standardise.mean
        else:
            shape = (count, preprocess.channels, preprocess.size, preprocess.size)
            yield torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def _input_name(spec: ModelSpec) -> str:
    return "vectors" if spec.preprocess is None else "images"
