"""Decoding any image takes a bounded amount of one worker's time and memory; the other workers continue."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import numpy as np
import pytest
from PIL import Image
from reference import hostile_images as hostile

from nearkin.data import decoders
from nearkin.data.decoders import DecoderPool
from nearkin.data.images import BeyondLimits, Unreadable, read_image, read_small


@pytest.fixture(scope="module")
def pool() -> Iterator[DecoderPool]:
    with DecoderPool(workers=1) as pool:
        yield pool


def read(pool: DecoderPool, source: Path | bytes) -> Image.Image | Unreadable:
    return pool.read(source, short=90)  # the short side of `hostile.ordinary`


def is_ordinary(found: object) -> bool:
    return isinstance(found, Image.Image) and found.size == (120, 90)


def pid(pool: DecoderPool) -> int:
    running = pool._decoders[0]._running
    assert running is not None
    return running[0].pid


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_read_returns_what_the_reader_does(pool: DecoderPool, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x y"
    path.write_bytes(hostile.ordinary(kind, 400, 320))
    expected = read_image(path, 32)
    assert isinstance(expected, Image.Image) and expected.size == ((400, 320) if kind == "PNG" else (200, 160))
    for source in (path, path.read_bytes()):
        found = pool.read(source, 32)
        assert isinstance(found, Image.Image)
        assert np.array_equal(np.asarray(found), np.asarray(expected))


def test_read_small_returns_what_the_reader_does(pool: DecoderPool, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(hostile.ordinary())
    found, expected = pool.read_small(tmp_path / "x", 16), read_small(tmp_path / "x", 16)
    assert isinstance(found, Image.Image) and isinstance(expected, Image.Image)
    assert np.array_equal(np.asarray(found), np.asarray(expected))


@pytest.mark.filterwarnings("ignore")  # pytest turns nearkin's warning filters off
@pytest.mark.parametrize("name", sorted(hostile.HOSTILE.keys() - {hostile.SLOW}))
def test_check_gives_the_same_reason_as_the_reader(pool: DecoderPool, tmp_path: Path, name: str) -> None:
    (tmp_path / "x").write_bytes(hostile.HOSTILE[name]())
    found, expected = pool.check(tmp_path / "x"), read_image(tmp_path / "x")
    assert found == (expected if isinstance(expected, Unreadable) else None)
    assert type(found) in (type(expected), type(None))


def test_a_relative_path_is_relative_to_the_current_folder(
    pool: DecoderPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(read(pool, Path("x.jpg"))) == "x.jpg: no such file"
    (tmp_path / "x.jpg").write_bytes(hostile.ordinary())
    monkeypatch.chdir(tmp_path)
    assert is_ordinary(read(pool, Path("x.jpg")))


def test_an_image_that_takes_too_long_is_refused_and_the_next_one_is_read(
    pool: DecoderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoders, "SECONDS", 0.5)  # fast machines decode the image in less than 2 seconds
    before = getrusage(RUSAGE_CHILDREN)
    found = read(pool, hostile.ppm_of_numbers())
    assert isinstance(found, BeyondLimits) and found.reason == "takes more than 0.5 seconds to decode"
    after = getrusage(RUSAGE_CHILDREN)  # includes the worker that was killed
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0 + 2.0  # with its start and past
    assert is_ordinary(read(pool, hostile.ordinary()))


def test_an_image_that_takes_too_much_memory_is_refused_and_the_next_one_is_read(pool: DecoderPool) -> None:
    found = read(pool, hostile.png(9_990, 9_990, rows=1))
    assert isinstance(found, BeyondLimits) and found.reason == "takes too much memory to decode"
    assert is_ordinary(read(pool, hostile.ordinary()))
    peak = int(Path(f"/proc/{pid(pool)}/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
    assert peak < decoders.MEMORY + 100e6


def test_memory_is_freed_between_images(pool: DecoderPool) -> None:
    big = hostile.webp_of_size(3_700, 3_700)  # takes nearly all the memory allowed
    assert all(isinstance(read(pool, big), Image.Image) for _ in range(2))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_that_is_killed_costs_one_image(how: signal.Signals) -> None:
    with DecoderPool(workers=1) as pool:
        assert is_ordinary(read(pool, hostile.ordinary()))
        os.kill(pid(pool), how)
        assert str(read(pool, hostile.ordinary())) == "upload: the process decoding it ended unexpectedly"
        assert is_ordinary(read(pool, hostile.ordinary()))


def test_a_worker_that_does_not_answer_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with DecoderPool(workers=1) as pool:
        assert is_ordinary(read(pool, hostile.ordinary()))
        monkeypatch.setattr(decoders, "TIMEOUT", 0.2)
        os.kill(pid(pool), signal.SIGSTOP)
        assert "seconds to read" in str(read(pool, hostile.ordinary()))
        monkeypatch.undo()
        assert is_ordinary(read(pool, hostile.ordinary()))


def test_threads_share_the_workers_and_nothing_is_left_behind() -> None:
    before = len([*Path("/proc/self/fd").iterdir()])
    with DecoderPool(workers=2) as pool, ThreadPoolExecutor(6) as threads:
        images = [hostile.ordinary(seed=seed) for seed in range(20)]
        for found, content in zip(threads.map(partial(read, pool), images), images, strict=True):
            assert np.array_equal(np.asarray(found), np.asarray(read_image(content)))
        processes = [running[0] for each in pool._decoders if (running := each._running)]
    assert [process.returncode for process in processes] == [-signal.SIGKILL] * len(processes) and processes
    assert len([*Path("/proc/self/fd").iterdir()]) == before
    with pytest.raises(ValueError, match="closed"):
        read(pool, hostile.ordinary())


def test_closing_does_not_wait_for_the_current_image() -> None:
    pool, found = DecoderPool(workers=1), []
    assert is_ordinary(read(pool, hostile.ordinary()))
    reading = threading.Thread(target=lambda: found.append(read(pool, hostile.ppm_of_numbers())))
    reading.start()
    time.sleep(0.3)
    began = time.monotonic()
    pool.close()
    reading.join()
    assert time.monotonic() - began < 1 and str(found[0]) == "upload: the process decoding it ended unexpectedly"


def test_workers_ignore_ctrl_c_and_end_with_their_parent() -> None:
    script = """if True:
        import os, signal
        from nearkin.data.decoders import DecoderPool
        pool = DecoderPool(1)
        pool.read(b"", 90)
        worker = pool._decoders[0]._running[0]
        os.kill(worker.pid, signal.SIGINT)
        pool.read(b"", 90)
        assert worker is pool._decoders[0]._running[0]
        print(worker.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    until = time.monotonic() + 5
    with suppress(ProcessLookupError):
        while time.monotonic() < until:
            os.kill(int(run.stdout), 0)
            time.sleep(0.02)
        pytest.fail("the worker is still running")


def test_a_worker_loads_only_pillow_and_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "struct.py").write_text("raise SystemExit")
    with DecoderPool(1) as pool:
        assert is_ordinary(read(pool, hostile.ordinary()))
        loaded = Path(f"/proc/{pid(pool)}/maps").read_text()
    assert "PIL" in loaded and "torch" not in loaded and "numpy" not in loaded
