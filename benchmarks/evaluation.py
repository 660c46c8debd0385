"""Time and memory of evaluation, compared with faiss and pytorch-metric-learning.

    pip install faiss-cpu                                       # a baseline, skipped if not installed
    python benchmarks/evaluation.py                             # the size of the test set of Stanford Online Products
    python benchmarks/evaluation.py --size 6000                 # a trial run
    python benchmarks/evaluation.py --device cuda --profile     # also profile the GPU
    python benchmarks/evaluation.py --out evaluation.json
    OMP_NUM_THREADS=1 python benchmarks/evaluation.py           # CPU ratios that also hold on a busy machine

The baselines: Recall@1000 is usually computed from the 1,001 nearest neighbours of every item, which gives neither mAP
nor ranks beyond them; MAP@R comes from pytorch-metric-learning's AccuracyCalculator, and NMI from 20 iterations of
faiss's k-means. nearkin ranks all positives in one pass, which gives every retrieval score, and runs k-means until it
converges. On a GPU the baselines are torch's `cdist` with `topk` in blocks, and pytorch-metric-learning without faiss.
The points are noisy clusters on the sphere. Each contestant runs in its own process after a short warm-up. "memory" is
the increase of its peak memory (on a GPU, of GPU memory). "ratio" is its time divided by that of the part of nearkin
that computes the same; "CPU ratio" is the same for the CPU time of all threads. "load" is the machine's load average
over the last minute. On a busy machine, seconds and their ratio mean little. With several threads even the CPU time
grows, because threads wait for each other.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from provenance import made
from torch import Tensor

from nearkin.clustering import kmeans
from nearkin.evaluation import cluster_scores, retrieve
from nearkin.evaluation.attributes import attribute_concentration
from nearkin.space import Space

DIM, ITEMS, CLASSES = 128, 60502, 11316
KS = range(1, 1001)
SHOWN = ("recall@1", "recall@1000", "map@r", "nmi", "iterations", "share of 1", "share of 64")
Values = dict[str, float]


def blobs(items: int, classes: int, device: str) -> Space:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(items) % classes
    centres = torch.randn(classes, DIM, generator=generator)
    x = centres[labels] + 1.4 * torch.randn(items, DIM, generator=generator)
    return Space.of(torch.nn.functional.normalize(x).to(device), labels.to(device))


def all_ranks(space: Space) -> Values:
    return retrieve(space, recall_at=KS).scores


def all_clusters(space: Space) -> Values:
    inertias: list[float] = []
    found = kmeans(space.embeddings, len(torch.unique(space.labels)), after_each=inertias.append)
    return {"nmi": nmi(found.assignment, space), "iterations": len(inertias)}


def attributes(space: Space) -> Values:
    shares = attribute_concentration(space, space.labels % 7).means
    return {"share of 1": shares[1], "share of 64": shares[64]}


def accuracy_calculator(space: Space) -> Values:
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import CustomKNN

    on_gpu = space.embeddings.is_cuda
    search = CustomKNN(LpDistance(normalize_embeddings=False), batch_size=1024) if on_gpu else None
    metrics = ("precision_at_1", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include=metrics, k="max_bin_count", device=space.embeddings.device, knn_func=search)
    found = calculator.get_accuracy(space.embeddings, space.labels)
    return {"recall@1": found["precision_at_1"], "map@r": found["mean_average_precision_at_r"]}


def faiss_search(space: Space) -> Values:
    import faiss

    index = faiss.IndexFlatL2(DIM)
    index.add(space.embeddings.numpy())
    return recalls(torch.from_numpy(index.search(space.embeddings.numpy(), neighbours_of(space))[1]), space)


def faiss_clusters(space: Space) -> Values:
    import faiss

    x, classes = space.embeddings.numpy(), len(torch.unique(space.labels))
    found = faiss.Kmeans(DIM, classes, niter=20, min_points_per_centroid=1, max_points_per_centroid=len(x))
    found.train(x)
    return {"nmi": nmi(torch.from_numpy(found.index.search(x, 1)[1][:, 0]), space), "iterations": 20}


def torch_search(space: Space) -> Values:
    x, k = space.embeddings, neighbours_of(space)
    return recalls(torch.cat([torch.cdist(part, x).topk(k, largest=False).indices for part in x.split(1024)]), space)


def torch_clusters(space: Space) -> Values:
    x, classes = space.embeddings, len(torch.unique(space.labels))
    centres = x[torch.randperm(len(x), device=x.device)[:classes]]
    for _ in range(20):
        groups = torch.cat([torch.cdist(part, centres).argmin(1) for part in x.split(4096)])
        sizes = torch.bincount(groups, minlength=classes)[:, None]
        centres = torch.where(sizes > 0, torch.zeros_like(centres).index_add_(0, groups, x) / sizes, centres)
    return {"nmi": nmi(groups, space), "iterations": 20}


def neighbours_of(space: Space) -> int:
    return min(max(KS) + 1, len(space))


def recalls(neighbours: Tensor, space: Space) -> Values:
    """Recall@k from neighbours (items, k), nearest first, which include the item itself."""
    itself = torch.arange(len(space), device=neighbours.device)[:, None]
    hit = (space.labels[neighbours] == space.labels[:, None]) & (neighbours != itself)
    rank = (neighbours != itself).cumsum(1).masked_fill_(~hit, len(space)).amin(1)
    return {f"recall@{k}": (rank <= k).double().mean().item() for k in KS if k < neighbours.shape[1]}


def nmi(clusters: Tensor, space: Space) -> float:
    return cluster_scores(clusters, space.labels)["nmi_arithmetic"]


@dataclass(frozen=True)
class Contestant:
    """One implementation: its work, the part of nearkin it is compared with, and the packages it needs."""

    name: str
    work: Callable[[Space], Values]
    against: str
    needs: tuple[str, ...] = ()


RANKS, CLUSTERS, CONCENTRATION = (
    "nearkin, all ranks: Recall@1…1000, MAP@R, mAP",
    "nearkin, k-means until it converges, NMI",
    "nearkin, attribute concentration, 64 neighbours",
)
OURS = [
    Contestant(RANKS, all_ranks, RANKS),
    Contestant(CLUSTERS, all_clusters, CLUSTERS),
    Contestant(CONCENTRATION, attributes, CONCENTRATION),
]
PML = "pytorch-metric-learning, P@1 and MAP@R"
CONTESTANTS = {
    "cpu": [
        *OURS,
        Contestant(PML, accuracy_calculator, RANKS, ("pytorch_metric_learning", "faiss")),
        Contestant("faiss, 1,001 neighbours: Recall@1…1000", faiss_search, RANKS, ("faiss",)),
        Contestant("faiss, 20 iterations of k-means, NMI", faiss_clusters, CLUSTERS, ("faiss",)),
    ],
    "cuda": [
        *OURS,
        Contestant(PML, accuracy_calculator, RANKS, ("pytorch_metric_learning",)),
        Contestant("torch, 1,001 neighbours: Recall@1…1000", torch_search, RANKS),
        Contestant("torch, 20 iterations of Lloyd, NMI", torch_clusters, CLUSTERS),
    ],
}


@dataclass(frozen=True)
class Measured:
    """Time, memory and values of one contestant."""

    name: str
    seconds: float
    ratio: float
    cpu_seconds: float
    cpu_ratio: float
    megabytes: float
    load: float
    values: Values


def measure(place: int, items: int, classes: int, device: str, profile: bool) -> tuple[float, float, float, Values]:
    """Seconds, CPU seconds, megabytes and values of one contestant; called in its own process."""
    contestant = CONTESTANTS[device][place]
    contestant.work(blobs(min(items, 2000), min(classes, 374), device))  # warm-up: imports, threads, plans
    space = blobs(items, classes, device)
    reset_peak(device)
    before = peak_megabytes(device)
    start, cpu_start = time.perf_counter(), time.process_time()
    values = contestant.work(space)
    seconds = time.perf_counter() - start  # the values are numbers, so the GPU has finished
    cpu_seconds = time.process_time() - cpu_start
    megabytes = peak_megabytes(device) - before
    if profile and contestant in OURS:
        with torch.profiler.profile() as seen:
            contestant.work(space)
        order = "self_cuda_time_total" if device == "cuda" else "self_cpu_time_total"
        print(
            f"\n{contestant.name}\n{seen.key_averages().table(sort_by=order, row_limit=15, max_name_column_width=60)}"
        )
    return seconds, cpu_seconds, megabytes, values


def reset_peak(device: str) -> None:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # Linux


def peak_megabytes(device: str) -> float:
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in status if line.startswith("VmHWM"))) / 1024


def contest(device: str, items: int, classes: int, profile: bool) -> Iterator[Measured]:
    """Runs one contestant after the other."""
    ours: dict[str, tuple[float, float]] = {}
    for place, contestant in enumerate(CONTESTANTS[device]):
        missing = [package for package in contestant.needs if importlib.util.find_spec(package) is None]
        if missing:
            print(f"{contestant.name:50}skipped: {' and '.join(missing)} not installed", flush=True)
            continue
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            seconds, cpu, megabytes, values = process.submit(measure, place, items, classes, device, profile).result()
        ours.setdefault(contestant.name, (seconds, cpu))
        base, cpu_base = ours[contestant.against]
        load = os.getloadavg()[0]
        yield Measured(contestant.name, seconds, seconds / base, cpu, cpu / cpu_base, megabytes, load, values)


def disagreements(measured: list[Measured], items: int) -> list[str]:
    """Values that differ from nearkin's. A few near ties may be ordered differently; k-means may only be worse."""
    ours = {name: value for each in measured[: len(OURS)] for name, value in each.values.items()}
    slack = 1e-4 + 2 / items
    found = []
    for each in measured[len(OURS) :]:
        for name in each.values.keys() - {"iterations"}:
            off = each.values[name] - ours[name]
            if off > 0.01 if name == "nmi" else abs(off) > slack:
                found.append(f"{each.name}: {name} {each.values[name]:.6f}, nearkin {ours[name]:.6f}")
    return found


