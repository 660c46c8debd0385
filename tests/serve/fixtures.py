"""A new gallery for every test, and its API.

Not a conftest.py: a second one would hide the first from tests that import from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from serve.colours import MeanColour, make_gallery

from nearkin.search.gallery import Gallery

if TYPE_CHECKING:
    from fastapi.testclient import TestClient


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
    from fastapi.testclient import TestClient  # the other tests run without the serve extra

    from nearkin.serve.app import make_app

    with TestClient(make_app(gallery, max_upload_mb=1), raise_server_exceptions=False) as client:
        yield client
