"""Sends cases to worker processes, and kills a worker whose case takes too long or too much memory."""

from __future__ import annotations

import multiprocessing
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path

from benchmarks.campaign.worker import Result, Sandbox, memory_of, work

POLL = 0.05  # seconds between checks of a worker's memory
MAKE = 20.0  # time limit for making a case, in addition to running it
STILL_SOUND = ("traceback", "refused", "accepted", "terminal", "disagreement", "wrong", "markup", "leak")
CASES_PER_WORKER = 2_000  # then it restarts, so that memory left by earlier cases does not count


@dataclass(frozen=True)
class Limits:
    """The limits of a case.

    Attributes:
        seconds: wall-clock time; more if the load of the machine is high. A case that takes longer is run once more, in
            a new process.
        megabytes: resident memory per process.
    """

    seconds: float = 5.0
    megabytes: int = 1_500

    def seconds_now(self) -> float:
        return self.seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@dataclass
class Summary:
    """The results of all cases."""

    kinds: list[str]
    seed: int
    results: list[Result] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failures(self) -> list[Result]:
        return [each for each in self.results if each.failed]

    def by_kind(self) -> dict[str, list[Result]]:
        return {kind: [each for each in self.results if each.kind == kind] for kind in self.kinds}


def run_campaign(
    kinds: Mapping[str, str],
    specimens: Path,
    folder: Path,
    keep: Path,
    seed: int = 0,
    seconds: float = 600.0,
    jobs: int = 2,
    only: Sequence[str] = (),
    limits: Limits = Limits(),  # noqa: B008
) -> Summary:
    """Runs cases of all kinds until the time is over.

    Args:
        kinds: name -> "module:function" that makes a case (see `worker.Maker`).
        specimens: the valid files that cases start from.
        folder: folder for the sandboxes of the workers.
        keep: folder for failing cases.
        only: "kind:number" of the cases to run, instead of as many as time allows.
    """
    summary = Summary(list(kinds), seed)
    sandboxes = [Sandbox(folder / f"worker{n}", specimens) for n in range(min(jobs, len(only) or jobs))]
    workers = [Worker(sandbox, kinds, seed, limits) for sandbox in sandboxes]
    began = time.monotonic()
    plan = Plan(kinds, only, began + seconds)
    try:
        while True:
            for worker in workers:
                if worker.case is None and (case := plan.next()):
                    worker.begin(*case)
            busy = [worker for worker in workers if worker.case is not None]
            if not busy:
                break
            wait([worker.pipe for worker in busy], timeout=POLL)
            for worker in busy:
                result = worker.poll()
                if result is None:
                    continue
                plan.took(result)
                if result.verdict == "hang" and plan.try_again(result):
                    worker.restart()
                    continue
                summary.results.append(result)
                if result.failed:
                    _keep(worker.sandbox, keep / f"{result.kind}-{result.number}", result, seed)
                    if result.verdict not in STILL_SOUND:
                        worker.restart()
    finally:
        for worker in workers:
            worker.stop()
    summary.seconds = time.monotonic() - began
    return summary


class Plan:
    """Chooses the next case: of the kind with the least time so far."""

    def __init__(self, kinds: Mapping[str, str], only: Sequence[str], ends: float) -> None:
        self._spent = dict.fromkeys(kinds, 0.0)
        self._numbers = dict.fromkeys(kinds, 0)
        self._ends = ends
        self._repeated: set[tuple[str, int]] = set()
        self._waiting = [(kind, int(number)) for kind, _, number in (each.partition(":") for each in only)]
        self._only = bool(only)

    def next(self) -> tuple[str, int] | None:
        if self._waiting:
            return self._waiting.pop()
        if self._only or time.monotonic() >= self._ends:
            return None
        kind = min(self._spent, key=self._spent.__getitem__)
        number = self._numbers[kind]
        self._numbers[kind] += 1
        self._spent[kind] += 0.01  # an estimate, so that two workers start with different kinds
        return kind, number

    def took(self, result: Result) -> None:
        self._spent[result.kind] += result.seconds

    def try_again(self, result: Result) -> bool:
        case = (result.kind, result.number)
        if case in self._repeated:
            return False
        self._repeated.add(case)
        self._waiting.append(case)
        return True


