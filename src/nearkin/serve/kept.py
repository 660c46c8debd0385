"""An answer that stays good for some seconds: whoever asks in the meantime gets it, and it is looked up by one only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

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
        self._answer: tuple[float, T] | None = None  # and when
        self._one_at_a_time = asyncio.Lock()

    async def __call__(self) -> T:
        async with self._one_at_a_time:
            if self._answer is None or time.monotonic() - self._answer[0] > self._seconds:
                answer = await self._look_up()
                self._answer = time.monotonic(), answer
            return self._answer[1]
