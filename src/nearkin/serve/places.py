"""Many at once: short requests have places of their own, and one client gets at most half of any kind.

Clients are told apart by address. Where all come through a proxy that does not say for whom it asks, they are one
client and share that half.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import HTTPException
from starlette.types import Scope

PATIENCE = 5.0  # seconds to wait for a place
STEP_SECONDS, STEP_BYTES = 10.0, 160 * 1024  # a body must bring so many bytes in every so many seconds, or its end
HEAD_START = 1.0  # seconds in which a body does not have to make room


class Places:
    """Places for requests. Those who find none free wait a moment, and the last to come is the first to get one: who
    came long before has given up, or sends so many that they shall not come before others.

    >>> async def one_more() -> None:
    ...     async with Places(1).place("198.51.100.7"):
    ...         print("served")
    >>> asyncio.run(one_more())
    served
    """

    def __init__(self, most: int) -> None:
        self._free, self._most_of_client = most, max(1, most // 2)
        self._taken: Counter[str] = Counter()
        self._waiting: dict[asyncio.Future[None], str] = {}

    @asynccontextmanager
    async def place(self, client: str) -> AsyncIterator[None]:
        """A place in which a request of this client is answered; 503 where none becomes free in time."""
        if self._has_room(client):
            self._take(client)
        else:
            await self._wait(client)
        try:
            yield
        finally:
            self._leave(client)

    async def _wait(self, client: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = client
        try:
            async with asyncio.timeout(PATIENCE):
                await turn
        except (TimeoutError, asyncio.CancelledError) as error:
            self._waiting.pop(turn, None)
            if not turn.cancelled():  # a place came at the same moment
                self._leave(client)
            if isinstance(error, TimeoutError):
                sentence = "too many requests are being answered at the moment; try again in a second"
                raise HTTPException(503, sentence, {"Retry-After": "1"}) from None
            raise

    def _has_room(self, client: str) -> bool:
        return self._free > 0 and self._taken[client] < self._most_of_client

    def _take(self, client: str) -> None:
        self._free -= 1
        self._taken[client] += 1

    def _leave(self, client: str) -> None:
        self._free += 1
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]
        for turn, next_client in reversed(self._waiting.items()):
            if not turn.done() and self._has_room(next_client):
                del self._waiting[turn]
                self._take(next_client)
                turn.set_result(None)
                break


@dataclass(eq=False)
class Arrival:
    """A body that is arriving."""

    client: str
    began: float
    deadline: asyncio.Timeout


class UploadPlaces(Places):
    """Places for requests with a body. Where none is free, the body that has been arriving longest makes room."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._arriving: dict[Arrival, None] = {}  # in this order

    @asynccontextmanager
    async def place(self, client: str) -> AsyncIterator[None]:
        if not self._has_room(client):
            self._make_room(each for each in self._arriving if not self._free or each.client == client)
        async with super().place(client):
            yield

    @asynccontextmanager
    async def arrival(self, client: str) -> AsyncIterator[Callable[[int], None]]:
        """A block in which a body arrives; to be told the bytes that came. TimeoutError where they come too slowly."""
        now = asyncio.get_running_loop().time
        async with asyncio.timeout(STEP_SECONDS) as deadline:
            arrival, step = Arrival(client, now(), deadline), STEP_BYTES

            def came(size: int) -> None:
                nonlocal step
                if size >= step and arrival in self._arriving:
                    step = size + STEP_BYTES
                    deadline.reschedule(now() + STEP_SECONDS)

            self._arriving[arrival] = None
            try:
                yield came
            finally:
                self._arriving.pop(arrival, None)

    def _make_room(self, arriving: Iterable[Arrival]) -> None:
        oldest = next((each for each in arriving if not each.deadline.expired()), None)  # else it ends by itself
        if oldest is not None:
            del self._arriving[oldest]
            oldest.deadline.reschedule(oldest.began + HEAD_START)


def client_of(scope: Scope) -> str:
    """The address of who asks; of a proxy that is trusted, the one that it asks for."""
    client: tuple[str, int] | None = scope.get("client")
    return client[0] if client else ""
