"""A process that makes one case after the other, runs it in a sandbox and looks at what it left behind."""

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

# What no message may hold: an error that nobody thought of, and advice to unpickle.
UNEXPECTED = re.compile(
    r"Traceback \(most recent|unexpected \w*(?:Error|Exception|Interrupt)|weights_only set to False"
)
OBEYED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # characters that a terminal acts upon
MOST_OUTPUT = 200_000  # bytes that a case may say
STARTS = {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen"}
PROGRAMS = (sys.executable, "git")  # worker processes, and what asks for the commit that a result is of
CONNECTS = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname"}
CHANGES = {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}


class Refused(Exception):
    """nearkin said no, in words."""


class Failure(Exception):
    """nearkin did what it must never do; the first word names the sort."""

    def __init__(self, verdict: str, detail: str) -> None:
        super().__init__(detail)
        self.verdict = verdict


@dataclass(frozen=True)
class Result:
    """What became of a case: accepted, refused, or the sort of its failure."""

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

    ``home`` and what is beside the input must never change; ``case/input`` is what the command reads, and must not
    change either; ``case/out`` is what it may write.
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
        """What libraries and other threads write to standard error."""
        return self.folder / "worker.log"

    def prepare(self) -> None:
        """A home of its own, with files that a user would miss."""
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
        """An empty input and an empty output."""
        for folder in (self.input, self.out):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        (self.folder / "case" / "beside.txt").write_text("years of work\n")

    def untouchable(self) -> dict[str, str]:
        """All that must be the same after a case."""
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
        said = out.getvalue() + err.getvalue()
        for sort, pattern in (("traceback", UNEXPECTED), ("terminal", OBEYED)):
            if found := pattern.search(said):
                around = said[max(0, found.start() - 100) : found.end() + 300]
                raise Failure(sort, f"{arguments[0]} said {around!r}")
        if len(said) > MOST_OUTPUT:
            raise Failure("output", f"{len(said):,} characters")
        if code:
            if not err.getvalue().strip():
                raise Failure("silence", f"exit code {code} without a word")
            raise Refused(err.getvalue())
        return out.getvalue()


Action = Callable[[], object]
Maker = Callable[[random.Random, Sandbox], Action]


def work(pipe: Connection, sandbox: Sandbox, kinds: Mapping[str, str], seed: int) -> None:
    """The life of a worker: a kind and a number come in, a result goes out.

    On SIGUSR1 it writes to its log where it is.
    """
    os.setsid()
    multiprocessing.set_start_method("fork", force=True)  # as in a user's process; here it would be that of the worker
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
        pipe.send(try_case(makers[kind], kind, number, seed, sandbox, watch, log, partial(pipe.send, "begun")))


def _function(address: str) -> Callable[..., Any]:
    """What "module:function" names."""
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
    begun: Callable[[], object],
) -> Result:
    sandbox.fresh()
    action = maker(random.Random(f"{seed}:{kind}:{number}"), sandbox)
    before = sandbox.untouchable()
    os.ftruncate(log, 0)
    os.lseek(log, 0, os.SEEK_SET)
    reset_peak()
    children = _children_peak()
    begun()
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
        elif "Traceback (most recent" in (said := sandbox.log.read_text(errors="replace")):
            verdict, detail, more = "traceback", "on standard error", said
        elif len(said) > MOST_OUTPUT:
            verdict, detail = "output", f"{len(said):,} bytes on standard error"
    return Result(kind, number, verdict, detail.strip()[:600], seconds, peak, more)


def judged(error: Exception) -> tuple[str, str]:
    """Whether an exception is a refusal in words; the commands word what the system says about files as well."""
    from nearkin.errors import UserError

    if isinstance(error, Failure):
        return error.verdict, str(error)
    if isinstance(error, Refused | UserError | OSError) and not UNEXPECTED.search(str(error)):
        return "refused", str(error)
    return "traceback", f"{type(error).__name__}: {error}"


class Watch:
    """Hears of every file that is written, program that is started and connection that is made, while it is open."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._open = False
        self._allowed = tuple(f"{sandbox.folder / name}{os.sep}" for name in ("case/out", "cache", "tmp"))
        self.seen: list[tuple[str, str]] = []
        sys.addaudithook(self._hear)

    def __enter__(self) -> None:
        self.seen, self._open = [], True

    def __exit__(self, *_: object) -> None:
        self._open = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
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
        there = event == "os.mkdir" and Path(whole).is_dir()  # it will be told so; nothing changes
        return there or whole.startswith(self._allowed) or whole == os.devnull


def _writes(arguments: tuple[Any, ...]) -> bool:
    """Whether an ``open`` event (path, mode, flags) is for writing; of a link that must not be followed, it is not."""
    path, _, flags = arguments[:3]
    if not isinstance(flags, int) or (flags & os.O_NOFOLLOW and os.path.islink(path)):  # noqa: PTH114
        return False
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))


def _is_local(arguments: tuple[Any, ...]) -> bool:
    """Whether a connection is to this machine, as the campaign's own server has it: an address or a socket file."""
    return "127.0.0.1" in str(arguments) or (len(arguments) > 1 and isinstance(arguments[1], str | bytes))


def contents(folder: Path) -> dict[str, str]:
    """Every path below a folder, with what changes when it is written; links are not followed."""
    found = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(parent, name)  # noqa: PTH118 (hundreds for every case)
            seen = os.lstat(path)
            written = () if stat.S_ISDIR(seen.st_mode) else (seen.st_size, seen.st_mtime_ns)
            found[path] = str((seen.st_mode, *written))
    return found


def reset_peak() -> None:
    """Makes the kernel count the peak of this process's memory from here."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_of(pid: int) -> int:
    """Megabytes of resident memory, at most, since `reset_peak`; 0 for a process that is gone."""
    return _status(pid, "VmHWM")


def memory_of(pid: int) -> int:
    """Megabytes of resident memory of a process or one that it started, whichever has more."""
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
    """The peak of all processes that were started and have ended; 0 where that is not more than ``since``."""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    return peak if peak > since else 0
