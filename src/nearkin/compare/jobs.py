"""Many runs, one after the other or side by side in processes; a stop ends all of them at their next step.

Child processes are deaf to signals: Ctrl-C reaches a whole process group, the parent passes a stop on, and a second
request would kill. They listen to a pipe instead, which closes when the parent stops, and also when it was killed.
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
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import ParamSpec, TypeVar

import torch

from nearkin.compare.task import Task, attempt
from nearkin.errors import Interrupted, OutOfRoom
from nearkin.progress import Advance, bar, quiet
from nearkin.signals import deaf_children
from nearkin.training.monitoring import stop_requests

log = logging.getLogger("nearkin")

LAST_STEP = 60.0  # seconds that runs have for a step and a checkpoint when one of them was killed
P = ParamSpec("P")
T = TypeVar("T")
Lane = Generator[Task, str | None, None]  # yields tasks one after the other; is sent why one was refused, or None


def run_lanes(lanes: Iterable[Lane], total: int, jobs: int) -> None:
    """Carries out ``total`` tasks: those of one lane in sequence, up to ``jobs`` lanes at a time."""
    with bar("runs", total) as advance:
        try:
            if jobs == 1:
                _one_by_one(lanes, advance)
            else:
                _side_by_side(lanes, jobs, advance)
        except Interrupted:
            raise Interrupted("stopped; the same command goes on from here") from None


def _one_by_one(lanes: Iterable[Lane], advance: Advance) -> None:
    for lane in lanes:
        task = _following(lane, None, advance)
        while task is not None:
            log.info("%s", task.name)
            reason = attempt(task)
            advance()
            task = _following(lane, reason, advance)


def _following(lane: Lane, reason: str | None, advance: Advance) -> Task | None:
    """The lane's next task that is not finished already."""
    try:
        task = lane.send(reason)
        while task.finished:
            advance()
            task = lane.send(None)
    except StopIteration:
        return None
    return task


def _side_by_side(lanes: Iterable[Lane], jobs: int, advance: Advance) -> None:
    waiting = iter(lanes)
    running: dict[Future[_Outcome], tuple[Lane, Task]] = {}

    with stop_requests() as asked, _crew(jobs) as crew:

        def start(lane: Lane, reason: str | None) -> None:
            task = _following(lane, reason, advance)
            if task is not None:
                running[crew.submit(_attempt_in_child, task)] = (lane, task)

        while True:
            while len(running) < jobs and (lane := next(waiting, None)) is not None:
                start(lane, None)
            if not running:
                return
            for future in wait(running, timeout=0.2, return_when=FIRST_COMPLETED).done:
                lane, task = running.pop(future)
                reason = _heard(task, future)
                log.info("%s: ended", task.name)
                advance()
                start(lane, reason)
            crew.check()
            advance(0)  # runs take long: a line now and then says that they go on
            if asked():
                raise Interrupted("stopped")


@dataclass(frozen=True)
class _Outcome:
    """How a task ended in a child, as plain data: an exception would keep alive all that the run had in its hands."""

    said: str
    refused: str | None = None
    failed: str | None = None
    no_room: str | None = None
    stopped: bool = False


def _heard(task: Task, future: Future[_Outcome]) -> str | None:
    """Why the task was refused, if it was; what else ended it ends the comparison."""
    outcome = future.result()
    for line in outcome.said.splitlines():
        log.warning("%s: %s", task.name, line)
    if outcome.failed is not None:
        raise RuntimeError(outcome.failed)
    if outcome.no_room is not None:
        raise OutOfRoom(f"{task.name}: {outcome.no_room}")
    if outcome.stopped:
        raise Interrupted("stopped")
    return outcome.refused


class _Crew:
    """The processes of a pool, watched: the pool itself may overlook the end of one that it started last."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self.pool = pool
        self.members: set[BaseProcess] = set()
        self._others = set(multiprocessing.active_children())

    def submit(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> Future[T]:
        with deaf_children():
            future = self.pool.submit(function, *args, **options)
        self.members |= set(multiprocessing.active_children()) - self._others
        return future

    def check(self) -> None:
        if any(member.exitcode is not None for member in self.members):
            raise BrokenProcessPool

    def end(self, seconds: float) -> None:
        """Waits so long for members to end by themselves, and kills those that have not."""
        until = time.monotonic() + seconds
        while any(member.exitcode is None for member in self.members) and time.monotonic() < until:
            time.sleep(0.1)
        for member in self.members:
            member.kill()


@contextmanager
def _crew(jobs: int) -> Iterator[_Crew]:
    """Processes that start when they are first needed; they end with the block, at their next step if it failed."""
    context = multiprocessing.get_context("spawn")  # CUDA and threads do not survive a fork
    ear, mouth = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, context, _begin_child, (ear, jobs, multiprocessing.get_start_method()))
    crew = _Crew(pool)
    try:
        yield crew
    except BrokenProcessPool:
        mouth.close()
        crew.end(LAST_STEP)  # the pool would wait for them, and they do not hear its request to end
        raise OutOfRoom(
            "the process of a run was ended from outside, most likely for want of memory; "
            "the same command goes on from here, with fewer --jobs if need be"
        ) from None
    except BaseException:
        mouth.close()
        raise
    finally:
        try:
            pool.shutdown(cancel_futures=True)
        except KeyboardInterrupt:  # the second one
            crew.end(0)
            raise
        finally:
            mouth.close()


_ended = threading.Event()  # in a child: whether the parent has asked it to stop
_busy = threading.Lock()  # in a child: held while a task is carried out


def _begin_child(ear: Connection, jobs: int, start_method: str) -> None:
    multiprocessing.set_start_method(start_method, force=True)  # of its own children, which decode images
    torch.set_num_threads(min(torch.get_num_threads(), max(1, (os.cpu_count() or 1) // jobs)))
    threading.Thread(target=_listen, args=(ear,), daemon=True).start()


def _listen(ear: Connection) -> None:
    ear.poll(None)  # nothing is ever said: the pipe only closes
    _ended.set()
    _thread.interrupt_main(signal.SIGTERM)  # runs the main thread's handler, as a signal would
    with _busy:  # its last step and checkpoint
        os._exit(1)


def _attempt_in_child(task: Task) -> _Outcome:
    with _busy, quiet(), redirect_stderr(io.StringIO()) as said:
        try:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            if _ended.is_set():
                return _Outcome("", stopped=True)
            refused = attempt(task)
            return _Outcome(said.getvalue(), refused)
        except (Interrupted, KeyboardInterrupt):
            return _Outcome(said.getvalue(), stopped=True)
        except OutOfRoom as error:
            return _Outcome(said.getvalue(), no_room=str(error))
        except Exception as error:
            return _Outcome(said.getvalue(), failed=str(error))
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            gc.collect()  # the next run of this process finds the memory free, and so do its neighbours
            torch.cuda.empty_cache()
