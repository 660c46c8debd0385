"""How fast galleries are searched, exactly and with faiss or usearch, and how many of the nearest are found.

    pip install 'nearkin[search]' usearch
    python benchmarks/search.py                                  # 10,000, 100,000 and 1,000,000 items
    python benchmarks/search.py --sizes 10000 --contestants exact 'faiss bf16' 'usearch bf16'
    python benchmarks/search.py --out docs/results/search.json   # continues a file that is there
    python benchmarks/search.py --index 20000                    # instead: time and memory of `nearkin index`

The contestants are `ExactIndex`, faiss's IVF, and HNSW graphs of faiss and usearch with vectors in several precisions.
All graphs have the same links and explore 40 items for each item they add. Points are noisy blobs on the sphere, 20 to
a class, and the queries are other points of the same classes. (Among points without classes no index of this kind
finds much: `--noise 1.4` shows it.)

Each contestant proposes 30 candidates, as a gallery asks for, and the 10 nearest are chosen by their exact distances.
The effort (items explored, or cells of IVF) doubles until half of the queries find 99 % of the ten nearest; the other
half measures the recall.

Each contestant runs in a process of its own. "build CPU s" and the rates on one thread count processor time, so other
work on the machine changes them little. The rates on all threads are by the clock. "memory" is what the process grew by
while building, besides the vectors that it built from. "load" is the machine's load average at the end: 2 would be
this benchmark alone on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol

import faiss
import numpy as np
import numpy.typing as npt
import torch
import usearch.index
from PIL import Image
from provenance import made

import nearkin
from nearkin.data.transforms import Preprocess
from nearkin.models import Embedder, EmbeddingModel, ModelSpec
from nearkin.search.store import Embeddings
from nearkin.search.vector_index import ExactIndex, Ids

DIM, PER_CLASS, QUERIES, CHUNK, SIDE = 128, 20, 512, 20_000, 32
K, CANDIDATES = 10, 30
LINKS, EXPLORED_TO_ADD = 32, 40  # faiss's own number; the graphs of usearch are built with both too
TARGET_RECALL, DOUBLINGS = 0.99, 6
SECONDS = 3.0  # per measurement of speed

Search = Callable[[Embeddings], Ids]


class Index(Protocol):
    """A contestant: ids (queries, count) of the candidates that it finds with some effort."""

    effort: int

    def candidates(self, queries: Embeddings, count: int, threads: int) -> Ids: ...


@dataclass(frozen=True)
class Measured:
    """Result of one contestant; rates are queries per second, one by one and in batches of 64."""

    items: int
    name: str
    effort: int
    build_seconds: float
    build_cpu_seconds: float
    megabytes: float
    one_by_one_1_thread: float
    batches_1_thread: float
    one_by_one: float
    batches: float
    recall_at_1: float
    recall_at_10: float
    load: float


def blobs(items: int, noise: float) -> tuple[Embeddings, Embeddings]:
    """Vectors (items, DIM) and queries (QUERIES, DIM)."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(max(1, items // PER_CLASS), DIM, generator=generator)

    def draw(count: int) -> Embeddings:
        x = torch.randn(count, DIM, generator=generator).mul_(noise)
        x += centres[torch.randint(len(centres), (count,), generator=generator)]
        return torch.nn.functional.normalize(x, out=x).numpy()

    return draw(items), draw(QUERIES)


class Exact:
    effort = 0

    def __init__(self, vectors: Embeddings) -> None:
        self._index = ExactIndex(np.arange(len(vectors)), vectors)

    def candidates(self, queries: Embeddings, count: int, threads: int) -> Ids:
        torch.set_num_threads(threads)
        return self._index.nearest(queries, count)[1]


