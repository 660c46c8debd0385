"""Speed and recall of gallery search, exact and approximate.

    pip install 'nearkin[search]'
    python benchmarks/search.py                                  # 10,000, 100,000 and 1,000,000 items
    python benchmarks/search.py --sizes 10000 100000             # a trial run
    python benchmarks/search.py --links 16 32 --out docs/results/search.json
    python benchmarks/search.py --index 20000                    # instead: time and memory of `nearkin index`

This is the search of `nearkin.search` without its files: `ExactIndex`, used for up to 100,000 items, and
`ApproximateIndex` with HNSW, used for up to a million, and with IVF, used for more; each with the search effort that
`nearkin index` would choose. The points are noisy clusters on the sphere, 20 per class; the queries are other points of
the same classes. (Without clusters, approximate indexes have a low recall: try `--noise 1.4`.) Each contestant runs in
its own process. "build" includes choosing the effort. "memory" is how much the process grew, not counting the vectors
it indexes; a faiss index has a copy of them. "load" is the machine's load average over the last minute: on a busy
machine, all speeds are too low.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import faiss
import numpy as np
import torch
from PIL import Image

import nearkin
from nearkin.data.transforms import Preprocess
from nearkin.experiments.provenance import provenance
from nearkin.models import Embedder, EmbeddingModel, ModelSpec
from nearkin.search import vector_index
from nearkin.search.store import Embeddings
from nearkin.search.vector_index import ApproximateIndex, ExactIndex, Ids

DIM, PER_CLASS, QUERIES, CHUNK, SIDE = 128, 20, 512, 20_000, 32
SECONDS = 3.0  # per measurement of speed
HNSW_UP_TO = {"HNSW": 10**12, "IVF": 0}

Search = Callable[[Embeddings], Ids]


@dataclass(frozen=True)
class Measured:
    """Result of one contestant; rates are queries per second, one by one and in batches of 64."""

    items: int
    name: str
    build_seconds: float
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


def measure(kind: str, items: int, noise: float, links: int) -> Measured:
    """Measures one contestant; called in its own process."""
    vector_index.LINKS = links
    torch.zeros(1), faiss.IndexFlatL2(1)  # loads both libraries first
    vectors, queries = blobs(items, noise)
    ids = np.arange(items)
    before, start = megabytes(), time.perf_counter()
    name, search = exact(ids, vectors) if kind == "exact" else approximately(kind, ids, vectors)
    build_seconds, grown = time.perf_counter() - start, megabytes() - before
    rates: list[tuple[float, float]] = []
    threads = torch.get_num_threads()
    for count in (1, threads):
        torch.set_num_threads(count)
        faiss.omp_set_num_threads(count)
        rates.append((rate(search, queries, 1), rate(search, queries, 64)))
    truth = ExactIndex(ids, vectors).nearest(queries, 10)[1] if kind != "exact" else search(queries)
    found = search(queries)
    at_1, at_10 = (share(found[:, :k], truth[:, :k]) for k in (1, 10))
    return Measured(items, name, build_seconds, grown, *rates[0], *rates[1], at_1, at_10, os.getloadavg()[0])


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


def exact(ids: Ids, vectors: Embeddings) -> tuple[str, Search]:
    ready = ExactIndex(ids, vectors)
    return "exact", lambda queries: ready.nearest(queries, 10)[1]


def approximately(kind: str, ids: Ids, vectors: Embeddings) -> tuple[str, Search]:
    vector_index.HNSW_UP_TO = HNSW_UP_TO[kind]
    some = np.random.default_rng(0).permutation(len(ids))
    chunks = [(ids[start : start + CHUNK], vectors[start : start + CHUNK]) for start in range(0, len(ids), CHUNK)]
    index = ApproximateIndex.build(len(ids), vectors[some[: vector_index.sample_size(len(ids))]], chunks)
    index.tune(
        lambda queries, k: np.sqrt(index.candidates(queries, k)[0]), vectors[some[: vector_index.TUNE_QUERIES]], chunks
    )
    return str(index), lambda queries: index.candidates(queries, 10)[1]


def rate(search: Search, queries: Embeddings, size: int) -> float:
    search(queries[:size])
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        first = done % (len(queries) - size + 1)
        search(queries[first : first + size])
        done += size
    return done / (time.perf_counter() - start)


def share(found: Ids, truth: Ids) -> float:
    return float(np.mean([np.isin(there, here).mean() for here, there in zip(found, truth, strict=True)]))


def megabytes() -> float:
    status = Path("/proc/self/status").read_text().splitlines()  # Linux
    return float(next(line.split()[1] for line in status if line.startswith("VmRSS"))) / 1024


def row(each: Measured) -> str:
    rates = (each.one_by_one_1_thread, each.batches_1_thread, each.one_by_one, each.batches)
    return (
        f"| {each.items:,} | {each.name} | {each.build_seconds:.1f} | {each.megabytes:,.0f} | "
        f"{' | '.join(f'{rate:,.0f}' for rate in rates)} | "
        f"{each.recall_at_1:.1%} | {each.recall_at_10:.1%} | {each.load:.1f} |"
    )


HEAD = """\
| items | search | build s | memory MB | q/s, 1 thread | in batches | q/s, all threads | in batches | \
recall@1 | recall@10 | load |
|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="items")
    parser.add_argument("--noise", type=float, default=0.7, help="spread of the points of a class; classes have 1")
    default = vector_index.LINKS
    parser.add_argument("--links", type=int, nargs="+", default=[default], help="HNSW links, one contestant each")
    parser.add_argument("--out", type=Path, help="also write everything as JSON, after every contestant")
    parser.add_argument("--index", type=int, metavar="COUNT", help="instead, index this number of image files")
    options = parser.parse_args()
    about = {
        **provenance("cpu"),
        "torch": torch.__version__,
        "faiss": faiss.__version__,
        "threads": torch.get_num_threads(),
        "dim": DIM,
        "per_class": PER_CLASS,
        "noise": options.noise,
    }
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    if options.index:
        print(index_images(options.index))
        return
    print(HEAD, flush=True)
    measured = []
    for items in options.sizes:
        for kind, links in (("exact", default), ("IVF", default), *(("HNSW", links) for links in options.links)):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                measured.append(process.submit(measure, kind, items, options.noise, links).result())
            print(row(measured[-1]), flush=True)
            if options.out is not None:
                content = {**about, "measured": [asdict(each) for each in measured]}
                options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
