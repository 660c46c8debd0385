"""Decodes uploads into input tensors, in processes with limits on time and memory."""

from __future__ import annotations

import anyio
import anyio.to_thread
from fastapi import HTTPException
from torch import Tensor

from nearkin.data.decoders import DecoderPool
from nearkin.data.images import NOT_AN_IMAGE, BeyondLimits, Unreadable
from nearkin.data.transforms import Preprocess, make_transform

WORKERS = 2


class UploadDecoder:
    """Decodes uploads into (channels, size, size) tensors, two at a time. The others wait, still encoded."""

    def __init__(self, preprocess: Preprocess) -> None:
        self._preprocess, self._transform = preprocess, make_transform(preprocess)
        self._decoders = DecoderPool(WORKERS)
        self._threads = anyio.CapacityLimiter(WORKERS)

    async def __call__(self, content: bytes) -> Tensor:
        return await anyio.to_thread.run_sync(self._decode, content, limiter=self._threads)

    def close(self) -> None:
        self._decoders.close()

    def _decode(self, content: bytes) -> Tensor:
        if not content:
            raise HTTPException(422, "the file is empty (0 bytes); send an image")
        image = self._decoders.read(content, self._preprocess.resize)
        if isinstance(image, Unreadable):
            raise refusal(image)
        return self._transform(image)


def refusal(image: Unreadable) -> HTTPException:
    """The response to an upload that cannot be decoded. It never quotes a decoder, whose message may contain anything.

    >>> from pathlib import Path
    >>> refusal(BeyondLimits(Path("upload"), "more than 100 scans")).detail
    'the image exceeds the decoding limits (more than 100 scans); send a smaller one'
    """
    if isinstance(image, BeyondLimits):
        return HTTPException(413, f"the image exceeds the decoding limits ({image.reason}); send a smaller one")
    if image.reason == NOT_AN_IMAGE:
        return HTTPException(415, "the file is not an image in a supported format; send a JPEG, PNG or WebP file")
    return HTTPException(422, "the image is damaged or incomplete; send it again, or send another one")
