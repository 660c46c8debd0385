"""Memory and time of micro-batches, compared with the whole batch.

    python benchmarks/microbatch.py --device cuda                      # ResNet-50, 224 pixels, 256 images, bf16
    python benchmarks/microbatch.py --backbone resnet18 --size 64 --batch 64 --pieces 16

A step is: embed, loss (spectral), backward. Weights are random. Peak memory is the GPU memory of torch, including
weights; on the CPU only the time is measured. The difference of the gradient is the relative one of the first layer.
Batch norm is frozen, so in float32 the difference is only rounding.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn

from nearkin.losses import SpectralClusteringLoss
from nearkin.models import EmbeddingModel, ModelSpec
from nearkin.models.backbones import preprocess_of
from nearkin.training.microbatch import MicroBatched


def step(model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16, enabled=inputs.is_cuda):
        embeddings = model(inputs)
    SpectralClusteringLoss()(embeddings.float(), labels).backward()


def measured(model: nn.Module, inputs: Tensor, labels: Tensor, repeats: int) -> tuple[float, float]:
    """Seconds per step (the best of ``repeats``), and peak memory in GB."""
    seconds = []
    for _ in range(repeats + 1):
        if inputs.is_cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        step(model, inputs, labels)
        if inputs.is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:]), torch.cuda.max_memory_allocated() / 1e9 if inputs.is_cuda else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--pieces", nargs="+", type=int, default=[128, 64, 18])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    spec = ModelSpec(options.backbone, 64, "test", preprocess_of(options.backbone, options.size))
    model = EmbeddingModel(spec, freeze_batch_norm=True).to(options.device).train()
    inputs = torch.randint(0, 256, (options.batch, 3, options.size, options.size), dtype=torch.uint8).to(options.device)
    labels = (torch.arange(options.batch) // 4).to(options.device)
    first = next(model.backbone.parameters())
    whole_seconds, whole_memory = measured(model, inputs, labels, options.repeats)
    expected = first.grad.clone()  # type: ignore[union-attr]
    print("| micro-batch | ms per step | ratio | peak GB | ratio | gradient differs by |\n|---|---|---|---|---|---|")
    print(f"| {options.batch} (whole) | {1e3 * whole_seconds:.0f} | 1 | {whole_memory:.2f} | 1 | |")
    for piece in options.pieces:
        seconds, memory = measured(MicroBatched(model, piece), inputs, labels, options.repeats)
        difference = (first.grad - expected).norm() / expected.norm()  # type: ignore[operator]
        ratios = f"{seconds / whole_seconds:.2f} | {memory:.2f} | {memory / whole_memory:.2f}"
        print(f"| {piece} | {1e3 * seconds:.0f} | {ratios} | {difference:.1e} |")


if __name__ == "__main__":
    main()
