"""Images of strangers are decoded in worker processes with limits: one costs some time and memory, whatever it holds.

A worker loads little more than Pillow. The kernel ends it after two seconds of CPU time and refuses it more than 300 MB
beside what it started with; the parent ends it where an answer takes too long. Each time that costs one image, and the
next one gets a new worker. Requests and answers are plain bytes: nothing is unpickled on either side.

Linux keeps both limits. macOS limits time but not memory; Windows, where nearkin does not run, has neither.
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

from nearkin.data.images import BeyondLimits, Unreadable, read_image, read_resized, read_small
from nearkin.errors import OutOfRoom
from nearkin.signals import block_signals

SECONDS = 2.0  # of CPU time for an image
MEMORY = 300 * 2**20  # bytes for an image
PATIENCE = 30.0  # seconds until an answer, on a busy machine and a slow disk
MOST_WORKERS = 8  # so that all of them together take bounded memory too

_WORKER = "import sys; sys.path[:] = sys.argv[1:]; from nearkin.data.decoders import work; work()"
# Large blocks go back to the system when they are freed, and no thread reserves address space: both would count.
_ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**20),
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_REQUEST = struct.Struct("<c?IB")  # what is asked, of content or path, for which side, resampled how; then that
_ANSWER = struct.Struct("<cII")  # what came of it, width, height; then the pixels, or the reason
_Answer = tuple[tuple[int, int], bytes] | Unreadable  # size and pixels


class DecoderPool:
    """Decodes images in worker processes with limits; many threads may use it at once.

    Workers start when they are first needed. They end with the block, in the middle of an image if need be.

    Args:
        workers: how many images are decoded at once; None: as many as cores, up to 8.

    >>> with DecoderPool(workers=1) as decoders:
    ...     print(decoders.read(Path("no-such-file.jpg"), short=256))
    no-such-file.jpg: no such file
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or min(MOST_WORKERS, os.cpu_count() or 1)
        self._decoders = [_Decoder() for _ in range(self.workers)]
        self._idle: LifoQueue[_Decoder] = LifoQueue()  # the one used last is the first to be used again
        for decoder in self._decoders:
            self._idle.put(decoder)

    def read(self, source: Path | bytes, short: int, interpolation: str = "bicubic") -> Image.Image | Unreadable:
        """As `read_image`, of a file or of what it holds; resized, for whole images are too much to hand over.

        Args:
            short: the short side that it gets, as of `Preprocess.resize`.
            interpolation: as of `Preprocess`.
        """
        resampling = Image.Resampling[interpolation.removesuffix("-exact").upper()]
        return _image(self._ask(b"r", source, short, resampling))

    def read_small(self, path: Path, side: int) -> Image.Image | Unreadable:
        """As `nearkin.data.images.read_small`."""
        return _image(self._ask(b"s", path, side))

    def check(self, path: Path) -> Unreadable | None:
        """Why it cannot be read, if so: as `read`, but the pixels stay in the worker."""
        found = self._ask(b"v", path)
        return found if isinstance(found, Unreadable) else None

    def close(self) -> None:
        """Ends all workers at once."""
        for decoder in self._decoders:
            decoder.close()

    def __enter__(self) -> DecoderPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, kind: bytes, source: Path | bytes, side: int = 0, resampling: int = 0) -> _Answer:
        decoder = self._idle.get()
        try:
            return decoder.ask(_REQUEST.pack(kind, isinstance(source, bytes), side, resampling), source)
        finally:
            self._idle.put(decoder)


def _image(answer: _Answer) -> Image.Image | Unreadable:
    return answer if isinstance(answer, Unreadable) else Image.frombytes("RGB", *answer)


class _Decoder:
    """One worker, or the one after it; asked by one thread at a time, closed by any."""

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
                if not connection.poll(PATIENCE):
                    self._end()
                    return BeyondLimits(path, f"takes more than {PATIENCE:.0f} seconds to read")
                outcome, width, height = _ANSWER.unpack(connection.recv_bytes())
                content = connection.recv_bytes()
            except (EOFError, OSError):  # the worker has ended
                self._end()
                if process.returncode == -signal.SIGPROF:
                    return BeyondLimits(path, f"takes more than {SECONDS:.0f} seconds to decode")
                return BeyondLimits(path, "ended the process that decoded it")
            except BaseException:  # Ctrl-C: the answer would be taken for that to the next question
                self._end()
                raise
        if outcome == b"+":
            return (width, height), content
        return (BeyondLimits if outcome == b">" else Unreadable)(path, content.decode())

    def close(self) -> None:
        self._closed = True
        if running := self._running:
            running[0].kill()  # whoever waits for its answer stops waiting
        with self._asking:
            self._end()

    def _worker(self) -> tuple[subprocess.Popen[bytes], Connection]:
        if self._running is None:
            self._running = _start()
        if self._closed:  # only now: `close` has seen this worker, or it is seen here that it was called
            self._end()
            raise ValueError("the decoders are closed")
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
    with theirs, block_signals():  # Ctrl-C is the parent's to hear, which then ends its workers
        try:
            process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
            )
        except OSError as error:
            ours.close()
            raise OutOfRoom(
                f"no process can be started to decode images ({error}); end other programs first"
            ) from error
    return process, ours


def work() -> None:
    """What a worker does: it answers one request after the other until the parent is gone."""
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    _limit_memory()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    parent = Connection(sys.stdin.fileno())
    with suppress(EOFError):
        while True:
            _answer_one(parent)


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):  # not Linux, or there is a lower limit already
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _answer_one(parent: Connection) -> None:
    kind, is_content, side, resampling = _REQUEST.unpack(parent.recv_bytes())
    given = parent.recv_bytes()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # ends the process
    head, body = _answer(kind, given if is_content else Path(os.fsdecode(given)), side, resampling)
    signal.setitimer(signal.ITIMER_PROF, 0)
    parent.send_bytes(head)
    parent.send_bytes(body)


def _answer(kind: bytes, source: Path | bytes, side: int, resampling: int) -> tuple[bytes, bytes]:
    if kind == b"r":
        image = read_resized(source, side, Image.Resampling(resampling))
    else:
        image = read_small(source, side) if kind == b"s" else read_image(source)
    if isinstance(image, Unreadable):
        outcome = b">" if isinstance(image, BeyondLimits) else b"-"
        return _ANSWER.pack(outcome, 0, 0), image.reason.encode(errors="replace")
    return _ANSWER.pack(b"+", *image.size), b"" if kind == b"v" else image.tobytes()
