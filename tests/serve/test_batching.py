"""The batcher makes fewer calls than requests, isolates failures, and can be closed."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from nearkin.serve.batching import Batcher


def test_simultaneous_requests_share_calls_and_each_gets_its_own_result() -> None:
    calls: list[int] = []

    def squares(numbers: list[int]) -> list[int]:
        calls.append(len(numbers))
        time.sleep(0.01)
        return [number * number for number in numbers]

    async def ask() -> list[int]:
        batcher = Batcher(squares, batch_size=8)
        return await asyncio.gather(*(batcher(number) for number in range(20)))

    assert asyncio.run(ask()) == [number * number for number in range(20)]
    assert calls == [8, 8, 4]


def test_one_that_fails_does_not_fail_the_others() -> None:
    def inverses(numbers: list[int]) -> list[float]:
        return [1 / number for number in numbers]

    async def ask() -> list[float | BaseException]:
        batcher = Batcher(inverses)
        return await asyncio.gather(*(batcher(number) for number in (1, 0, 4)), return_exceptions=True)

    first, failed, last = asyncio.run(ask())
    assert (first, last) == (1.0, 0.25)
    assert isinstance(failed, ZeroDivisionError)


def test_single_requests_are_answered_one_after_the_other() -> None:
    async def ask() -> list[str]:
        batcher = Batcher(lambda words: [word.upper() for word in words])
        return [await batcher("a"), await batcher("b")]

    assert asyncio.run(asyncio.wait_for(ask(), 5)) == ["A", "B"]


def test_a_cancelled_request_is_skipped() -> None:
    seen: list[str] = []

    def remember(words: list[str]) -> list[str]:
        seen.extend(words)
        return words

    async def ask() -> str:
        batcher = Batcher(remember, wait=0.05)
        impatient = asyncio.create_task(batcher("impatient"))
        patient = asyncio.create_task(batcher("patient"))
        await asyncio.sleep(0)
        impatient.cancel()
        return await patient

    assert asyncio.run(ask()) == "patient"
    assert seen == ["patient"]


def test_closing_cancels_all_requests_without_waiting_for_the_model() -> None:
    release = threading.Event()

    def slowly(items: list[int]) -> list[int]:
        release.wait(10)
        return items

    async def ask() -> float:
        batcher = Batcher(slowly, batch_size=1)
        waiting = [asyncio.create_task(batcher(number)) for number in range(3)]
        await asyncio.sleep(0.02)
        began = time.perf_counter()
        batcher.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended)
        return time.perf_counter() - began

    try:
        assert asyncio.run(ask()) < 1
    finally:
        release.set()
