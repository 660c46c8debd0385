"""Answers API requests: batches the model's inputs and queries the store."""

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
from torch import Tensor

from nearkin.errors import UserError
from nearkin.search.gallery import Gallery
from nearkin.search.store import Embeddings, Entry, Hit, ItemNotFound
from nearkin.serve.batching import Batcher
from nearkin.serve.caching import Thumbnail, ThumbnailCache, TTLCache
from nearkin.serve.decoding import UploadDecoder
from nearkin.serve.schemas import Item, Map, Neighbour, SearchResponse
from nearkin.serve.space_map import SpaceMap, sample_ids

log = logging.getLogger(__name__)
MAP_POINTS = 2_000  # more would overlap, and t-SNE would take minutes
LABELS_TTL = 10.0  # seconds; a gallery can change while it is served
SAMPLE_TTL = 30.0  # seconds; drawing the sample is slower
RETRIES = 3  # if items are removed while they are read

T = TypeVar("T")


class SearchService:
    """Answers the requests of the API. All work runs in threads, outside the event loop."""

    def __init__(self, gallery: Gallery) -> None:
        self._gallery, self._store = gallery, gallery.store
        preprocess = gallery.model.model.spec.preprocess
        assert preprocess is not None  # galleries contain images
        self._decode = UploadDecoder(preprocess)
        self._encode: Batcher[Tensor, Embeddings] = Batcher(
            lambda images: list(gallery.model.encode(images, progress=False))
        )
        self._store_thread = ThreadPoolExecutor(1, "store")
        self._readers = anyio.CapacityLimiter(4)
        self._thumbnails = ThumbnailCache()
        self.labels = TTLCache(lambda: self._ask(gallery.labels), LABELS_TTL)
        self._sample = TTLCache(lambda: self._ask(lambda: sample_ids(self._store, MAP_POINTS)), SAMPLE_TTL)
        self._map = SpaceMap()

    async def neighbours_of_image(self, content: bytes, k: int, label: str | None) -> SearchResponse:
        await self._check_label(label)
        vector = await self._encode(await self._decode(content))
        hits = await self._ask(lambda: self._store.search(vector[None], k, label or None))
        return _response(None, hits[0])

    async def neighbours_of_item(self, id: int, k: int, label: str | None) -> SearchResponse:
        """The nearest items, without the item itself."""
        await self._check_label(label)
        entry = await self._entry(id)
        hits = await self._ask(lambda: self._store.search(self._store.vectors([id]), k + 1, label or None))
        others = [hit for hit in hits[0] if hit.id != id]
        return _response(Item.of(id, entry), others[:k])

    async def image(self, id: int, side: int) -> Thumbnail:
        """The item's image, resized to fit a square; raises 404 if its file is missing."""
        entry = await self._entry(id)
        if entry.path not in self._gallery.shown:
            raise HTTPException(404, f"the file of item {id} is not in an indexed folder; see the server's log")
        try:
            return await anyio.to_thread.run_sync(self._thumbnails.get, Path(entry.path), side, limiter=self._readers)
        except OSError:  # not quoted: its message contains the path
            raise HTTPException(404, f"the file of item {id} is missing or unreadable") from None

    async def size(self) -> int:
        return await self._ask(lambda: len(self._gallery))

    async def some_items(self, k: int, label: str | None) -> list[Item]:
        await self._check_label(label)
        ids = await self._ask(lambda: self._store.ids(k, label)) if label else (await self._sample())[:k]
        entries = await self._ask(lambda: self._store.entries_of(ids))
        return [Item.of(id, entry) for id, entry in entries.items()]

    async def map(self) -> Map:
        """The map. The first request starts its computation; later requests restart it if the items have changed."""
        failure = self._map.failure()
        if isinstance(failure, UserError):
            raise self._unavailable(failure)
        if failure is not None:
            raise HTTPException(500, "the map could not be computed; the server's log has the details")
        ids = await self._sample()
        ready, current = self._map.update(ids, self._entries_and_vectors), set(ids)
        return Map(ready=ready, points=[point for point in self._map.points if point.id in current])

    def close(self) -> None:
        self._decode.close()
        self._thumbnails.close()
        self._encode.close()
        self._map.close()
        self._store_thread.shutdown(cancel_futures=True)  # waits: the gallery is closed next

    async def _ask(self, query: Callable[[], T]) -> T:
        """Runs a query of the store in its thread."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._store_thread, query)
        except ItemNotFound as error:  # removed since an earlier query
            raise HTTPException(404, str(error)) from None
        except UserError as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: UserError) -> HTTPException:
        """A 503 for the client; the store's message, which may contain paths and addresses, goes to the log."""
        log.warning("the store is unavailable: %s", error)
        sentence = "the gallery is unavailable at the moment; try again, or see the server's log"
        return HTTPException(503, sentence, {"Retry-After": "5"})

    async def _check_label(self, label: str | None) -> None:
        # The cached labels may be a minute old, so ask the store for labels that are not among them.
        if label and label not in await self.labels() and not await self._ask(lambda: self._store.ids(1, label)):
            raise HTTPException(422, f"no item has the label '{label}'; choose one from /api/labels, or leave it out")

    async def _entry(self, id: int) -> Entry:
        entries = await self._ask(lambda: self._store.entries_of([id]))
        if not entries:
            raise HTTPException(404, str(ItemNotFound(id)))
        return entries[id]

    def _entries_and_vectors(self, ids: list[int]) -> tuple[dict[int, Entry], Embeddings]:
        return self._store_thread.submit(self._read, ids).result()

    def _read(self, ids: list[int], retries: int = RETRIES) -> tuple[dict[int, Entry], Embeddings]:
        entries = self._store.entries_of(ids)
        try:
            return entries, self._store.vectors(list(entries))
        except ItemNotFound:  # one was removed between the two queries
            if retries == 0:
                raise
            return self._read(ids, retries - 1)


def _response(item: Item | None, hits: list[Hit]) -> SearchResponse:
    return SearchResponse(item=item, neighbours=[Neighbour.of_hit(hit) for hit in hits])
