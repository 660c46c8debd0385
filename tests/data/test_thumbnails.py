"""Thumbnails of items."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from nearkin.data import ImageFiles, images
from nearkin.data.thumbnails import thumbnail


def test_an_item_that_cannot_be_decoded_has_no_thumbnail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (10, 5)).save(tmp_path / "x.jpg")
    items = ImageFiles([tmp_path / "x.jpg", tmp_path / "gone.jpg"])
    seen = thumbnail(items, 0, 64)
    assert seen is not None and seen.size == (64, 32)
    assert thumbnail(items, 1, 64) is None
    monkeypatch.setattr(images, "MAX_PIXELS", 49)
    assert thumbnail(items, 0, 64) is None
