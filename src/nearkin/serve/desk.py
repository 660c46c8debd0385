"""Between the web and the gallery: requests become batches for the model and questions to the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

import anyio.to_thread
import numpy as np
from fastapi import HTTPException
from PIL import Image

from nearkin.errors import UserError
from nearkin.search.gallery import Gallery
from nearkin.search.store import Embeddings, Entry, Hit
from nearkin.serve.answers import Found, Item, Map, Neighbour
from nearkin.serve.batching import Batcher
from nearkin.serve.pictures import Pictures, SmallPicture
from nearkin.serve.space_map import SpaceMap
from nearkin.serve.uploads import PixelBudget, decode, open_picture

ON_THE_MAP = 2_000  # more points could not be told apart, and t-SNE would take minutes
LOOK_AGAIN = 10.0  # seconds; a gallery can grow while it is served

T = TypeVar("T")


class Desk:
    """Answers what the page asks; every answer is computed outside of the event loop."""

    def __init__(self, gallery: Gallery) -> None:
        self._gallery = gallery
        self._encode: Batcher[Image.Image, Embeddings] = Batcher(lambda pictures: list(gallery.encode(pictures)))
        self._store_thread = ThreadPoolExecutor(1, "store")
        self._decoders = anyio.CapacityLimiter(2)
        self._readers = anyio.CapacityLimiter(4)
        self._budget = PixelBudget()
        self._pictures = Pictures()
        self._looked = -np.inf
        self._labels: dict[str, int] = {}
        self._sample: dict[int, Entry] = {}
        self._map = SpaceMap()

    async def neighbours_of_picture(self, content: bytes, k: int, label: str | None) -> Found:
        await self._check(label)
        image = await anyio.to_thread.run_sync(open_picture, content, limiter=self._decoders)
        async with self._budget.room_for(image.width * image.height):
            picture = await anyio.to_thread.run_sync(decode, image, limiter=self._decoders)
            vector = await self._encode(picture)
        hits = await self._ask(lambda: self._gallery.search(vector[None], k, label or None))
        return _found(None, hits[0])

    async def neighbours_of_item(self, id: int, k: int, label: str | None) -> Found:
        """The item itself is left out: that it is like itself is no news."""
        await self._check(label)
        entry = await self._of_item(id, lambda: self._gallery.entry(id))
        vector = await self._of_item(id, lambda: self._gallery.store.vectors([id]))
        hits = await self._ask(lambda: self._gallery.search(vector, k + 1, label or None))
        others = [hit for hit in hits[0] if hit.id != id]
        return _found(Item.of(id, entry), others[:k])

    async def picture(self, id: int, side: int) -> SmallPicture:
        """The item's picture, to fit a square; 404 where its file is gone."""
        entry = await self._of_item(id, lambda: self._gallery.entry(id))
        try:
            return await anyio.to_thread.run_sync(self._pictures.get, Path(entry.path), side, limiter=self._readers)
        except OSError:  # its words would tell where the file lies
            raise HTTPException(404, f"the file of item {id} is gone or can no longer be read") from None

    async def labels(self) -> dict[str, int]:
        if time.monotonic() - self._looked > LOOK_AGAIN:
            self._labels, self._sample = await self._ask(lambda: (self._gallery.labels(), self._drawn()))
            self._looked = time.monotonic()
        return self._labels

    async def size(self) -> int:
        return await self._ask(lambda: len(self._gallery))

    async def some_items(self, most: int, label: str | None) -> list[Item]:
        await self._check(label)
        await self.labels()
        shown = await self._ask(self._gallery.store.entries) if label else self._sample
        chosen = (Item.of(id, entry) for id, entry in shown.items() if not label or entry.label == label)
        return list(islice(chosen, most))

    async def map(self) -> Map:
        """Not ready when first asked for: that is when it begins to be computed."""
        self._map.start(self._mapped)
        if self._map.failed:
            raise HTTPException(500, "the map could not be computed; the server's log says why")
        return Map(ready=self._map.points is not None, points=self._map.points or [])

    def close(self) -> None:
        self._encode.close()
        self._store_thread.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, question: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._store_thread, question)

    async def _check(self, label: str | None) -> None:
        if label and label not in await self.labels():
            raise HTTPException(422, f"no item has the label '{label}'; choose one of /api/labels, or none")

    async def _of_item(self, id: int, question: Callable[[], T]) -> T:
        try:
            return await self._ask(question)
        except UserError:
            raise HTTPException(404, f"the gallery has no item {id}; it may have been removed: search again") from None

    def _drawn(self) -> dict[int, Entry]:
        """The same sample, in the same random order, as long as the gallery does not change."""
        entries = self._gallery.store.entries()
        ids = np.random.default_rng(0).permutation(list(entries))[:ON_THE_MAP].tolist()
        return {id: entries[id] for id in ids}

    def _mapped(self) -> tuple[dict[int, Entry], Embeddings]:
        def ask() -> tuple[dict[int, Entry], Embeddings]:
            sample = self._drawn()
            return sample, self._gallery.store.vectors(list(sample))

        return self._store_thread.submit(ask).result()


def _found(item: Item | None, hits: list[Hit]) -> Found:
    return Found(item=item, neighbours=[Neighbour.of_hit(hit) for hit in hits])
