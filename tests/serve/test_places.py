"""Many at once: nobody takes all places, and a slow body makes room."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

import pytest
from fastapi import HTTPException

from nearkin.serve import places
from nearkin.serve.places import Places, UploadPlaces


@contextmanager
def refused() -> Iterator[None]:
    with pytest.raises(HTTPException, match="too many requests") as error:
        yield
    assert (error.value.status_code, error.value.headers) == (503, {"Retry-After": "1"})


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "PATIENCE", 0.05)


def test_one_client_gets_half_and_all_get_no_more_than_there_are() -> None:
    async def scenario() -> None:
        room = Places(4)
        async with AsyncExitStack() as taken:
            for client in "aabb":
                await taken.enter_async_context(room.place(client))
                if client == "a" and room._taken["a"] == 2:
                    with refused():
                        await taken.enter_async_context(room.place("a"))
            with refused():
                await taken.enter_async_context(room.place("c"))
        assert (room._free, dict(room._taken), room._waiting) == (4, {}, {})
        async with room.place("a"), room.place("a"):
            pass

    asyncio.run(scenario())


def test_who_waits_is_served_when_a_place_is_free_the_last_one_first() -> None:
    async def scenario() -> list[int]:
        room, served = Places(1), []

        async def ask(number: int) -> None:
            async with room.place("a"):
                served.append(number)

        async with room.place("b"):
            waiting = [asyncio.create_task(ask(number)) for number in range(3)]
            await asyncio.sleep(0.01)
            assert served == []
        await asyncio.gather(*waiting)
        return served

    assert asyncio.run(scenario()) == [2, 1, 0]


def test_a_place_given_to_one_who_has_just_gone_is_not_lost() -> None:
    async def scenario() -> None:
        room = Places(1)

        async def ask() -> None:
            async with room.place("b"):
                raise AssertionError("it was cancelled before")

        async with room.place("a"):
            waiting = asyncio.create_task(ask())
            await asyncio.sleep(0)
        waiting.cancel()  # it has its place, and does not know yet
        await asyncio.gather(waiting, return_exceptions=True)
        assert room._free == 1

    asyncio.run(scenario())


async def slow_upload(room: UploadPlaces, client: str) -> None:
    async with room.place(client), room.arrival(client):
        await asyncio.sleep(30)


@pytest.mark.parametrize("newcomer", ["a", "c"])
def test_the_slowest_body_makes_room_for_a_new_one(newcomer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "HEAD_START", 0.02)

    async def scenario() -> list[bool]:
        room = UploadPlaces(2 if newcomer == "a" else 1)  # it is the client's own half that is full, or all
        slow = asyncio.create_task(slow_upload(room, "a"))
        await asyncio.sleep(0.005)
        async with room.place(newcomer), room.arrival(newcomer) as came:
            came(10)
        with pytest.raises(TimeoutError):
            await slow
        return [bool(room._arriving), bool(room._taken)]

    assert asyncio.run(scenario()) == [False, False]


def test_a_body_whose_time_is_up_makes_room_without_being_asked() -> None:
    async def scenario() -> None:
        room = UploadPlaces(1)
        slow = asyncio.create_task(slow_upload(room, "a"))
        await asyncio.sleep(0)
        [arrival] = room._arriving
        arrival.deadline.reschedule(0)
        await asyncio.sleep(0)  # its time is up, and it does not know yet
        async with room.place("b"):
            assert isinstance(slow.exception(), TimeoutError)

    asyncio.run(scenario())


def test_a_body_that_has_arrived_does_not_have_to_make_room() -> None:
    async def scenario() -> None:
        room = UploadPlaces(1)
        async with room.place("a"):
            async with room.arrival("a"):
                pass
            with refused():
                async with room.place("b"):
                    pass

    asyncio.run(scenario())


def test_a_body_may_take_its_time_as_long_as_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "STEP_SECONDS", 0.1)
    monkeypatch.setattr(places, "STEP_BYTES", 100)

    async def arrive(sizes: list[int]) -> None:
        async with UploadPlaces(1).arrival("a") as came:
            for size in sizes:
                await asyncio.sleep(0.06)
                came(size)

    asyncio.run(arrive([100, 200, 300, 400]))
    with pytest.raises(TimeoutError):
        asyncio.run(arrive([1, 2, 3, 4]))
    with pytest.raises(TimeoutError):
        asyncio.run(arrive([10_000, 10_001, 10_002, 10_003]))  # a good start is no excuse
