"""Batches concurrent requests: one batch of 32 is much faster than 32 calls of the model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Collects the items of concurrent calls, processes them as one batch in a thread, and returns each its result.

    Args:
        work: turns a list of items into one result per item, in the same order. If it fails, every item is processed
            alone, so that only the calls with a bad item fail.
        batch_size: maximum number of items in one batch.
        wait: seconds to wait for other calls.

    >>> async def lengths() -> list[int]:
    ...     batcher = Batcher(lambda words: [len(word) for word in words])
    ...     return await asyncio.gather(batcher("one"), batcher("three"))
    >>> asyncio.run(lengths())
    [3, 5]
    """

    def __init__(
        self, work: Callable[[list[Item]], Sequence[Result]], batch_size: int = 32, wait: float = 5e-3
    ) -> None:
        self._work, self._batch_size, self._wait = work, batch_size, wait
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._thread = ThreadPoolExecutor(1, "model")
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, item: Item) -> Result:
        mine: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, mine))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return await mine

    def close(self) -> None:
        """Cancels the waiting calls. A batch that is being processed is not interrupted."""
        if self._running is not None:
            self._running.cancel()
        for _, future in self._waiting:
            future.cancel()
        self._waiting.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        while self._waiting:
            if len(self._waiting) < self._batch_size:
                await asyncio.sleep(self._wait)
            batch, self._waiting = self._waiting[: self._batch_size], self._waiting[self._batch_size :]
            batch = [(item, future) for item, future in batch if not future.done()]  # without calls that were cancelled
            try:
                outcomes = await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._outcomes, [item for item, _ in batch]
                )
            except asyncio.CancelledError:
                for _, future in batch:
                    future.cancel()
                raise
            for (_, future), outcome in zip(batch, outcomes, strict=True):
                if future.done():
                    continue
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)

    def _outcomes(self, items: list[Item]) -> Sequence[Result | Exception]:
        try:
            return self._work(items) if items else []
        except Exception as error:
            if len(items) == 1:
                return [error]
            return [outcome for item in items for outcome in self._outcomes([item])]