def line(each: Measured) -> str:
    shown = [name for name in each.values if name in SHOWN]
    values = "  ".join(f"{name} {each.values[name]:.4g}" for name in shown)
    times = f"{each.seconds:9.2f}{each.ratio:8.2f}{each.cpu_seconds:9.2f}{each.cpu_ratio:11.2f}"
    return f"{each.name:50}{times}{each.megabytes:11.0f}{each.load:6.1f}   {values}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(CONTESTANTS), default="cpu")
    parser.add_argument("--size", type=int, default=ITEMS, help="number of items; the number per class stays the same")
    parser.add_argument("--profile", action="store_true", help="run nearkin's parts again under torch's profiler")
    parser.add_argument("--out", type=Path, help="also write everything as JSON")
    options = parser.parse_args()
    items, classes = options.size, max(2, round(options.size * CLASSES / ITEMS))
    about = {
        **made(options.device),
        "threads": torch.get_num_threads(),
        "items": items,
        "dim": DIM,
        "classes": classes,
    }
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(f"{'':50}{'seconds':>9}{'ratio':>8}{'CPU s':>9}{'CPU ratio':>11}{'memory MB':>11}{'load':>6}   values")
    measured = []
    for each in contest(options.device, items, classes, options.profile):
        print(line(each), flush=True)
        measured.append(each)
    seconds, megabytes = sum(each.seconds for each in measured[:2]), max(each.megabytes for each in measured[:2])
    print(f"nearkin, all ranks and clusters: {seconds:.1f} s, {megabytes:.0f} MB")
    wrong = disagreements(measured, items)
    print("\n".join(wrong) or "all values agree")
    if options.out is not None:
        options.out.write_text(json.dumps({**about, "measured": [asdict(each) for each in measured]}, indent=1) + "\n")
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
