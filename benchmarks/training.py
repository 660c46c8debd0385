"""Images per second that training takes in, next to a bare PyTorch loop on the same images.

    python benchmarks/training.py                                   # needs a GPU, about ten minutes
    python benchmarks/training.py --backbones resnet50 --methods rank margin --compile on

The bare loop is the least that training takes: random crops of images held on the device, a backbone with a linear head
in bf16, cross-entropy, AdamW. It runs eagerly and under ``torch.compile``. nearkin trains each method on the same
images. Rates are those of the fastest epoch after the first, without refreshes, whose share of the epoch is a column of
its own. The first epoch includes compiling. Weights and pixels are random.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from provenance import made
from torch import Tensor, nn
from torch.nn import functional as F

from nearkin.data import Dataset, ImageFiles, Splits
from nearkin.data.items import DecodedImages
from nearkin.data.loader import crop
from nearkin.methods import make_method
from nearkin.models import EmbeddingModel, ModelSpec
from nearkin.models.backbones import preprocess_of
from nearkin.progress import quiet
from nearkin.training.defaults import resolved
from nearkin.training.loop import Trainer
from nearkin.training.prepare import build_model
from nearkin.training.run import MemoryRun
from nearkin.training.settings import make_settings

METHODS = ("rank", "triplet", "margin", "proxy-nca", "facility-location", "magnet", "divide-and-conquer")
CLASSES, DIM, SIDE, SIZE = 100, 512, 256, 224
BATCH = 128


def images(count: int, device: str) -> Dataset:
    """Random pixels on the device, in 100 classes; the files do not exist and are never read."""
    squares = torch.randint(0, 256, (count, 3, SIDE, SIDE), dtype=torch.uint8, device=device)
    items = DecodedImages(ImageFiles([Path(f"{n}.jpg") for n in range(count)]), squares, np.arange(count))
    return Dataset("random", items, np.arange(count) % CLASSES, [str(n) for n in range(CLASSES)])


def bare(backbone: str, data: Dataset, epochs: int, compiled: bool) -> dict[str, float]:
    """Images per second of the least that training takes."""
    assert isinstance(data.items, DecodedImages)
    device = data.items.squares.device
    spec = ModelSpec(backbone, DIM, "always", preprocess_of(backbone, SIZE))
    model = EmbeddingModel(spec).to(device).train()
    classes = nn.Parameter(torch.randn(CLASSES, DIM, device=device))
    optimizer = torch.optim.AdamW([*model.parameters(), classes], lr=1e-4, fused=device.type == "cuda")
    network = torch.compile(model) if compiled else model
    labels = torch.from_numpy(data.labels).to(device)
    rng = np.random.default_rng(0)
    seconds = []
    for _ in range(epochs):
        order = rng.permutation(len(data))
        wait(device)
        started = time.perf_counter()
        for batch in order[: len(order) // BATCH * BATCH].reshape(-1, BATCH):
            inputs = crop(data.items, batch, SIZE, "crop-flip", seed=int(batch[0]))
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                logits: Tensor = network(inputs) @ F.normalize(classes).T
            loss = F.cross_entropy(16 * logits.float(), labels[torch.from_numpy(batch).to(device, non_blocking=True)])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        wait(device)
        seconds.append(time.perf_counter() - started)
    rate = len(order) // BATCH * BATCH / min(seconds[1:])
    return {"first_epoch_seconds": seconds[0], "images_per_second": rate, "refresh_share": 0.0}


def nearkin(backbone: str, method_name: str, data: Dataset, epochs: int, compile_setting: str) -> dict[str, float]:
    """Images per second without refreshes, and the share of time that refreshes took."""
    flat: dict[str, Any] = {
        "validation": 0.0, "backbone": backbone, "weights": "none", "dim": DIM, "image_size": SIZE,
        "augment": "crop-flip", "epochs": epochs, "batch_size": BATCH, "evaluate_every": 0, "keep": "last",
        "logger": "none", "compile": compile_setting,
    }  # fmt: skip
    settings = make_settings("random", method_name, flat)
    method = make_method(method_name)
    splits = Splits(data, None, None)
    settings = resolved(settings, splits, method)
    torch.manual_seed(0)
    run = MemoryRun()
    Trainer(splits, method, build_model(settings, data, method.slices), settings, run).train()
    first, *later = [record for record in run.metrics if record["kind"] == "training"]
    rates = [each["items_per_second"] / (1 - each["refresh_share"]) for each in later]
    return {
        "first_epoch_seconds": len(data) / first["items_per_second"],
        "images_per_second": max(rates),
        "refresh_share": float(np.mean([each["refresh_share"] for each in later])),
    }


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", nargs="+", default=["resnet50", "tf_efficientnet_lite0"])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--compile", nargs="+", choices=("on", "off"), default=["off", "on"])
    parser.add_argument("--images", type=int, default=60 * BATCH)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    options = parser.parse_args()
    data = images(options.images, options.device)
    results = []

    def tell(backbone: str, what: str, compiled: str, base: float, found: dict[str, float]) -> None:
        results.append({"backbone": backbone, "what": what, "compile": compiled, **found})
        rate, refresh, first = (found[name] for name in ("images_per_second", "refresh_share", "first_epoch_seconds"))
        cells = (backbone, what, compiled, f"{rate:,.0f}", f"{rate / base:.2f}", f"{refresh:.1%}", f"{first:.0f}")
        print(f"| {' | '.join(cells)} |", flush=True)

    print("| backbone | | compile | images/s | ratio | refreshes | first epoch, s |\n|---|---|---|--:|--:|--:|--:|")
    with quiet():
        for backbone in options.backbones:
            for compiled in options.compile:
                found = bare(backbone, data, options.epochs, compiled == "on")
                base = found["images_per_second"]
                tell(backbone, "bare loop", compiled, base, found)
                for method in options.methods:
                    found = nearkin(backbone, method, data, options.epochs, compiled)
                    tell(backbone, method, compiled, base, found)
    if options.out:
        options.out.write_text(json.dumps({**made(options.device), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