class Faiss:
    def __init__(self, vectors: Embeddings, kind: str) -> None:
        if kind == "IVF":
            cells = 4 * math.isqrt(len(vectors))
            self._index = faiss.IndexIVFFlat(faiss.IndexFlatL2(DIM), DIM, cells)
            self._index.train(some(vectors, 40 * cells))
            self.effort = 8
        else:
            stored = {"fp16": "QT_fp16", "bf16": "QT_bf16", "int8": "QT_8bit"}.get(kind)
            quantizer = stored and getattr(faiss.ScalarQuantizer, stored)
            self._index = faiss.IndexHNSWSQ(DIM, quantizer, LINKS) if stored else faiss.IndexHNSWFlat(DIM, LINKS)
            self._index.hnsw.efConstruction = EXPLORED_TO_ADD
            self._index.train(some(vectors, CHUNK))
            self.effort = 64
        for start in range(0, len(vectors), CHUNK):
            self._index.add(vectors[start : start + CHUNK])
        self._kind = kind

    def candidates(self, queries: Embeddings, count: int, threads: int) -> Ids:
        faiss.omp_set_num_threads(threads)
        if self._kind == "IVF":
            how = faiss.SearchParametersIVF(nprobe=self.effort)
        else:
            how = faiss.SearchParametersHNSW(efSearch=self.effort)
        return np.asarray(self._index.search(queries, count, params=how)[1])


class USearch:
    effort = 64

    def __init__(self, vectors: Embeddings, kind: str) -> None:
        dtype = {"f32": "f32", "bf16": "bf16", "int8": "i8"}[kind]
        self._index = usearch.index.Index(
            ndim=DIM, metric="l2sq", dtype=dtype, connectivity=LINKS, expansion_add=EXPLORED_TO_ADD
        )
        # Left to itself, usearch gives every vector the same length before it rounds it to int8.
        self._unit = float(np.abs(vectors).max()) / 127 if kind == "int8" else None
        for start in range(0, len(vectors), CHUNK):
            chunk = self._rounded(vectors[start : start + CHUNK])
            self._index.add(np.arange(start, start + len(chunk)), chunk, threads=torch.get_num_threads())

    def candidates(self, queries: Embeddings, count: int, threads: int) -> Ids:
        self._index.expansion_search = self.effort
        found = self._index.search(self._rounded(queries), count, threads=threads).keys
        return np.asarray(found, np.int64).reshape(len(queries), count)

    def _rounded(self, vectors: Embeddings) -> npt.NDArray[np.float32] | npt.NDArray[np.int8]:
        return vectors if self._unit is None else np.rint(vectors / self._unit).clip(-127, 127).astype(np.int8)


CONTESTANTS: dict[str, Callable[[Embeddings], Index]] = {
    "exact": Exact,
    **{f"faiss {kind}": partial(Faiss, kind=kind) for kind in ("IVF", "f32", "fp16", "bf16", "int8")},
    **{f"usearch {kind}": partial(USearch, kind=kind) for kind in ("f32", "bf16", "int8")},
}


def measure(name: str, items: int, noise: float, links: int) -> Measured:
    """Measures one contestant; called in its own process."""
    global LINKS
    LINKS = links
    torch.zeros(1), faiss.IndexFlatL2(1)  # loads both libraries first
    vectors, queries = blobs(items, noise)
    before, start, cpu = megabytes(), time.perf_counter(), time.process_time()
    index = CONTESTANTS[name](vectors)
    build, build_cpu = time.perf_counter() - start, time.process_time() - cpu
    grown, threads = megabytes() - before, torch.get_num_threads()
    truth = ExactIndex(np.arange(items), vectors).nearest(queries, K)[1]

    def search(some: Embeddings, threads: int = threads) -> Ids:
        proposed = index.candidates(some, CANDIDATES, threads)
        distances = np.linalg.norm(vectors[proposed].astype(np.float64) - some[:, None], axis=2)
        return np.take_along_axis(proposed, distances.argsort(axis=1)[:, :K], axis=1)

    half = QUERIES // 2
    for _ in range(DOUBLINGS - 1):
        if share(search(queries[:half]), truth[:half]) >= TARGET_RECALL:
            break
        index.effort *= 2
    found = search(queries[half:])
    at_1, at_10 = (share(found[:, :k], truth[half:, :k]) for k in (1, K))
    alone = (rate(partial(search, threads=1), queries, size, time.process_time) for size in (1, 64))
    together = (rate(search, queries, size, time.perf_counter) for size in (1, 64))
    return Measured(
        items, name, index.effort, build, build_cpu, grown, *alone, *together, at_1, at_10, os.getloadavg()[0]
    )


