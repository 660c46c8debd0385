"""Decodes untrusted images in worker processes with limits on time and memory.

A worker loads little more than Pillow. The kernel kills it after two seconds of CPU time and denies it more than 300 MB
on top of what it starts with. The parent kills it if an answer takes too long. Each kill costs one image; a new
worker decodes the next. Requests and answers are plain bytes: neither side unpickles anything.

Linux enforces both limits. macOS limits time but not memory. Windows, where nearkin does not run, enforces neither.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import LifoQueue
from types import TracebackType

from PIL import AvifImagePlugin, Image

from nearkin.data.images import BeyondLimits, Unreadable, read_image, read_small
from nearkin.errors import ResourceError
from nearkin.signals import block_signals

SECONDS = 2.0  # CPU time per image
MEMORY = 300 * 2**20  # bytes per image
TIMEOUT = 30.0  # seconds to wait for an answer: the machine may be busy and the disk slow
MAX_WORKERS = 8  # bounds the memory of all workers together

_WORKER = "import sys; sys.path[:] = sys.argv[1:]; from nearkin.data.decoders import work; work()"
# Free large blocks at once and reserve no address space for threads: both would count towards the memory limit.
_ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**20),
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_REQUEST = struct.Struct("<c?Id")  # kind, whether content or a path follows, side, seconds allowed
_ANSWER = struct.Struct("<cII")  # outcome, width, height; the pixels or the reason follow
_Answer = tuple[tuple[int, int], bytes] | Unreadable  # size and pixels


class DecoderPool:
    """Decodes images in worker processes with limits. Thread-safe.

    A worker starts when it is first needed. Leaving the `with` block kills all workers, even in the middle of an image.

    Args:
        workers: number of images decoded at once; None: one per core, up to 8.

    >>> with DecoderPool(workers=1) as decoders:
    ...     print(decoders.read(Path("no-such-file.jpg"), short=256))
    no-such-file.jpg: no such file
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or min(MAX_WORKERS, os.cpu_count() or 1)
        self._decoders = [_Decoder() for _ in range(self.workers)]
        self._idle: LifoQueue[_Decoder] = LifoQueue()  # last in, first out: start as few workers as possible
        for decoder in self._decoders:
            self._idle.put(decoder)

    def read(self, source: Path | bytes, short: int) -> Image.Image | Unreadable:
        """Same as `nearkin.data.images.read_image`."""
        return _image(self._ask(b"r", source, short))

    def read_small(self, path: Path, side: int) -> Image.Image | Unreadable:
        """Same as `nearkin.data.images.read_small`."""
        return _image(self._ask(b"s", path, side))

    def check(self, path: Path) -> Unreadable | None:
        """Returns why the image cannot be read, or None if it can. The pixels stay in the worker."""
        found = self._ask(b"v", path)
        return found if isinstance(found, Unreadable) else None

    def close(self) -> None:
        """Kills all workers at once."""
        for decoder in self._decoders:
            decoder.close()

    def __enter__(self) -> DecoderPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, kind: bytes, source: Path | bytes, side: int = 0) -> _Answer:
        decoder = self._idle.get()
        try:
            return decoder.ask(_REQUEST.pack(kind, isinstance(source, bytes), side, SECONDS), source)
        finally:
            self._idle.put(decoder)


def _image(answer: _Answer) -> Image.Image | Unreadable:
    return answer if isinstance(answer, Unreadable) else Image.frombytes("RGB", *answer)


class _Decoder:
    """A worker, replaced when it dies. One thread asks at a time; any thread may close."""

    def __init__(self) -> None:
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None
        self._closed = False
        self._asking = threading.Lock()

    def ask(self, request: bytes, source: Path | bytes) -> _Answer:
        path, content = (
            (Path("upload"), source) if isinstance(source, bytes) else (source, os.fsencode(source.absolute()))
        )
        with self._asking:
            process, connection = self._worker()
            try:
                connection.send_bytes(request)
                connection.send_bytes(content)
                if not connection.poll(TIMEOUT):
                    self._end()
                    return BeyondLimits(path, f"takes more than {TIMEOUT:.0f} seconds to read")
                outcome, width, height = _ANSWER.unpack(connection.recv_bytes())
                content = connection.recv_bytes()
            except (EOFError, OSError):  # the worker has ended
                self._end()
                if process.returncode == -signal.SIGPROF:
                    return BeyondLimits(path, f"takes more than {SECONDS:g} seconds to decode")
                return BeyondLimits(path, "the process decoding it ended unexpectedly")
            except BaseException:  # Ctrl-C: the pending answer would be mistaken for the next request's
                self._end()
                raise
        if outcome == b"+":
            return (width, height), content
        return (BeyondLimits if outcome == b">" else Unreadable)(path, content.decode())

    def close(self) -> None:
        self._closed = True
        if running := self._running:
            running[0].kill()  # a thread that waits for its answer stops waiting
        with self._asking:
            self._end()

    def _worker(self) -> tuple[subprocess.Popen[bytes], Connection]:
        if self._running is None:
            self._running = _start()
        if self._closed:  # checked after the start: `close` may have run in between and missed this worker
            self._end()
            raise ValueError("this DecoderPool is closed; create a new one")
        return self._running

    def _end(self) -> None:
        if self._running:
            process, connection = self._running
            process.kill()
            process.wait()
            connection.close()
            self._running = None


def _start() -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = Pipe()
    command = [sys.executable, "-c", _WORKER, *map(str, sys.path)]
    environment = {**os.environ, **_ENVIRONMENT}
    with theirs, block_signals():  # the parent handles Ctrl-C and then kills its workers
        try:
            process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
            )
        except OSError as error:
            ours.close()
            raise ResourceError(
                f"could not start a process to decode images ({error}); close other programs first"
            ) from error
    return process, ours


def work() -> None:
    """Runs in a worker: answers requests until the parent is gone."""
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    _limit_memory()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    parent = Connection(sys.stdin.fileno())
    with suppress(EOFError):
        while True:
            _answer_one(parent)


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):  # not Linux, or a lower limit is already set
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _answer_one(parent: Connection) -> None:
    kind, is_content, side, seconds = _REQUEST.unpack(parent.recv_bytes())
    given = parent.recv_bytes()
    signal.setitimer(signal.ITIMER_PROF, seconds)  # kills the process when it expires
    head, body = _answer(kind, given if is_content else Path(os.fsdecode(given)), side)
    signal.setitimer(signal.ITIMER_PROF, 0)
    parent.send_bytes(head)
    parent.send_bytes(body)


def _answer(kind: bytes, source: Path | bytes, side: int) -> tuple[bytes, bytes]:
    image = read_small(source, side) if kind == b"s" else read_image(source, side or None)
    if isinstance(image, Unreadable):
        outcome = b">" if isinstance(image, BeyondLimits) else b"-"
        return _ANSWER.pack(outcome, 0, 0), image.reason.encode(errors="replace")
    return _ANSWER.pack(b"+", *image.size), b"" if kind == b"v" else image.tobytes()
