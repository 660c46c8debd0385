"""Speed of clustering: k-means within thousands of classes, spectral embedding, k-means with many clusters, and exact
nearest neighbours.

    python benchmarks/clustering.py                                       # the sizes of Stanford Online Products
    python benchmarks/clustering.py --device cuda
    python benchmarks/clustering.py --quick                               # a tenth of the sizes
    OMP_NUM_THREADS=1 python benchmarks/clustering.py --only-neighbours

The baselines: Magnet's cluster index is a k-means within every class, elsewhere a Python loop over scikit-learn's
KMeans (measured on 200 classes and extrapolated to all); the spectral embedding is compared with numpy's SVD, and exact
neighbours with faiss. "ratio" is the baseline's time divided by nearkin's. The baselines always run on the CPU.
The time of k-means is for one Lloyd iteration, without the initialisation. Neighbours on the CPU are timed in processor
time, so that other work on the machine changes little; use one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from nearkin.clustering import kmeans, kmeans_per_group, nearest_neighbours, spectral_embedding

DIM = 128
SAMPLED_GROUPS = 200


def seconds(work: Callable[[], object], device: str, clock: Callable[[], float] = time.perf_counter) -> float:
    """The time of the faster of two runs; the first one also warms up."""
    times = []
    for _ in range(2):
        start = clock()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(clock() - start)
    return min(times)


def blobs(items: int, groups: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(int(groups.max()) + 1, DIM, generator=generator)
    return torch.nn.functional.normalize(centres[groups] + torch.randn(items, DIM, generator=generator))


def per_group(items: int, classes: int, device: str) -> tuple[float, float]:
    groups = torch.arange(items) % classes
    x = blobs(items, groups)
    members = [x[groups == group].numpy() for group in range(SAMPLED_GROUPS)]
    loop = seconds(lambda: [KMeans(2, n_init=1, random_state=0).fit(part) for part in members], "cpu")
    x, groups = x.to(device), groups.to(device)
    return seconds(lambda: kmeans_per_group(x, groups, 2), device), loop * classes / SAMPLED_GROUPS


def spectral(items: int, device: str) -> tuple[float, float]:
    x = blobs(items, torch.arange(items) % 100)
    centred = x.double().numpy() - x.double().numpy().mean(0)
    svd = seconds(lambda: np.linalg.svd(centred, full_matrices=False), "cpu")
    x = x.to(device)
    return seconds(lambda: spectral_embedding(x), device), svd


def lloyd_iteration(items: int, clusters: int, device: str) -> float:
    x = blobs(items, torch.arange(items) % clusters).to(device)
    ends: list[float] = []
    kmeans(x, clusters, iterations=4, after_each=lambda _: ends.append(time.perf_counter()))
    return float(np.mean(np.diff(ends)))


def neighbours(items: int, k: int, device: str) -> tuple[float, float]:
    import faiss

    x = blobs(items, torch.arange(items) % 1000)
    index = faiss.IndexFlatL2(DIM)
    index.add(x.numpy())
    clock = time.process_time if device == "cpu" else time.perf_counter
    theirs = seconds(lambda: index.search(x.numpy(), k), "cpu", clock)
    x = x.to(device)
    return seconds(lambda: nearest_neighbours(x, x, k), device, clock), theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes")
    parser.add_argument("--only-neighbours", action="store_true")
    options = parser.parse_args()
    divisor = 10 if options.quick else 1
    items, classes, many, clusters = 59551 // divisor, 11318 // divisor, 60502 // divisor, 11316 // divisor

    def line(name: str, ours: float, theirs: float | None = None, baseline: str = "") -> None:
        compared = f"{theirs:11.3f}{theirs / ours:8.2f}   {baseline}" if theirs is not None else ""
        print(f"{name:58}{ours:9.3f}{compared}", flush=True)

    print(f"{DIM} dimensions, {options.device}, {torch.get_num_threads()} threads")
    print(f"{'':58}{'seconds':>9}{'baseline':>11}{'ratio':>8}")
    if not options.only_neighbours:
        line(
            f"kmeans_per_group, {items:,} items, {classes:,} groups, k = 2",
            *per_group(items, classes, options.device),
            f"scikit-learn, loop over {SAMPLED_GROUPS} groups, extrapolated",
        )
        line(
            f"spectral_embedding, {60000 // divisor:,} points", *spectral(60000 // divisor, options.device), "numpy SVD"
        )
        line(
            f"kmeans, {many:,} points, k = {clusters:,}, one iteration", lloyd_iteration(many, clusters, options.device)
        )
    for k in (1, 10, 100, 1000):
        line(
            f"nearest_neighbours, {20000 // divisor:,} points, k = {k:,}",
            *neighbours(20000 // divisor, k, options.device),
            "faiss",
        )


if __name__ == "__main__":
    main()
