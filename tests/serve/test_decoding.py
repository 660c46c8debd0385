"""Uploads become input tensors or are refused in one sentence; their cost is bounded and does not block others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image
from reference import hostile_images as hostile
from serve.colours import colour_of, image_bytes
from serve.test_uploads import refused, send

from nearkin.data import decoders
from nearkin.data.images import Unreadable
from nearkin.data.transforms import Preprocess
from nearkin.models import Embedder, EmbeddingModel, ModelSpec
from nearkin.search.gallery import Gallery
from nearkin.serve.app import make_app
from nearkin.serve.decoding import UploadDecoder, refusal


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_the_type_follows_from_the_content_not_from_the_name(client: TestClient, kind: str) -> None:
    answer = send(client, image_bytes(colour_of("green", 4), kind), "query.exe", k=1)
    assert answer.status_code == 200
    assert answer.json()["neighbours"][0]["label"] == "green"


def test_the_first_frame_of_an_animation_is_searched(client: TestClient) -> None:
    frames = [Image.new("RGB", (16, 16), colour_of(label, 0)) for label in ("green", "red")]
    encoded = BytesIO()
    frames[0].save(encoded, "GIF", save_all=True, append_images=frames[1:])
    assert send(client, encoded.getvalue(), k=1).json()["neighbours"][0]["label"] == "green"


def test_a_file_that_is_not_an_image_is_refused(client: TestClient) -> None:
    refused(send(client, b"<svg onload=alert(1)>" * 9), 415, "not an image")
    refused(send(client, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), 415, "not an image")
    refused(send(client, b""), 422, "0 bytes")


def test_an_incomplete_image_is_refused(client: TestClient) -> None:
    refused(send(client, hostile.truncated(image_bytes(kind="JPEG", side=300))), 422, "incomplete")
    refused(send(client, hostile.truncated(image_bytes(kind="PNG"))), 422, "incomplete")


@pytest.mark.parametrize("size", [(20_000, 10_000), (2**31 - 1, 2**31 - 1), (9_990, 9_990)])
def test_too_many_pixels_are_refused(client: TestClient, size: tuple[int, int]) -> None:
    refused(send(client, hostile.png(*size, rows=0)), 413, "exceeds the decoding limits")


def test_a_decoder_s_message_is_not_sent_to_the_client() -> None:
    answer = refusal(Unreadable(Path("upload"), "broken at <_io.BytesIO object at 0x7f0123456789>"))
    assert "0x" not in answer.detail


def test_bombs_are_refused_and_a_photo_is_found_meanwhile(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "SECONDS", 0.5)
    names = (hostile.SLOW, "jpeg of scans", "png of text", "huge webp")
    with TestClient(make_app(gallery)) as client, ThreadPoolExecutor(len(names)) as threads:
        bombs = [threads.submit(send, client, hostile.BOMBS[name]()) for name in names]
        photo = send(client, image_bytes(colour_of("green", 4)), k=1)
        assert photo.json()["neighbours"][0]["label"] == "green" and not bombs[0].done()
        refused(bombs[0].result(), 413, "takes more than 0.5 seconds to decode")
        assert {bomb.result().status_code for bomb in bombs} == {413}


def test_a_file_and_its_upload_have_the_same_embedding(tmp_path: Path) -> None:
    (tmp_path / "x.jpg").write_bytes(hostile.ordinary(width=300, height=200))
    preprocess = Preprocess(32, 40, 3, (0.5,) * 3, (0.5,) * 3)
    torch.manual_seed(0)
    model = Embedder(EmbeddingModel(ModelSpec("small", 8, preprocess=preprocess)))
    decoder = UploadDecoder(preprocess)
    try:
        uploaded = decoder._decode((tmp_path / "x.jpg").read_bytes())
    finally:
        decoder.close()
    assert uploaded.shape == (3, 32, 32)
    np.testing.assert_array_equal(model.encode([uploaded])[0], model.encode(tmp_path / "x.jpg"))
