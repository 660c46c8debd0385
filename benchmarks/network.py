"""Speed of training steps, embedding and decoding: nearkin compared with plain PyTorch.

    python benchmarks/network.py                                            # a few minutes on two CPU cores
    python benchmarks/network.py --device cuda --batch 128 --workers 0 8 16

    step     a training step: channels-last, as nearkin keeps networks, against torch's default memory format
    embed    images to embeddings: in pieces, as nearkin does it, against the whole batch (CPU only)
    decode   JPEG files to augmented crops of 224, by number of worker processes, against Pillow and torchvision in one

Weights and pixels are random. The two sides of a line run alternately; the median of each is printed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from nearkin import _torchvision  # noqa: F401 (before torchvision)
from nearkin.data import ImageFiles
from nearkin.data.loader import input_batches, sequential
from nearkin.data.transforms import Preprocess
from nearkin.models import EmbeddingModel, ModelSpec
from nearkin.models.backbones import preprocess_of
from nearkin.models.embed import apply

PHOTOS = 512


def in_turns(ways: list[Callable[[], object]], repeats: int) -> list[float]:
    """The median seconds of each, run alternately."""
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats + 1):
        for way, taken in zip(ways, seconds, strict=True):
            started = time.perf_counter()
            way()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - started)
    return [float(np.median(taken[1:])) for taken in seconds]  # the first one warms up


def line(name: str, images: int, ours: float, plain: float) -> None:
    print(f"| {name} | {images / ours:,.0f} | {images / plain:,.0f} | {plain / ours:.2f} |", flush=True)


def network(backbone: str, size: int, device: str) -> EmbeddingModel:
    spec = ModelSpec(backbone, 128, "always", preprocess_of(backbone, size))
    return EmbeddingModel(spec).to(device)


def random_images(count: int, size: int, device: str) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, device=device)


def step(backbone: str, size: int, batch: int, device: str, repeats: int) -> None:
    inputs = random_images(batch, size, device)

    def learn(model: EmbeddingModel) -> None:
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=device == "cuda"):
            embeddings = model(inputs)
        embeddings.float().square().sum().backward()

    ours, plain = (network(backbone, size, device).train() for _ in range(2))
    plain.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    default = torch.contiguous_format
    plain.backbone.register_forward_pre_hook(lambda _, given: (given[0].contiguous(memory_format=default),))
    line(
        f"step: {backbone}, {size} px, {batch} images",
        batch,
        *in_turns([lambda: learn(ours), lambda: learn(plain)], repeats),
    )


def embed(backbone: str, size: int, batch: int, repeats: int) -> None:
    model, inputs, cpu = network(backbone, size, "cpu").eval(), random_images(batch, size, "cpu"), torch.device("cpu")
    with torch.no_grad():
        times = in_turns([lambda: apply(model, inputs, cpu), lambda: model(inputs)], repeats)
    line(f"embed: {backbone}, {size} px, {batch} images", batch, *times)


def torchvisions(preprocess: Preprocess) -> Callable[[Image.Image], torch.Tensor]:
    from torchvision.transforms import InterpolationMode, v2

    resize = v2.Resize(preprocess.resize, interpolation=InterpolationMode(preprocess.interpolation))
    crop = v2.RandomCrop(preprocess.size)
    chain: Callable[[Image.Image], torch.Tensor] = v2.Compose(
        [resize, crop, v2.RandomHorizontalFlip(), v2.PILToTensor()]
    )
    return chain


def decode(workers: list[int], repeats: int, size: tuple[int, int], count: int, resize: int) -> None:
    preprocess = replace(preprocess_of("small", 224), resize=resize)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.jpg" for number in range(count)]
        for path in paths:
            small = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)  # smooth, as photographs are
            Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(path, quality=90)
        files, draws, transform = ImageFiles(paths), sequential(count, 64), torchvisions(preprocess)
        ways = [lambda n=n: list(input_batches(files, preprocess, draws, "crop-flip", n)) for n in workers]
        plain, *ours = in_turns([lambda: [transform(Image.open(path)) for path in paths], *ways], repeats)
        for number, seconds in zip(workers, ours, strict=True):
            line(f"decode: {count} JPEGs of {size[0]} × {size[1]} to {resize}, {number} workers", count, seconds, plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--backbone", default="tf_efficientnet_lite0")
    parser.add_argument("--batch", type=int, default=32, help="images per step; eight times as many are embedded")
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    print(f"{options.device}, {torch.get_num_threads()} threads\n")
    print("| | images/s | plain | ratio |\n|---|--:|--:|--:|")
    step("small", 28, 128, options.device, options.repeats)
    step(options.backbone, 224, options.batch, options.device, options.repeats)
    if options.device == "cpu":
        embed(options.backbone, 160, 8 * options.batch, options.repeats)
    for size, count, resize in (((342, 256), PHOTOS, 224), ((342, 256), PHOTOS, 256), ((2000, 1500), 64, 256)):
        decode(options.workers, options.repeats, size, count, resize)


if __name__ == "__main__":
    main()
