"""Executes many runs, one after the other or in worker processes; a stop ends all of them at their next step.

Workers ignore signals: Ctrl-C reaches the whole process group, the parent passes the stop on, and a second signal would
kill them. Instead they wait for a pipe to close, which happens when the parent stops, and also when it is killed.
"""

from __future__ import annotations

import _thread
import gc
import io
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stderr
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import ParamSpec, TypeVar

import torch

from nearkin.errors import Interrupted, ResourceError
from nearkin.experiments.runs import Task, attempt
from nearkin.plugins import import_as_parent
from nearkin.progress import Advance, bar, quiet
from nearkin.signals import block_signals
from nearkin.training.monitoring import stop_requests

log = logging.getLogger("nearkin")

LAST_STEP = 60.0  # seconds for the others to finish a step and save a checkpoint when a worker was killed
P = ParamSpec("P")
T = TypeVar("T")
Job = Generator[Task, str | None, None]  # yields tasks; each yield returns the reason of a failure, or None


def run_jobs(jobs: Iterable[Job], total: int, workers: int) -> None:
    """Runs ``total`` tasks: the tasks of a job in sequence, up to ``workers`` jobs in parallel."""
    with bar("runs", total) as advance:
        try:
            if workers == 1:
                _run_here(jobs, advance)
            else:
                _run_in_workers(jobs, workers, advance)
        except Interrupted:
            raise Interrupted("stopped; run the same command to continue") from None


def _run_here(jobs: Iterable[Job], advance: Advance) -> None:
    for job in jobs:
        task = _next_task(job, None, advance)
        while task is not None:
            log.info("%s", task.name)
            refused = attempt(task)
            advance()
            task = _next_task(job, refused, advance)


def _next_task(job: Job, refused: str | None, advance: Advance) -> Task | None:
    """The job's next task that is not finished yet."""
    try:
        task = job.send(refused)
        while task.finished:
            advance()
            task = job.send(None)
    except StopIteration:
        return None
    return task


def _run_in_workers(jobs: Iterable[Job], workers: int, advance: Advance) -> None:
    waiting = iter(jobs)
    running: dict[Future[_Outcome], tuple[Job, Task]] = {}

    with stop_requests() as stop_requested, WorkerPool(workers) as pool:

        def start(job: Job, refused: str | None) -> None:
            task = _next_task(job, refused, advance)
            if task is not None:
                running[pool.submit(_attempt_in_worker, task)] = (job, task)

        while True:
            while len(running) < workers and (job := next(waiting, None)) is not None:
                start(job, None)
            if not running:
                return
            for future in wait(running, timeout=0.2, return_when=FIRST_COMPLETED).done:
                job, task = running.pop(future)
                refused = future.result().refusal(task)
                log.info("%s: finished", task.name)
                advance()
                start(job, refused)
            pool.check()
            advance(0)  # runs take long: show regularly that they are still going
            if stop_requested():
                raise Interrupted("stopped")


@dataclass(frozen=True)
class _Outcome:
    """How a task ended in a worker, as plain data: an exception would keep all objects of the run alive."""

    messages: str
    refused: str | None = None
    failed: str | None = None
    shortage: str | None = None
    stopped: bool = False

    def refusal(self, task: Task) -> str | None:
        """Why the task was refused, or None; any other failure is raised and ends the comparison."""
        for line in self.messages.splitlines():
            log.warning("%s: %s", task.name, line)
        if self.failed is not None:
            raise RuntimeError(self.failed)
        if self.shortage is not None:
            raise ResourceError(f"{task.name}: {self.shortage}")
        if self.stopped:
            raise Interrupted("stopped")
        return self.refused


class WorkerPool:
    """Worker processes that start when needed and end with the block; if it fails, at their next step.

    The pool checks its processes itself: an executor may miss the end of the one that it started last.
    """

    def __init__(self, workers: int) -> None:
        context = multiprocessing.get_context("spawn")  # CUDA and threads do not survive a fork
        reading_end, self._writing_end = context.Pipe(duplex=False)
        arguments = (reading_end, workers, multiprocessing.get_start_method())
        self._executor = ProcessPoolExecutor(workers, context, _start_worker, arguments)
        self.processes: set[BaseProcess] = set()
        self._others = set(multiprocessing.active_children())

    def submit(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> Future[T]:
        with block_signals():
            future = self._executor.submit(function, *args, **options)
        self.processes |= set(multiprocessing.active_children()) - self._others
        return future

    def check(self) -> None:
        """Raises `BrokenProcessPool` if a worker has ended."""
        if any(process.exitcode is not None for process in self.processes):
            raise BrokenProcessPool

    def end(self, seconds: float) -> None:
        """Waits up to ``seconds`` for the workers to end, and kills the others."""
        until = time.monotonic() + seconds
        while any(process.exitcode is None for process in self.processes) and time.monotonic() < until:
            time.sleep(0.1)
        for process in self.processes:
            process.kill()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        broken = isinstance(error, BrokenProcessPool)
        if error is not None:
            self._writing_end.close()
        if broken:
            self.end(LAST_STEP)  # the executor would wait forever: workers ignore its signal
        try:
            self._executor.shutdown(cancel_futures=True)
        except KeyboardInterrupt:  # the second one
            self.end(0)
            raise
        finally:
            self._writing_end.close()
        if broken:
            raise ResourceError(
                "a worker process was killed, most likely because memory ran out; "
                "run the same command to continue, with fewer jobs if needed"
            ) from None


_stopped = threading.Event()  # in a worker: whether the parent has asked it to stop
_busy = threading.Lock()  # in a worker: held while a task runs


def _start_worker(reading_end: Connection, workers: int, start_method: str) -> None:
    multiprocessing.set_start_method(start_method, force=True)  # for its own child processes, which decode images
    torch.set_num_threads(min(torch.get_num_threads(), max(1, (os.cpu_count() or 1) // workers)))
    threading.Thread(target=_wait_for_stop, args=(reading_end,), daemon=True).start()
    import_as_parent()


def _wait_for_stop(reading_end: Connection) -> None:
    reading_end.poll(None)  # nothing is ever sent: the pipe only closes
    _stopped.set()
    _thread.interrupt_main(signal.SIGTERM)  # runs the main thread's handler, as a signal would
    with _busy:  # waits for the last step and checkpoint
        os._exit(1)


def _attempt_in_worker(task: Task) -> _Outcome:
    with _busy, quiet(), redirect_stderr(io.StringIO()) as messages:
        try:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            if _stopped.is_set():
                return _Outcome("", stopped=True)
            refused = attempt(task)
            return _Outcome(messages.getvalue(), refused)
        except (Interrupted, KeyboardInterrupt):
            return _Outcome(messages.getvalue(), stopped=True)
        except ResourceError as error:
            return _Outcome(messages.getvalue(), shortage=str(error))
        except Exception as error:
            return _Outcome(messages.getvalue(), failed=str(error))
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            gc.collect()  # frees memory for the next run and for the other workers
            torch.cuda.empty_cache()
