"""Limits on concurrent requests: no client takes all slots, and slow uploads are dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

import pytest
from fastapi import HTTPException

from nearkin.serve import slots
from nearkin.serve.slots import Slots, UploadSlots


@contextmanager
def refused() -> Iterator[None]:
    with pytest.raises(HTTPException, match="too many requests") as error:
        yield
    assert (error.value.status_code, error.value.headers) == (503, {"Retry-After": "1"})


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "WAIT_SECONDS", 0.05)


def test_one_client_gets_at_most_half_of_the_slots() -> None:
    async def scenario() -> None:
        limit = Slots(4)
        async with AsyncExitStack() as taken:
            for client in "aabb":
                await taken.enter_async_context(limit.slot(client))
                if client == "a" and limit._taken["a"] == 2:
                    with refused():
                        await taken.enter_async_context(limit.slot("a"))
            with refused():
                await taken.enter_async_context(limit.slot("c"))
        assert (limit._free, dict(limit._taken), limit._waiting) == (4, {}, {})
        async with limit.slot("a"), limit.slot("a"):
            pass

    asyncio.run(scenario())


def test_waiting_requests_get_free_limitnewest_first() -> None:
    async def scenario() -> list[int]:
        limit, served = Slots(1), []

        async def ask(number: int) -> None:
            async with limit.slot("a"):
                served.append(number)

        async with limit.slot("b"):
            waiting = [asyncio.create_task(ask(number)) for number in range(3)]
            await asyncio.sleep(0.01)
            assert served == []
        await asyncio.gather(*waiting)
        return served

    assert asyncio.run(scenario()) == [2, 1, 0]


def test_a_slot_given_to_a_cancelled_request_is_not_lost() -> None:
    async def scenario() -> None:
        limit = Slots(1)

        async def ask() -> None:
            async with limit.slot("b"):
                raise AssertionError("it was cancelled before")

        async with limit.slot("a"):
            waiting = asyncio.create_task(ask())
            await asyncio.sleep(0)
        waiting.cancel()  # it has got its slot, but has not run yet
        await asyncio.gather(waiting, return_exceptions=True)
        assert limit._free == 1

    asyncio.run(scenario())


async def slow_upload(limit: UploadSlots, client: str) -> None:
    async with limit.slot(client), limit.receiving(client):
        await asyncio.sleep(30)


@pytest.mark.parametrize("newcomer", ["a", "c"])
def test_the_oldest_upload_is_dropped_for_a_new_one(newcomer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "GRACE_SECONDS", 0.02)

    async def scenario() -> list[bool]:
        limit = UploadSlots(2 if newcomer == "a" else 1)  # either the client's half is full, or everything is
        slow = asyncio.create_task(slow_upload(limit, "a"))
        await asyncio.sleep(0.005)
        async with limit.slot(newcomer), limit.receiving(newcomer) as received:
            received(10)
        with pytest.raises(TimeoutError):
            await slow
        return [bool(limit._uploads), bool(limit._taken)]

    assert asyncio.run(scenario()) == [False, False]


def test_an_expired_upload_frees_its_slot() -> None:
    async def scenario() -> None:
        limit = UploadSlots(1)
        slow = asyncio.create_task(slow_upload(limit, "a"))
        await asyncio.sleep(0)
        [upload] = limit._uploads
        upload.deadline.reschedule(0)
        await asyncio.sleep(0)  # it has expired, but has not run yet
        async with limit.slot("b"):
            assert isinstance(slow.exception(), TimeoutError)

    asyncio.run(scenario())


def test_a_complete_upload_is_not_dropped() -> None:
    async def scenario() -> None:
        limit = UploadSlots(1)
        async with limit.slot("a"):
            async with limit.receiving("a"):
                pass
            with refused():
                async with limit.slot("b"):
                    pass

    asyncio.run(scenario())


def test_an_upload_may_be_long_but_not_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "STEP_SECONDS", 0.1)
    monkeypatch.setattr(slots, "STEP_BYTES", 100)

    async def arrive(sizes: list[int]) -> None:
        async with UploadSlots(1).receiving("a") as received:
            for size in sizes:
                await asyncio.sleep(0.06)
                received(size)

    asyncio.run(arrive([100, 200, 300, 400]))
    with pytest.raises(TimeoutError):
        asyncio.run(arrive([1, 2, 3, 4]))
    with pytest.raises(TimeoutError):
        asyncio.run(arrive([10_000, 10_001, 10_002, 10_003]))  # fast at first, then slow
