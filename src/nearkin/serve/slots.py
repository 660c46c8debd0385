"""Limits on concurrent requests. Uploads have their own slots, and one client gets at most half of each kind.

A client is an address. If a proxy does not forward the addresses of its clients, they count as one client.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import HTTPException
from starlette.types import Scope

WAIT_SECONDS = 5.0  # for a free slot
STEP_SECONDS, STEP_BYTES = 10.0, 160 * 1024  # minimum rate of a body: that many bytes in that time
GRACE_SECONDS = 1.0  # in which a new upload is not dropped for another one


class Slots:
    """A limited number of slots for requests. If none is free, requests wait, and the newest gets the next free slot.

    The newest first: the client of an old request may have given up, or may be sending too many.

    >>> async def serve_one() -> None:
    ...     async with Slots(1).slot("198.51.100.7"):
    ...         print("served")
    >>> asyncio.run(serve_one())
    served
    """

    def __init__(self, count: int) -> None:
        self._free, self._per_client = count, max(1, count // 2)
        self._taken: Counter[str] = Counter()
        self._waiting: dict[asyncio.Future[None], str] = {}

    @asynccontextmanager
    async def slot(self, client: str) -> AsyncIterator[None]:
        """Holds a slot for a request of this client; raises 503 if none becomes free in time."""
        if self._has_room(client):
            self._take(client)
        else:
            await self._wait(client)
        try:
            yield
        finally:
            self._release(client)

    async def _wait(self, client: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = client
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await turn
        except (TimeoutError, asyncio.CancelledError) as error:
            self._waiting.pop(turn, None)
            if not turn.cancelled():  # a slot was assigned at the same moment
                self._release(client)
            if isinstance(error, TimeoutError):
                sentence = "too many requests at the moment; try again in a second"
                raise HTTPException(503, sentence, {"Retry-After": "1"}) from None
            raise

    def _has_room(self, client: str) -> bool:
        return self._free > 0 and self._taken[client] < self._per_client

    def _take(self, client: str) -> None:
        self._free -= 1
        self._taken[client] += 1

    def _release(self, client: str) -> None:
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
class Upload:
    """A body that is being received."""

    client: str
    start: float
    deadline: asyncio.Timeout


class UploadSlots(Slots):
    """Slots for requests with a body. If none is free, the upload that started first is dropped."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._uploads: dict[Upload, None] = {}  # an ordered set, oldest first

    @asynccontextmanager
    async def slot(self, client: str) -> AsyncIterator[None]:
        if not self._has_room(client):
            self._drop_oldest(each for each in self._uploads if not self._free or each.client == client)
        async with super().slot(client):
            yield

    @asynccontextmanager
    async def receiving(self, client: str) -> AsyncIterator[Callable[[int], None]]:
        """A block that receives a body and reports the bytes received so far; TimeoutError if they arrive too slowly.

        A dropped upload raises TimeoutError too.
        """
        now = asyncio.get_running_loop().time
        async with asyncio.timeout(STEP_SECONDS) as deadline:
            upload, step = Upload(client, now(), deadline), STEP_BYTES

            def received(size: int) -> None:
                nonlocal step
                if size >= step and upload in self._uploads:
                    step = size + STEP_BYTES
                    deadline.reschedule(now() + STEP_SECONDS)

            self._uploads[upload] = None
            try:
                yield received
            finally:
                self._uploads.pop(upload, None)

    def _drop_oldest(self, uploads: Iterable[Upload]) -> None:
        oldest = next((each for each in uploads if not each.deadline.expired()), None)  # expired ones end anyway
        if oldest is not None:
            del self._uploads[oldest]
            oldest.deadline.reschedule(oldest.start + GRACE_SECONDS)


def client_of(scope: Scope) -> str:
    """The client's address; behind a trusted proxy, the address that the proxy forwards."""
    client: tuple[str, int] | None = scope.get("client")
    return client[0] if client else ""
