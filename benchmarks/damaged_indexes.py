"""Counts how faiss and usearch take damaged index files: refused, searched, or the process crashes.

    pip install 'nearkin[search]' usearch
    python -m benchmarks.damaged_indexes
    python -m benchmarks.damaged_indexes --files 1500 --library faiss

A gallery may come from someone else, so its index file is not to be trusted. Each file is an HNSW index of 1,000
vectors, damaged at random as in `benchmarks.campaign`. It is loaded and searched in a process of its own, with 4 GB.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import faiss
import numpy as np
import usearch.index
from benchmarks.campaign.mutate import damaged

DIM, MEMORY, SECONDS = 8, 4 * 2**30, 20
VECTORS = np.random.default_rng(0).standard_normal((1000, DIM)).astype(np.float32)
REFUSED = 3  # exit status


def make_faiss(file: Path) -> None:
    index = faiss.IndexIDMap(faiss.IndexHNSWFlat(DIM, 32))
    index.add_with_ids(VECTORS, np.arange(len(VECTORS)))
    faiss.write_index(index, str(file))


def search_faiss(file: Path) -> None:
    faiss.set_deserialization_vector_byte_limit(file.stat().st_size)
    index = faiss.read_index(str(file))
    if index.d != DIM:
        raise ValueError(index.d)
    index.search(VECTORS[:50], 20)


def make_usearch(file: Path) -> None:
    index = usearch.index.Index(ndim=DIM, metric="l2sq", dtype="f32", connectivity=32)
    index.add(np.arange(len(VECTORS)), VECTORS, threads=1)
    index.save(str(file))


def search_usearch(file: Path) -> None:
    index = usearch.index.Index.restore(str(file))
    if index is None or index.ndim != DIM:
        raise ValueError(index)
    index.search(VECTORS[:50], 20, threads=1)


LIBRARIES = {"faiss": (make_faiss, search_faiss), "usearch": (make_usearch, search_usearch)}


def outcome(search: Callable[[Path], None], file: Path) -> str:
    """What a process that searches the file comes to."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        signal.alarm(SECONDS)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        try:
            search(file)
        except BaseException:
            os._exit(REFUSED)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {0: "searched", REFUSED: "refused"}.get(status, "crashed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=300)
    parser.add_argument("--library", choices=LIBRARIES, nargs="+", default=list(LIBRARIES))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in options.library:
            make, search = LIBRARIES[name]
            file, found = Path(folder, name), Counter[str]()
            make(file)
            whole = file.read_bytes()
            for seed in range(options.files):
                rng = Random(seed)
                file.write_bytes(damaged(whole, rng, first=rng.choice((200, None))))
                found[outcome(search, file)] += 1
            print(f"{name}: {', '.join(f'{count} {what}' for what, count in found.most_common())}")


if __name__ == "__main__":
    main()
