"""A process that makes cases, runs each in a sandbox, and checks its effects."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import io
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import stat
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# Must not appear in any message: unexpected errors, and the advice to unpickle.
UNEXPECTED = re.compile(
    r"Traceback \(most recent|unexpected \w*(?:Error|Exception|Interrupt)|weights_only set to False"
)
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # control characters of a terminal
MOST_OUTPUT = 200_000  # characters that a case may print
STARTS = {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen"}
PROGRAMS = (sys.executable, "git")  # worker processes, and git for the commit of a result
CONNECTS = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname"}
CHANGES = {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}


class Refused(Exception):
    """nearkin rejected the input with a message."""


class Failure(Exception):
    """nearkin did something that it must never do; ``verdict`` names the type."""

    def __init__(self, verdict: str, detail: str) -> None:
        super().__init__(detail)
        self.verdict = verdict


@dataclass(frozen=True)
class Result:
    """The result of a case; ``verdict``: accepted, refused, or the type of failure."""

    kind: str
    number: int
    verdict: str
    detail: str
    seconds: float
    megabytes: int
    more: str = field(default="", repr=False)

    @property
    def failed(self) -> bool:
        return self.verdict not in ("accepted", "refused")


@dataclass(frozen=True)
class Sandbox:
    """The folders of a worker.

    A command reads ``case/input`` and may write only to ``case/out``. The input, ``home`` and the files next to the
    input must not change.
    """

    folder: Path
    specimens: Path

    @property
    def input(self) -> Path:
        return self.folder / "case" / "input"

    @property
    def out(self) -> Path:
        return self.folder / "case" / "out"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def log(self) -> Path:
        """Standard output and error of libraries and other threads."""
        return self.folder / "worker.log"

    def prepare(self) -> None:
        """Makes a home folder with files that a user would miss."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("home/.ssh", "home/photos", "cache", "tmp", "case"):
            (self.folder / name).mkdir(parents=True)
        for name in ("home/thesis.txt", "home/.ssh/id", "home/photos/items.sqlite", "tmp/notes.txt"):
            (self.folder / name).write_text("years of work\n")
        names = {"HOME": "home", "TMPDIR": "tmp", "NEARKIN_CACHE": "cache", "XDG_CACHE_HOME": "cache"}
        os.environ.update({name: str(self.folder / folder) for name, folder in names.items()})
        os.environ.update({"MPLCONFIGDIR": str(self.folder / "cache"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"})
        tempfile.tempdir = None
        os.chdir(self.folder / "case")

    def fresh(self) -> None:
        """Empties the input and the output folder."""
        for folder in (self.input, self.out):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        (self.folder / "case" / "beside.txt").write_text("years of work\n")

    def untouchable(self) -> dict[str, str]:
        """Everything that must be the same after a case."""
        found = contents(self.home) | contents(self.input) | contents(self.specimens)
        for file in (self.folder / "case" / "beside.txt", self.folder / "tmp" / "notes.txt"):
            found |= {str(file): file.read_text() if file.is_file() else "gone"}
        return found

    def nearkin(self, *arguments: str | Path) -> str:
        """Runs a command as a user would, in this process; returns what it printed."""
        from nearkin import cli

        sys.argv = ["nearkin", *map(str, arguments)]
        out, err = io.StringIO(), io.StringIO()
        code: Any = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                cli.main()
            except SystemExit as end:
                code = end.code
        printed = out.getvalue() + err.getvalue()
        for verdict, pattern in (("traceback", UNEXPECTED), ("terminal", CONTROL)):
            if found := pattern.search(printed):
                around = printed[max(0, found.start() - 100) : found.end() + 300]
                raise Failure(verdict, f"{arguments[0]} printed {around!r}")
        if len(printed) > MOST_OUTPUT:
            raise Failure("output", f"{len(printed):,} characters")
        if code:
            if not err.getvalue().strip():
                raise Failure("silence", f"exit code {code} without a message")
            raise Refused(err.getvalue())
        return out.getvalue()


Action = Callable[[], object]
Maker = Callable[[random.Random, Sandbox], Action]


def work(pipe: Connection, sandbox: Sandbox, kinds: Mapping[str, str], seed: int) -> None:
    """The loop of a worker: receives a kind and a number, and sends a result.

    On SIGUSR1 it writes its traceback to the log.
    """
    os.setsid()
    sys.dont_write_bytecode = True  # a first import in a case would look like a forbidden write
    multiprocessing.set_start_method("fork", force=True)  # as in a user's process, not a forkserver
    sandbox.prepare()
    log = os.open(sandbox.log, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable(2)
    # By the main thread itself: faulthandler's timer reads its frames while they change, and may crash.
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
    makers: dict[str, Maker] = {kind: _function(address) for kind, address in kinds.items()}
    watch = Watch(sandbox)
    pipe.send("ready")
    while True:
        try:
            kind, number = pipe.recv()
        except EOFError:
            return
        pipe.send(try_case(makers[kind], kind, number, seed, sandbox, watch, log, partial(pipe.send, "started")))


def _function(address: str) -> Callable[..., Any]:
    """Imports a function by its address, "module:function"."""
    module, _, name = address.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def try_case(
    maker: Maker,
    kind: str,
    number: int,
    seed: int,
    sandbox: Sandbox,
    watch: Watch,
    log: int,
    started: Callable[[], object],
) -> Result:
    sandbox.fresh()
    action = maker(random.Random(f"{seed}:{kind}:{number}"), sandbox)
    before = sandbox.untouchable()
    os.ftruncate(log, 0)
    os.lseek(log, 0, os.SEEK_SET)
    reset_peak()
    children = _children_peak()
    started()
    began = time.monotonic()
    verdict, detail, more = "accepted", "", ""
    with watch:
        try:
            action()
        except Exception as error:
            verdict, detail = judged(error)
            more = "".join(traceback.format_exception(error))
    seconds = time.monotonic() - began
    peak = max(peak_of(os.getpid()), *map(peak_of, descendants(os.getpid())), _children_peak(since=children))
    if verdict in ("accepted", "refused"):
        after = sandbox.untouchable()
        changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
        if watch.seen:
            verdict, detail = watch.seen[0]
        elif changed:
            verdict, detail = "changed", f"{len(changed)} files outside the output, the first {changed[0]}"
        elif "Traceback (most recent" in (logged := sandbox.log.read_text(errors="replace")):
            verdict, detail, more = "traceback", "on standard error", logged
        elif len(logged) > MOST_OUTPUT:
            verdict, detail = "output", f"{len(logged):,} characters on standard error"
    return Result(kind, number, verdict, detail.strip()[:600], seconds, peak, more)


def judged(error: Exception) -> tuple[str, str]:
    """The verdict and detail of an exception; OSError is fine, because the commands turn it into a message."""
    from nearkin.errors import UserError

    if isinstance(error, Failure):
        return error.verdict, str(error)
    if isinstance(error, Refused | UserError | OSError) and not UNEXPECTED.search(str(error)):
        return "refused", str(error)
    return "traceback", f"{type(error).__name__}: {error}"


class Watch:
    """While open, records every forbidden write, started program and connection."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._open = False
        self._allowed = tuple(f"{sandbox.folder / name}{os.sep}" for name in ("case/out", "cache", "tmp"))
        self.seen: list[tuple[str, str]] = []
        sys.addaudithook(self._on_event)

    def __enter__(self) -> None:
        self.seen, self._open = [], True

    def __exit__(self, *_: object) -> None:
        self._open = False

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._open:
            return
        if event in STARTS and arguments[0] not in PROGRAMS:
            self.seen.append(("executed", f"{event} {arguments[:2]!r}"))
        elif event in CONNECTS and not _is_local(arguments):
            self.seen.append(("connected", f"{event} {arguments!r}"))
        elif event in CHANGES or (event == "open" and _writes(arguments)):
            path = arguments[0]
            if isinstance(path, str | bytes | os.PathLike) and not self._may_write(event, os.fsdecode(path)):
                self.seen.append(("changed", f"{event} {os.fsdecode(path)!r}"))

    def _may_write(self, event: str, path: str) -> bool:
        whole = os.path.realpath(path)
        exists = event == "os.mkdir" and Path(whole).is_dir()  # fails and changes nothing
        return exists or whole.startswith(self._allowed) or whole == os.devnull


def _writes(arguments: tuple[Any, ...]) -> bool:
    """Whether an ``open`` event (path, mode, flags) can write; a link with O_NOFOLLOW cannot."""
    path, _, flags = arguments[:3]
    if not isinstance(flags, int) or (flags & os.O_NOFOLLOW and os.path.islink(path)):  # noqa: PTH114
        return False
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))


def _is_local(arguments: tuple[Any, ...]) -> bool:
    """Whether a connection stays on this machine, as with the campaign's server: its address or a socket file."""
    return "127.0.0.1" in str(arguments) or (len(arguments) > 1 and isinstance(arguments[1], str | bytes))


def contents(folder: Path) -> dict[str, str]:
    """Every path below a folder, with its mode, size and modification time; does not follow links."""
    found = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(parent, name)  # noqa: PTH118 (hundreds per case)
            seen = os.lstat(path)
            written = () if stat.S_ISDIR(seen.st_mode) else (seen.st_size, seen.st_mtime_ns)
            found[path] = str((seen.st_mode, *written))
    return found


def reset_peak() -> None:
    """Resets the kernel's count of this process's peak memory."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_of(pid: int) -> int:
    """Peak of resident memory in megabytes since `reset_peak`; 0 if the process has ended."""
    return _status(pid, "VmHWM")


def memory_of(pid: int) -> int:
    """Largest resident memory in megabytes of a process and its descendants."""
    return max(_status(each, "VmRSS") for each in (pid, *descendants(pid)))


def descendants(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        own = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
        return own + [each for child in own for each in descendants(child)]
    return []


def _status(pid: int, name: str) -> int:
    with contextlib.suppress(OSError, AttributeError):
        found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) // 1024 if found else 0
    return 0


def _children_peak(since: int = 0) -> int:
    """Peak memory of child processes that have ended; 0 if it is not above ``since``."""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    return peak if peak > since else 0
