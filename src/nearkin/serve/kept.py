"""An answer of the store that stays good for some seconds: whoever asks in the meantime gets it, and one looks it up.

A look that took long is followed by a rest in proportion, also one that failed, so that looks take little of the time
of a store that searches wait for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from fastapi import HTTPException

REST = 30  # times as long as a look took there is none
LONGEST_REST = 60.0  # seconds; one slow look says little about the next

T = TypeVar("T")


class Kept(Generic[T]):
    """
    >>> async def twice() -> tuple[float, float]:
    ...     now = Kept(lambda: asyncio.sleep(0, time.monotonic()), seconds=60)
    ...     return await now(), await now()
    >>> first, second = asyncio.run(twice())
    >>> first == second
    True
    """

    def __init__(self, look_up: Callable[[], Awaitable[T]], seconds: float) -> None:
        self._look_up, self._seconds = look_up, seconds
        self._outcome: T | HTTPException
        self._good_until = 0.0
        self._one_at_a_time = asyncio.Lock()

    async def __call__(self) -> T:
        async with self._one_at_a_time:
            if time.monotonic() >= self._good_until:
                await self._look()
        if isinstance(self._outcome, HTTPException):
            raise self._outcome
        return self._outcome

    async def _look(self) -> None:
        began, good_for = time.monotonic(), self._seconds
        try:
            self._outcome = await self._look_up()
        except HTTPException as error:
            self._outcome, good_for = error, 0.0
        ended = time.monotonic()
        self._good_until = ended + max(good_for, min(REST * (ended - began), LONGEST_REST))
