"""Between the web and the gallery: requests become batches for the model and questions to the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
from fastapi import HTTPException
from PIL import Image

from nearkin.errors import UserError
from nearkin.search.gallery import Gallery
from nearkin.search.store import Embeddings, Entry, Gone, Hit
from nearkin.serve.answers import Found, Item, Map, Neighbour
from nearkin.serve.batching import Batcher
from nearkin.serve.decoding import Lanes, open_picture
from nearkin.serve.kept import Kept
from nearkin.serve.pictures import Pictures, SmallPicture
from nearkin.serve.sample import sample
from nearkin.serve.space_map import SpaceMap

log = logging.getLogger(__name__)
ON_THE_MAP = 2_000  # more points could not be told apart, and t-SNE would take minutes
LOOK_AGAIN = 10.0  # seconds; a gallery can grow while it is served
DRAW_AGAIN = 30.0  # seconds; the sample takes longer to look up
READ_AGAIN = 3  # times, where items vanish while they are read

T = TypeVar("T")


class Desk:
    """Answers what the page asks; every answer is computed outside of the event loop."""

    def __init__(self, gallery: Gallery) -> None:
        self._gallery, self._store = gallery, gallery.store
        self._encode: Batcher[Image.Image, Embeddings] = Batcher(
            lambda images: list(gallery.model.encode(images, progress=False))
        )
        self._store_thread = ThreadPoolExecutor(1, "store")
        self._lanes = Lanes()
        self._readers = anyio.CapacityLimiter(4)
        self._pictures = Pictures()
        self.labels = Kept(lambda: self._ask(gallery.labels), LOOK_AGAIN)
        self._sample = Kept(lambda: self._ask(lambda: sample(self._store, ON_THE_MAP)), DRAW_AGAIN)
        self._map = SpaceMap()

    async def neighbours_of_picture(self, content: bytes, k: int, label: str | None) -> Found:
        await self._check(label)
        image = await anyio.to_thread.run_sync(open_picture, content)
        async with self._lanes.of(image).decoded(image) as picture:
            vector = await self._encode(picture)
        hits = await self._ask(lambda: self._store.search(vector[None], k, label or None))
        return _found(None, hits[0])

    async def neighbours_of_item(self, id: int, k: int, label: str | None) -> Found:
        """The item itself is left out: that it is like itself is no news."""
        await self._check(label)
        entry = await self._entry(id)
        hits = await self._ask(lambda: self._store.search(self._store.vectors([id]), k + 1, label or None))
        others = [hit for hit in hits[0] if hit.id != id]
        return _found(Item.of(id, entry), others[:k])

    async def picture(self, id: int, side: int) -> SmallPicture:
        """The item's picture, to fit a square; 404 where its file is gone."""
        entry = await self._entry(id)
        try:
            return await anyio.to_thread.run_sync(self._pictures.get, Path(entry.path), side, limiter=self._readers)
        except OSError:  # its words would tell where the file lies
            raise HTTPException(404, f"the file of item {id} is gone or can no longer be read") from None

    async def size(self) -> int:
        return await self._ask(lambda: len(self._gallery))

    async def some_items(self, most: int, label: str | None) -> list[Item]:
        await self._check(label)
        ids = await self._ask(lambda: self._store.some(most, label)) if label else (await self._sample())[:most]
        entries = await self._ask(lambda: self._store.entries_of(ids))
        return [Item.of(id, entry) for id, entry in entries.items()]

    async def map(self) -> Map:
        """Not ready when first asked for: that is when it begins to be computed; and again when the items change."""
        failure = self._map.failure()
        if isinstance(failure, UserError):
            raise self._unavailable(failure)
        if failure is not None:
            raise HTTPException(500, "the map could not be computed; the server's log says why")
        ids = await self._sample()
        ready, there = self._map.follow(ids, self._mapped), set(ids)
        return Map(ready=ready, points=[point for point in self._map.points if point.id in there])

    def close(self) -> None:
        self._encode.close()
        self._store_thread.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, question: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._store_thread, question)
        except Gone as error:  # since an earlier question
            raise HTTPException(404, str(error)) from None
        except UserError as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: UserError) -> HTTPException:
        """For the log the store's own sentence, which may name places and addresses; none of them for the client."""
        log.warning("the store cannot be used: %s", error)
        sentence = "the gallery's items cannot be read at the moment; the server's log says why"
        return HTTPException(503, sentence, {"Retry-After": "5"})

    async def _check(self, label: str | None) -> None:
        # The labels may be a minute old, and the store knows those that came since.
        if label and label not in await self.labels() and not await self._ask(lambda: self._store.some(1, label)):
            raise HTTPException(422, f"no item has the label '{label}'; choose one of /api/labels, or none")

    async def _entry(self, id: int) -> Entry:
        entries = await self._ask(lambda: self._store.entries_of([id]))
        if not entries:
            raise HTTPException(404, str(Gone(id)))
        return entries[id]

    def _mapped(self, ids: list[int]) -> tuple[dict[int, Entry], Embeddings]:
        return self._store_thread.submit(self._read, ids).result()

    def _read(self, ids: list[int], again: int = READ_AGAIN) -> tuple[dict[int, Entry], Embeddings]:
        entries = self._store.entries_of(ids)
        try:
            return entries, self._store.vectors(list(entries))
        except Gone:  # one was removed between the two questions
            if again == 0:
                raise
            return self._read(ids, again - 1)


def _found(item: Item | None, hits: list[Hit]) -> Found:
    return Found(item=item, neighbours=[Neighbour.of_hit(hit) for hit in hits])
