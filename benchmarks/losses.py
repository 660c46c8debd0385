"""Time and memory of each loss, forward and backward, compared with pytorch-metric-learning or brute force.

    python benchmarks/losses.py                          # this machine's CPU, a few minutes
    python benchmarks/losses.py --device cuda --sizes 128 512 2048 4096
    python benchmarks/losses.py --losses facility-location spectral
    python benchmarks/losses.py --device cuda --sizes 128 512 2048 4096 --compile
    python benchmarks/losses.py --device cuda --sizes 128 512 --compile --modes unchecked graphed  # a minute

Both sides of a row run alternately in one process, on the same random batch of 64 dimensions with four items per class,
so their ratio holds even on a shared machine; milliseconds are medians. With ``OMP_NUM_THREADS=1``, they are CPU time,
which hardly depends on other work. "MB" is the increase of peak memory. An equivalent starts at a batch of 128 and ends
where a step is expected to take over a minute. Equivalents are losses of pytorch-metric-learning with the same formula,
with three differences: its triplets are all semi-hard ones instead of one per pair, its N-pairs formula is NTXentLoss,
and its contrastive loss does not square. The baseline of facility-location is the slow reference of the tests, forward
only.

"Operations" counts what torch dispatches in the forward and backward pass, without views and allocations: about the
number of kernels that the loss launches on a GPU. With ``--compile``, each loss is compared with itself: without checks
that read data ("unchecked"), compiled in one graph, and, on CUDA, compiled to CUDA graphs ("reduce-overhead") or
recorded as such without a compiler (`nearkin.losses.graphed`). ``--modes`` chooses among these.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from nearkin.errors import UserError
from nearkin.losses import graphed, make_loss
from nearkin.losses.batch import unchecked

DIM, PER_CLASS, LONGEST = 64, 4, 60.0
SMALL = 128  # an equivalent starts here: its time for larger batches is unknown
Step = Callable[[Tensor, Tensor], Tensor]


def brute_force() -> Step:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from reference.facility_location import facility_location_loss

    return lambda x, y: x.sum() * 0 + facility_location_loss(nn.functional.normalize(x).detach().numpy(), y.numpy())


def theirs(name: str, classes: int) -> Step | None:
    """The closest equivalent in another library."""
    if name == "facility-location":
        return brute_force()
    from pytorch_metric_learning import distances, losses, miners

    plain = distances.LpDistance(normalize_embeddings=False)
    mined: dict[str, tuple[nn.Module, nn.Module]] = {
        "triplet": (losses.TripletMarginLoss(0.2), miners.TripletMarginMiner(0.2, "semihard")),
        "margin": (losses.MarginLoss(), miners.DistanceWeightedMiner(nonzero_loss_cutoff=2.0)),
    }
    if name in mined:
        loss, miner = mined[name]
        return lambda x, y: loss(x, y, miner(x, y))
    alone: dict[str, Callable[[], nn.Module]] = {
        "contrastive": losses.ContrastiveLoss,
        "lifted": lambda: losses.LiftedStructureLoss(1.0, 0.0, distance=plain),
        "nca": lambda: losses.NCALoss(1.0, distance=distances.LpDistance(normalize_embeddings=False, power=2)),
        "npairs": lambda: losses.NTXentLoss(1.0, distance=distances.DotProductSimilarity(normalize_embeddings=False)),
        "proxy-nca": lambda: losses.ProxyNCALoss(classes, DIM),
    }
    return alone[name]() if name in alone else None


def ours(name: str, classes: int) -> Step:
    return make_loss(name, **({"classes": classes, "dim": DIM} if name in ("proxy-nca", "softmax") else {}))


@dataclass
class Side:
    """One implementation at one size."""

    step: Step
    seconds: list[float]
    megabytes: float = 0.0
    operations: int = 0

    def run(self, x: Tensor, y: Tensor) -> None:
        x = x.detach().requires_grad_()
        synchronise(x)
        clock = time.perf_counter if x.is_cuda or torch.get_num_threads() > 1 else time.process_time
        start = clock()
        self.step(x, y).backward()
        synchronise(x)
        self.seconds.append(clock() - start)

    @property
    def milliseconds(self) -> float:
        return 1000 * statistics.median(self.seconds)


def measure(sides: list[Side], x: Tensor, y: Tensor, budget: float) -> None:
    """Runs the sides alternately until each has used its budget of seconds, after a warm-up."""
    for side in sides:
        side.run(x, y)  # warm-up: compilation, plans, threads
        side.megabytes = peak_megabytes(lambda side=side: side.run(x, y), x)
        with Operations() as operations:
            side.run(x, y)
        side.operations = operations.count
    alternate(sides, x, y, budget)


def alternate(sides: list[Side], x: Tensor, y: Tensor, budget: float) -> None:
    for side in sides:
        side.seconds.clear()
    while waiting := [side for side in sides if sum(side.seconds) < budget]:
        for side in waiting:
            side.run(x, y)


class Operations(TorchDispatchMode):
    """Counts the operations that compute or copy something."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.__name__.split(".")[0]
        self.count += not (function.is_view or "empty" in name or name in ("detach", "_unsafe_view"))
        return function(*args, **(kwargs or {}))


