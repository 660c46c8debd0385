"""How long evaluation takes and how much memory, beside a plain faiss search for 1,001 neighbours.

    pip install faiss-cpu                                                        # the yardstick only
    python benchmarks/evaluation.py                                              # the size of Stanford Online Products
    python benchmarks/evaluation.py --items 20000 --classes 3740

Why this yardstick: Recall@1000 is usually read off a search for 1,001 neighbours of every item, which gives neither
ranks beyond them nor mAP. nearkin's exact ranking should cost no more than that search, in less memory; k-means
with thousands of clusters is the long part. Points are noisy blobs on the sphere. Each part runs in a process of its
own, so that its peak memory is its own; "memory" is the peak less what was there before the part began.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from nearkin.clustering import kmeans, nearest_neighbours
from nearkin.evaluation import cluster_scores, retrieve
from nearkin.space import Space


def blobs(items: int, dim: int, classes: int) -> Space:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(items) % classes
    centres = torch.randn(classes, dim, generator=generator)
    x = centres[labels] + 1.4 * torch.randn(items, dim, generator=generator)
    return Space.of(torch.nn.functional.normalize(x), labels)


def faiss_search(space: Space, k: int = 1001) -> str:
    import faiss

    index = faiss.IndexFlatL2(space.dim)
    index.add(space.embeddings.numpy())
    _, rows = index.search(space.embeddings.numpy(), min(k, len(space)))
    first_other = torch.from_numpy(rows[:, 1])
    return f"recall@1 {(space.labels[first_other] == space.labels).double().mean():.4f}"


def faiss_ten(space: Space) -> str:
    return faiss_search(space, k=11)


def ranking(space: Space) -> str:
    scores = retrieve(space).scores((1, 1000))
    return "  ".join(f"{name} {scores[name]:.4f}" for name in ("recall@1", "recall@1000", "map@r", "map"))


def neighbours(space: Space) -> str:
    distances, _ = nearest_neighbours(space.embeddings, space.embeddings, 10, torch.arange(len(space)))
    return f"mean distance {distances.mean():.4f}"


def clusters(space: Space) -> str:
    inertias: list[float] = []
    classes = len(torch.unique(space.labels))
    found = kmeans(space.embeddings, classes, after_each=inertias.append)
    nmi = cluster_scores(found.assignment, space.labels)["nmi_arithmetic"]
    return f"{len(inertias)} iterations  nmi {nmi:.4f}"


PARTS: dict[str, Callable[[Space], str]] = {
    "faiss, 1,001 neighbours": faiss_search,
    "nearkin retrieve": ranking,
    "nearkin nearest_neighbours, 10": neighbours,
    "faiss, 10 neighbours": faiss_ten,
    "nearkin kmeans": clusters,
}


def measure(part: str, items: int, dim: int, classes: int) -> tuple[float, float, str]:
    """Seconds, megabytes and a word about the result."""
    PARTS[part](blobs(min(items, 500), dim, min(classes, 50)))  # imports and threads are not what is measured
    space = blobs(items, dim, classes)
    before = peak_megabytes()
    start = time.perf_counter()
    result = PARTS[part](space)
    return time.perf_counter() - start, peak_megabytes() - before, result


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=60502)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--classes", type=int, default=11316)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    wanted = parser.parse_args()
    size = (wanted.items, wanted.dim, wanted.classes)
    print(f"{size[0]:,} items, {size[1]} dimensions, {size[2]:,} classes, {torch.get_num_threads()} threads")
    print(f"{'':32}{'seconds':>9}{'ratio':>8}{'memory MB':>11}   result")
    yardstick = None
    for part in wanted.parts:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            seconds, megabytes, result = process.submit(measure, part, *size).result()
        yardstick = yardstick or seconds
        print(f"{part:32}{seconds:9.1f}{seconds / yardstick:8.2f}{megabytes:11.0f}   {result}", flush=True)


if __name__ == "__main__":
    main()