def some(vectors: Embeddings, count: int) -> Embeddings:
    return vectors[np.random.default_rng(0).permutation(len(vectors))[:count]]


def index_images(count: int) -> str:
    """Indexes ``count`` image files, then indexes them again."""
    with tempfile.TemporaryDirectory() as folder:
        photos, gallery, rng = Path(folder, "photos"), Path(folder, "gallery"), np.random.default_rng(0)
        for number in range(count):
            file = photos / f"class{number % 100}" / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(file, compress_level=1)
        spec = ModelSpec("small", DIM, preprocess=Preprocess(SIDE, SIDE, 3, (0.5,) * 3, (0.5,) * 3))
        Embedder(EmbeddingModel(spec)).save(Path(folder, "model"))
        before, seconds = megabytes(), []
        for _ in range(2):
            start = time.perf_counter()
            nearkin.index(Path(folder, "model"), photos, gallery).close()
            seconds.append(time.perf_counter() - start)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        size = sum(file.stat().st_size for file in gallery.rglob("*") if file.is_file()) / 1e6
    return (
        f"{count:,} images of {SIDE}×{SIDE} pixels: {seconds[0]:.0f} s, {1000 * seconds[0] / count:.2f} ms each; "
        f"again, without changes: {seconds[1]:.1f} s; memory {before:,.0f} MB before, {peak:,.0f} MB at most; "
        f"gallery {size:,.0f} MB; load {os.getloadavg()[0]:.1f}"
    )


def rate(search: Search, queries: Embeddings, size: int, clock: Callable[[], float]) -> float:
    search(queries[:size])
    done, start = 0, clock()
    while clock() - start < SECONDS:
        first = done % (len(queries) - size + 1)
        search(queries[first : first + size])
        done += size
    return done / (clock() - start)


def share(found: Ids, truth: Ids) -> float:
    return float(np.mean([np.isin(there, here).mean() for here, there in zip(found, truth, strict=True)]))


def megabytes() -> float:
    status = Path("/proc/self/status").read_text().splitlines()  # Linux
    return float(next(line.split()[1] for line in status if line.startswith("VmRSS"))) / 1024


def row(each: Measured) -> str:
    rates = (each.one_by_one_1_thread, each.batches_1_thread, each.one_by_one, each.batches)
    return (
        f"| {each.items:,} | {each.name} | {each.effort or '–'} | {each.build_seconds:.1f} | "
        f"{each.build_cpu_seconds:.1f} | {each.megabytes:,.0f} | {' | '.join(f'{rate:,.0f}' for rate in rates)} | "
        f"{each.recall_at_1:.1%} | {each.recall_at_10:.1%} | {each.load:.1f} |"
    )


HEAD = """\
| items | search | effort | build s | build CPU s | memory MB | q/s, 1 thread | in batches | q/s, all threads | \
in batches | recall@1 | recall@10 | load |
|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="items")
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--noise", type=float, default=0.7, help="spread of the points of a class; classes have 1")
    parser.add_argument("--links", type=int, default=LINKS, help="of an item in HNSW's graph")
    parser.add_argument("--out", type=Path, help="also write everything as JSON, after every contestant")
    parser.add_argument("--index", type=int, metavar="COUNT", help="instead, index this number of image files")
    options = parser.parse_args()
    about = {
        **made("cpu"),
        "faiss": faiss.__version__,
        "usearch": usearch.__version__,
        "threads": torch.get_num_threads(),
        "dim": DIM,
        "per_class": PER_CLASS,
        "noise": options.noise,
        "links": options.links,
    }
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    if options.index:
        print(index_images(options.index))
        return
    print(HEAD, flush=True)
    measured = []
    if options.out is not None and options.out.exists():
        measured = [Measured(**each) for each in json.loads(options.out.read_text())["measured"]]
    done = {(each.items, each.name) for each in measured}
    for items, name in product(options.sizes, options.contestants):
        if (items, name) not in done:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                measured.append(process.submit(measure, name, items, options.noise, options.links).result())
            print(row(measured[-1]), flush=True)
            if options.out is not None:
                content = {**about, "measured": [asdict(each) for each in measured]}
                options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
