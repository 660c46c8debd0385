"""An upload becomes what the model takes: decoded in a process with limits, and small before it waits for the model."""

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
    """Makes (channels, size, size) tensors of uploads, two at a time; the others wait as the bytes that came."""

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
            raise HTTPException(422, "the file is empty (0 bytes); send a picture")
        image = self._decoders.read(content, self._preprocess.resize)
        if isinstance(image, Unreadable):
            raise refusal(image)
        return self._transform(image)


def refusal(image: Unreadable) -> HTTPException:
    """Of the reasons, only nearkin's own reach the client: a decoder's may hold anything.

    >>> from pathlib import Path
    >>> refusal(BeyondLimits(Path("upload"), "more than 100 scans")).detail
    'the picture takes too much to decode (more than 100 scans); send a smaller one'
    """
    if isinstance(image, BeyondLimits):
        return HTTPException(413, f"the picture takes too much to decode ({image.reason}); send a smaller one")
    if image.reason == NOT_AN_IMAGE:
        return HTTPException(415, "the file is not a picture that can be read; send a JPEG, PNG or WebP")
    return HTTPException(422, "the picture is damaged or cut off and cannot be decoded; send it again or another one")