class Worker:
    """A process that runs one case after the other.

    Attributes:
        case: the current case.
        pipe: sends cases and receives results.
    """

    case: tuple[str, int] | None
    pipe: Connection
    _tried: int  # cases since the start
    _sent: float  # when the case was sent
    _since: float | None  # when the case started to run

    def __init__(self, sandbox: Sandbox, kinds: Mapping[str, str], seed: int, limits: Limits) -> None:
        self.sandbox, self._limits = sandbox, limits
        self._arguments = (sandbox, dict(kinds), seed)
        self._start()

    def begin(self, kind: str, number: int) -> None:
        if self._tried >= CASES_PER_WORKER:
            self.restart()
        self.case, self._tried = (kind, number), self._tried + 1
        self._sent, self._since = time.monotonic(), None
        self.pipe.send(self.case)

    def poll(self) -> Result | None:
        """The result, if there is one; exceeding a limit is a result too."""
        assert self.case is not None
        while self.pipe.poll():
            try:
                message = self.pipe.recv()
            except (EOFError, ConnectionResetError):
                self._process.join()
                return self._result("crash", f"the process died (exit code {self._process.exitcode})")
            except Exception as error:  # its memory may be corrupted
                return self._result("crash", f"its result cannot be read ({error})")
            if isinstance(message, Result):
                self.case = None
                if not message.failed and message.seconds > self._limits.seconds_now():
                    message = replace(message, verdict="hang", detail="took longer than the limit")
                if not message.failed and message.megabytes > self._limits.megabytes:
                    message = replace(message, verdict="memory", detail="used more memory than the limit")
                return message
            self._since = time.monotonic()  # the case is made and starts to run
        allowed = self._limits.seconds_now() + 0.5 if self._since else MAKE
        if time.monotonic() - (self._since or self._sent) > allowed:
            os.kill(self._process.pid or 0, signal.SIGUSR1)
            time.sleep(POLL)  # it writes its traceback to the log
            return self._result("hang", "was killed at the time limit" if self._since else "could not be made in time")
        if (megabytes := memory_of(self._process.pid or 0)) > self._limits.megabytes:
            return self._result("memory", f"was killed at {megabytes:,} MB")
        return None

    def restart(self) -> None:
        self.stop()
        self._start()

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid or 0, signal.SIGKILL)  # with its child processes
        self._process.kill()
        self._process.join()
        self.pipe.close()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, *self._arguments))
        self._process.start()
        theirs.close()
        try:
            self.pipe.recv()  # "ready"
        except EOFError:
            raise RuntimeError(f"a worker did not start:\n{self.sandbox.log.read_text()}") from None
        self.case, self._tried = None, 0

    def _result(self, verdict: str, detail: str) -> Result:
        assert self.case is not None
        (kind, number), self.case = self.case, None
        seconds = time.monotonic() - (self._since or self._sent)
        return Result(kind, number, verdict, detail, seconds, memory_of(self._process.pid or 0))


def _keep(sandbox: Sandbox, folder: Path, result: Result, seed: int) -> None:
    """Saves the files of a failing case, what happened, and the command that repeats it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    repeat = f"{shlex.quote(sys.executable)} -m benchmarks.campaign --seed {seed} --case {result.kind}:{result.number}"
    shutil.copy(sandbox.log, folder / "log.txt")
    (folder / "case.txt").write_text(f"{repeat}\n\n{result.verdict}: {result.detail}\n{result.more}\n", "utf-8")
    for name in ("input", "out"):
        # An exact copy, with links, pipes and odd names.
        subprocess.run(["cp", "-a", str(sandbox.folder / "case" / name), str(folder)], check=False)
