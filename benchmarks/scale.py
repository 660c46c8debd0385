"""What grows with the dataset: CPU time and memory of everything that reads all of it, and of a batch, which must not.

    OMP_NUM_THREADS=1 python benchmarks/scale.py --out docs/results/scale.json     # about an hour
    OMP_NUM_THREADS=1 python benchmarks/scale.py --sizes 4000 10000                # a rehearsal, ten minutes
    OMP_NUM_THREADS=1 python benchmarks/scale.py --only batch                      # rows whose name has this word

Synthetic items, ten of each class; embeddings are noisy blobs on the sphere. A batch has 128 items (Magnet: 12 clusters
of 4). Its row is the mean over 200 batches after the first 50: what is drawn once per epoch, such as a permutation of
all items, is a row of its own ("first batch"). Each cell is measured in its own process. Times are CPU seconds of one
thread, which mean the same on a busy machine; memory is the peak above what was there before. The last column is the
growth from the second largest size to the largest: 10 is linear in the number of items. Rows marked ≈ are too long for
the largest size, and their last cell is computed from the one before and the stated power of the number of items.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evaluation import peak_megabytes, reset_peak
from provenance import made

from nearkin.clustering import kmeans, kmeans_per_group, nearest_in_other_groups, spectral_embedding
from nearkin.data import load_dataset, make_splits
from nearkin.evaluation import evaluate
from nearkin.methods import make_method
from nearkin.progress import quiet
from nearkin.sampling import (
    ClassRatioSampler,
    ClusterIndex,
    GroupSampler,
    LabelBatchSampler,
    NeighbourhoodSampler,
    PairSampler,
    PartitionSampler,
    RandomBatchSampler,
)
from nearkin.space import Space
from nearkin.training.checkpoint import Position, load_checkpoint, save_checkpoint

PER_CLASS, DIM, BATCH = 10, 64, 128
WARM_UP, BATCHES = 50, 200
Work = Callable[[], object]
Sampler = Callable[[np.ndarray], LabelBatchSampler]


def labels_of(items: int) -> np.ndarray:
    return np.arange(items) // PER_CLASS


def blobs(items: int) -> Space:
    generator = torch.Generator().manual_seed(0)
    labels = torch.from_numpy(labels_of(items))
    centres = torch.randn(items // PER_CLASS, DIM, generator=generator)
    x = centres[labels] + 1.4 * torch.randn(items, DIM, generator=generator)
    return Space.of(torch.nn.functional.normalize(x), labels)


def groups(labels: np.ndarray, batch_size: int = BATCH, seed: int = 0) -> GroupSampler:
    return GroupSampler(labels, batch_size, 4, seed)


def parts(labels: np.ndarray) -> PartitionSampler:
    sampler = PartitionSampler(labels, BATCH, groups)
    sampler.divide(np.array_split(np.arange(len(labels)), 8))
    return sampler


def neighbourhoods(labels: np.ndarray) -> NeighbourhoodSampler:
    sampler = NeighbourhoodSampler(labels, 48, 4)
    clusters = 2 * (len(labels) // PER_CLASS)
    impostors = np.random.default_rng(0).integers(clusters, size=(clusters, 11))
    sampler.refresh(ClusterIndex(np.arange(len(labels)) // (PER_CLASS // 2), impostors))
    return sampler


SAMPLERS: dict[str, Sampler] = {
    "random": lambda labels: RandomBatchSampler(labels, BATCH),
    "k classes × 4": groups,
    "pairs": lambda labels: PairSampler(labels, BATCH),
    "class ratio": lambda labels: ClassRatioSampler(labels, BATCH),
    "neighbourhoods (magnet)": neighbourhoods,
    "parts (divide-and-conquer)": parts,
}


def open_vectors(items: int, folder: Path) -> Work:
    np.savez(folder / "x.npz", vectors=blobs(items).embeddings.numpy(), labels=labels_of(items))
    return lambda: load_dataset(folder / "x.npz")


def open_table(items: int, folder: Path) -> Work:
    with (folder / "x.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *((f"{n}.jpg", f"c{n // PER_CLASS}") for n in range(items))])
    return lambda: load_dataset(folder / "x.csv")


def open_folder(items: int, folder: Path) -> Work:
    for label in range(items // PER_CLASS):
        (folder / "x" / str(label)).mkdir(parents=True)
        for item in range(PER_CLASS):
            (folder / "x" / str(label) / f"{item}.jpg").touch()
    return lambda: load_dataset(folder / "x")


def split(items: int, folder: Path) -> Work:
    dataset = open_vectors(items, folder)()
    return lambda: make_splits(dataset, "classes", 0.1).digest()  # type: ignore[arg-type]


def make(sampler: Sampler, items: int, _: Path) -> Work:
    labels = labels_of(items)
    return lambda: next(iter(sampler(labels)))


def batch(sampler: Sampler, items: int, _: Path) -> Work:
    made = sampler(labels_of(items))
    rng = np.random.default_rng(0)

    def draw(count: int) -> None:
        for _ in range(count):
            nonlocal stream, step
            found = next(stream, None)
            if found is None:
                stream = iter(made)
                found = next(stream)
            if isinstance(made, NeighbourhoodSampler):
                made.losses.record(step, np.array(found), rng.exponential(size=len(found)))
            if isinstance(made, PartitionSampler):
                made.part_of(step)
            step += 1

    stream, step = iter(made), 0
    draw(WARM_UP)
    return lambda: draw(BATCHES)


def per_class_kmeans(items: int, _: Path) -> Work:
    space = blobs(items)
    return lambda: kmeans_per_group(space.embeddings, space.labels, 2)


def impostors(items: int, _: Path) -> Work:
    centroids = blobs(items).embeddings[:: PER_CLASS // 2]
    return lambda: nearest_in_other_groups(centroids, torch.arange(len(centroids)) // 2, 11)


def divide(items: int, _: Path) -> Work:
    space, method = blobs(items), make_method("divide-and-conquer", learners=8)
    method.prepare(items // PER_CLASS, DIM, 1)
    method.sampler(labels_of(items), BATCH, 0)
    return lambda: method.on_refresh(space)


def spectral(items: int, _: Path) -> Work:
    space = blobs(items)
    return lambda: spectral_embedding(space.embeddings)


def ranks(items: int, _: Path) -> Work:
    space = blobs(items)
    return lambda: evaluate(space, clustering=None)


def some_ranks(items: int, _: Path) -> Work:
    space = blobs(items)
    is_query = np.random.default_rng(0).permutation(items) < 5000
    return lambda: evaluate(space.embeddings, space.labels, is_query=is_query, clustering=None)


def clusters(items: int, _: Path) -> Work:
    space = blobs(items)
    return lambda: kmeans(space.embeddings, items // PER_CLASS)


def save(items: int, folder: Path) -> Work:
    made = neighbourhoods(labels_of(items))
    return lambda: save_checkpoint(folder / "checkpoint", Position(), {"sampler": made})


def resume(items: int, folder: Path) -> Work:
    save(items, folder)()
    made = neighbourhoods(labels_of(items))

    def load() -> None:
        load_checkpoint(folder / "checkpoint", {"sampler": made}, torch.device("cpu"))
        next(iter(made))

    return load


def skip(items: int, _: Path) -> Work:
    made = groups(labels_of(items))
    made.position = len(made) // 2
    return lambda: next(iter(made))


@dataclass(frozen=True)
class Row:
    """What is measured. ``most``: the largest size that is; beyond it, cells grow with the ``power`` of the items."""

    name: str
    prepare: Callable[[int, Path], Work]
    calls: int = 1
    most: float = math.inf
    power: int = 1


def of_sampler(measure: Callable[[Sampler, int, Path], Work], sampler: Sampler) -> Callable[[int, Path], Work]:
    return lambda items, folder: measure(sampler, items, folder)


ROWS = [
    Row("open an .npz of vectors", open_vectors),
    Row("open a CSV of image files", open_table),
    Row("open a folder of image files", open_folder, most=1e5),
    Row("split by classes, and its digest", split),
    *(Row(f"sampler and first batch: {name}", of_sampler(make, sampler)) for name, sampler in SAMPLERS.items()),
    *(Row(f"batch: {name}", of_sampler(batch, sampler), BATCHES) for name, sampler in SAMPLERS.items()),
    Row("refresh, magnet: k-means of every class", per_class_kmeans),
    Row("refresh, magnet: nearest impostors", impostors),
    Row("refresh, divide-and-conquer: 8 parts", divide),
    Row("read-out, spectral: singular vectors", spectral),
    Row("evaluate: all ranks", ranks, most=1e5, power=2),
    Row("evaluate: ranks of 5,000 queries", some_ranks),
    Row("evaluate: k-means, a cluster per class", clusters, most=1e5, power=2),
    Row("checkpoint of magnet's sampler", save),
    Row("resume it", resume),
    Row("resume k classes × 4 in mid-epoch", skip),
]


@dataclass(frozen=True)
class Cell:
    row: str
    items: int
    seconds: float
    megabytes: float
    estimated: bool = False


def measure(place: int, items: int) -> Cell:
    """In a process of its own."""
    row = ROWS[place]
    with tempfile.TemporaryDirectory() as folder, quiet():
        small, large = Path(folder) / "small", Path(folder) / "large"
        small.mkdir()
        large.mkdir()
        row.prepare(min(items, 4000), small)()  # imports and plans do not count
        work = row.prepare(items, large)
        reset_peak("cpu")
        before, start = peak_megabytes("cpu"), time.process_time()
        result = work()
        seconds = time.process_time() - start
        del result
        return Cell(row.name, items, seconds / row.calls, peak_megabytes("cpu") - before)


def measured(place: int, sizes: Sequence[int]) -> list[Cell]:
    cells: list[Cell] = []
    for items in sizes:
        row = ROWS[place]
        if items > row.most and cells:
            growth = (items / cells[-1].items) ** row.power
            cells.append(Cell(row.name, items, cells[-1].seconds * growth, math.nan, estimated=True))
            continue
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            cells.append(process.submit(measure, place, items).result())
    return cells


def line(cells: Sequence[Cell]) -> str:
    columns = [f"{'≈ ' * cell.estimated}{duration(cell.seconds)}" for cell in cells]
    memory = [cell.megabytes for cell in cells if not cell.estimated][-1]
    growth = cells[-1].seconds / cells[-2].seconds if len(cells) > 1 else math.nan
    return " | ".join(["", cells[0].row, *columns, f"{memory:,.0f}", number(growth), ""]).strip()


def duration(seconds: float) -> str:
    return f"{number(seconds)} s" if seconds >= 1 else f"{number(1000 * seconds)} ms"


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--out", type=Path, help="also write everything as JSON")
    wanted = parser.parse_args()
    print(f"| | {' | '.join(f'{size:,}' for size in wanted.sizes)} | MB | growth |")
    print(f"|---|{'--:|' * (len(wanted.sizes) + 2)}")
    content: dict[str, Any] = {**made("cpu"), "measured": []}
    for place, row in enumerate(ROWS):
        if wanted.only in row.name:
            cells = measured(place, wanted.sizes)
            print(line(cells), flush=True)
            content["measured"] += [asdict(cell) for cell in cells]
            if wanted.out:
                wanted.out.write_text(json.dumps(content, indent=1).replace("NaN", "null") + "\n")


if __name__ == "__main__":
    main()
