"""Counts processes whose first float32 sqrt, exp, log or sin on several threads is inaccurate (see `nearkin._mkl`).

    python benchmarks/first_calls.py                # torch as it is
    python benchmarks/first_calls.py --settled      # after `import nearkin._mkl`

Processes are forked in waves, more than there are cores, so that their threads start out of step. torch is loaded but
has not computed anything before the fork. On an Intel Xeon with MKL 2024.2, some first calls were reported to be wrong
by up to 4e-4 (https://github.com/pytorch/pytorch/issues/188792). On an AMD EPYC none was found: there, MKL's sqrt of
low accuracy is as accurate as the others.
"""

from __future__ import annotations

import argparse
import importlib
import os

import numpy as np
import torch

FUNCTIONS = ("sqrt", "exp", "log", "sin")
NUMBERS, THREADS, TOLERANCE = 400_000, 4, 5e-6


def wrong() -> list[str]:
    """The functions whose first call is inaccurate in this process."""
    torch.set_num_threads(THREADS)
    x = np.random.default_rng(0).random(NUMBERS, dtype=np.float32) + 0.01
    tensor = torch.from_numpy(x)
    tensor + tensor  # starts the threads
    return [name for name in FUNCTIONS if not close(getattr(tensor, name)(), getattr(np, name)(x.astype(np.float64)))]


def close(found: torch.Tensor, expected: np.ndarray) -> bool:
    return np.allclose(found.numpy(), expected, rtol=TOLERANCE, atol=TOLERANCE)


def wave(processes: int) -> int:
    """How many of the processes found something wrong."""
    children = []
    for _ in range(processes):
        if (child := os.fork()) == 0:
            found = wrong()
            if found:
                print("inaccurate:", *found, flush=True)
            os._exit(bool(found))
        children.append(child)
    return sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waves", type=int, default=40)
    parser.add_argument("--processes", type=int, default=8, help="in each wave")
    parser.add_argument("--settled", action="store_true", help="import nearkin._mkl first")
    wanted = parser.parse_args()
    if wanted.settled:
        importlib.import_module("nearkin._mkl")
    found = sum(wave(wanted.processes) for _ in range(wanted.waves))
    print(f"{found} of {wanted.waves * wanted.processes} processes had an inaccurate first call")


if __name__ == "__main__":
    main()
