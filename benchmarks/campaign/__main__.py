"""Fuzzing: feeds thousands of hostile files and requests to nearkin, and prints a table of the outcomes.

    python -m benchmarks.campaign                       # about ten minutes, as `make campaign`
    python -m benchmarks.campaign --seconds 40          # as in CI
    python -m benchmarks.campaign --kinds images tables
    python -m benchmarks.campaign --case images:1234    # repeats one case

A case depends only on the seed, its kind and its number. It starts from a small valid file, damages it (bits, bytes,
lengths, or the format's own structure), and passes it to a command. nearkin must accept it or reject it with one
sentence. Everything else is a failure: a traceback, a hang, too much memory, a changed file outside the output, a
started program, an opened connection, a dead process, control characters on the terminal. Failing cases are kept in a
folder, with the command that repeats them.

Every kind gets the same time. The machine determines how many cases run, but not which.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.campaign.supervisor import Limits, Summary, run_campaign
from benchmarks.campaign.warm import FOLDER

KINDS = {
    "images": "benchmarks.campaign.images:case",
    "tables": "benchmarks.campaign.tables:case",
    "runs": "benchmarks.campaign.runs:case",
    "galleries": "benchmarks.campaign.galleries:case",
    "requests": "benchmarks.campaign.requests:case",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="duration, without preparation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of processes")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--case", metavar="KIND:NUMBER", action="append", default=[], help="run only this case")
    parser.add_argument("--keep", type=Path, default=Path("scratch/campaign"), help="folder for failing cases")
    options = parser.parse_args()
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"  # it warns of semaphores of killed processes
    with tempfile.TemporaryDirectory(prefix="nearkin-campaign-") as work:
        os.environ[FOLDER] = work
        multiprocessing.set_forkserver_preload(["benchmarks.campaign.warm"])
        kinds = {kind: KINDS[kind] for kind in options.kinds}
        arguments = (options.keep, options.seed, options.seconds, options.jobs, options.case)
        summary = run_campaign(kinds, Path(work) / "specimens", Path(work), *arguments)
    print(table(summary))
    return 1 if summary.failures else 0


def table(summary: Summary) -> str:
    """One line per kind of input, as Markdown, followed by all failures."""
    limits = Limits()
    lines = [
        "| kind | cases | rejected with one sentence | accepted | failures | slowest case | highest memory |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for kind, results in summary.by_kind().items():
        refused, accepted = (sum(each.verdict == verdict for each in results) for verdict in ("refused", "accepted"))
        slowest = max((each.seconds for each in results), default=0.0)
        memory = max((each.megabytes for each in results), default=0)
        failed = len(results) - refused - accepted
        lines.append(
            f"| {kind} | {len(results):,} | {refused:,} | {accepted:,} | {failed:,} | {slowest:.1f} s | {memory:,} MB |"
        )
    lines.append(
        f"\n{len(summary.results):,} cases in {summary.seconds:.0f} s; seed {summary.seed}; "
        f"limits: {limits.seconds:.0f} s per case, {limits.megabytes:,} MB per process."
    )
    lines += [f"\n{each.kind}:{each.number}: {each.verdict}: {each.detail}" for each in summary.failures]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
