"""A gallery of its own for every test, and its API.

Not a conftest.py: a second one would hide the first from tests that import from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from serve.colours import MeanColour, make_gallery

from nearkin.search.gallery import Gallery
from nearkin.serve.app import make_app


@pytest.fixture
def embedder() -> MeanColour:
    return MeanColour()


@pytest.fixture
def gallery(tmp_path: Path, embedder: MeanColour) -> Iterator[Gallery]:
    gallery = make_gallery(tmp_path, embedder)
    yield gallery
    gallery.close()


@pytest.fixture
def client(gallery: Gallery) -> Iterator[TestClient]:
    with TestClient(make_app(gallery, max_upload_mb=1), raise_server_exceptions=False) as client:
        yield client