def peak_megabytes(run: Callable[[], None], x: Tensor) -> float:
    gc.collect()
    if x.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # Linux: returns freed memory to the system
    Path("/proc/self/clear_refs").write_text("5")  # and resets the peak
    before = resident("VmRSS")
    run()
    return (resident("VmHWM") - before) / 1024


def resident(field: str) -> float:
    status = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in status if line.startswith(field)))


def synchronise(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def batch(items: int, dim: int, classes: int, device: str) -> tuple[Tensor, Tensor]:
    x = torch.randn(items, dim, generator=torch.Generator().manual_seed(0))
    return x.to(device), (torch.arange(items) % classes).to(device)


NAMES = ["facility-location", "spectral", "magnet", "rank", "triplet", "lifted", "npairs", "contrastive", "margin"]
NAMES += ["proxy-nca", "nca", "softmax"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--losses", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--budget", type=float, default=2.0, help="seconds per row")
    parser.add_argument("--compile", action="store_true", help="compare with compiled losses, not with equivalents")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="columns of --compile")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device was found")
    if min(options.sizes) < 2 * PER_CLASS:
        parser.error(f"a batch needs at least two classes of {PER_CLASS} items")
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"{where}, torch {torch.__version__}, {DIM} dimensions, {PER_CLASS} items per class\n")
    (compare_with_compiled if options.compile else compare_with_equivalents)(options)


def compare_with_equivalents(options: argparse.Namespace) -> None:
    columns = "loss | batch | ms | equivalent, ms | ratio | MB | equivalent, MB | operations | equivalent, operations"
    print(f"| {columns} |\n{'|---' * 9}|")
    for name in options.losses:
        sizes = [(items, DIM, items // PER_CLASS) for items in options.sizes]
        if name == "spectral":
            sizes.insert(0, (1260, 100, 70))  # the paper's batch
        growth: list[float] = []
        for items, dim, classes in sizes:
            x, y = batch(items, dim, classes, options.device)
            sides = [Side(on(ours(name, classes), x), [])]
            other = theirs(name, classes) if options.device == "cpu" or name != "facility-location" else None
            if other is not None and (growth[1] * (items / growth[0]) ** 3 < LONGEST if growth else items <= SMALL):
                sides.append(Side(on(other, x), []))
            other_cell = "–"
            try:
                measure(sides, x, y, options.budget)
            except torch.OutOfMemoryError:
                sides, other_cell = sides[:1], "out of memory"
                measure(sides, x, y, options.budget)
            cells = [f"{sides[0].milliseconds:.2f}", other_cell, "–", f"{sides[0].megabytes:.0f}", "–"]
            cells += [f"{sides[0].operations}", "–"]
            if len(sides) == 2:
                growth = [items, sides[1].milliseconds / 1000]
                ratio = sides[0].milliseconds / sides[1].milliseconds
                cells[1:3] = [f"{sides[1].milliseconds:.2f}", f"{ratio:.2f}" if ratio > 0.1 else f"{ratio:.2g}"]
                cells[4], cells[6] = f"{sides[1].megabytes:.0f}", f"{sides[1].operations}"
            title = f"{name}, d = {dim}" if dim != DIM else name
            print(f"| {title} | {items} | {' | '.join(cells)} |", flush=True)


def compare_with_compiled(options: argparse.Namespace) -> None:
    modes = [mode for mode in options.modes if options.device == "cuda" or mode not in ON_CUDA]
    print(f"| loss | batch | eager, ms | {', ms | '.join(modes)}, ms |\n{'|---' * (3 + len(modes))}|")
    for name in options.losses:
        for items in options.sizes:
            x, y = batch(items, DIM, items // PER_CLASS, options.device)
            loss = on(ours(name, items // PER_CLASS), x)
            torch.compiler.reset()
            steps = {mode: MODES[mode](loss, items) for mode in modes}
            sides = {mode: Side(step, []) for mode, step in {"eager": loss, **steps}.items() if step is not None}
            for side in list(sides.values()) * 3:  # the first run compiles, the next ones record CUDA graphs
                side.run(x, y)
            alternate(list(sides.values()), x, y, options.budget)
            cells = [f"{sides[mode].milliseconds:.2f}" if mode in sides else "–" for mode in ("eager", *modes)]
            print(f"| {name} | {items} | {' | '.join(cells)} |", flush=True)


def recorded(loss: nn.Module, items: int) -> Step | None:
    try:
        return graphed(loss, items, DIM)
    except UserError:  # it reads data on the host
        return None


def without_checks(loss: Step) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        with unchecked():
            return loss(x, y)

    return step


MODES: dict[str, Callable[[nn.Module, int], Step | None]] = {
    "unchecked": lambda loss, _: without_checks(loss),
    "compiled": lambda loss, _: torch.compile(loss, fullgraph=True),
    "reduce-overhead": lambda loss, _: torch.compile(loss, fullgraph=True, mode="reduce-overhead"),
    "graphed": recorded,
}
ON_CUDA = ("reduce-overhead", "graphed")


def on(step: Step, x: Tensor) -> Step:
    return step.to(x.device) if isinstance(step, nn.Module) else step


if __name__ == "__main__":
    main()
