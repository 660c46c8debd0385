"""Uploads: every bad form is refused in one sentence, and nothing is written to disk."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from fastapi import HTTPException, Request
from fastapi.testclient import TestClient
from httpx2 import Response
from PIL import Image
from serve.colours import MeanColour, image_bytes

from nearkin.serve import slots, uploads
from nearkin.serve.slots import UploadSlots


def send(client: TestClient, content: bytes, name: str = "a.png", **fields: str | int) -> Response:
    return client.post("/api/search", files={"file": (name, content)}, data={k: str(v) for k, v in fields.items()})


def refused(answer: Response, code: int, words: str) -> None:
    assert answer.status_code == code, answer.text
    assert list(answer.json()) == ["detail"]
    assert words in answer.json()["detail"]


def test_a_file_beyond_the_limit_is_refused(client: TestClient) -> None:
    refused(send(client, bytes(1_100_000)), 413, "larger than 1 MB")


@pytest.mark.parametrize("announced", [[], [(b"content-length", b"10")]])
def test_a_body_without_its_true_length_is_read_only_up_to_the_limit(announced: list[tuple[bytes, bytes]]) -> None:
    sent = 0

    async def endless() -> dict[str, object]:
        nonlocal sent
        sent += 2**16
        start = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' if sent == 2**16 else b""
        return {"type": "http.request", "body": start + bytes(2**16), "more_body": True}

    headers = [(b"content-type", b"multipart/form-data; boundary=x"), *announced]
    with pytest.raises(HTTPException, match="413"):
        asyncio.run(uploads.read_search(Request({"type": "http", "headers": headers}, endless), 2**20, UploadSlots(1)))
    assert sent <= 2**20 + 2**17


def test_a_file_within_the_limit_is_never_written_to_disk(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file(*_: object, **__: object) -> None:
        raise AssertionError("a temporary file was made")

    monkeypatch.setattr(tempfile, "TemporaryFile", no_file)
    noise = np.random.default_rng(0).integers(0, 255, (550, 600, 3), dtype=np.uint8)
    encoded = BytesIO()
    Image.fromarray(noise).save(encoded, "BMP")
    assert 900_000 < len(encoded.getvalue()) < 2**20
    assert send(client, encoded.getvalue()).status_code == 200


@pytest.mark.parametrize("k", ["0", "201", "-1", "many", "1e9"])
def test_k_is_bounded(client: TestClient, k: str) -> None:
    refused(send(client, image_bytes(), k=k), 422, "k: input should be")
    refused(client.get("/api/items/1/neighbours", params={"k": k}), 422, "k: input should be")


def test_a_label_that_does_not_exist_is_named(client: TestClient) -> None:
    refused(send(client, image_bytes(), label="pink"), 422, "no item has the label 'pink'")


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        (b"{}", "application/json", 415),
        (b"", "multipart/form-data", 400),
        (b"nonsense", "multipart/form-data; boundary=x", 400),
        (b"--x--\r\n", "multipart/form-data; boundary=x", 422),
        (
            b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\ntext\r\n--x--\r\n',
            "multipart/form-data; boundary=x",
            422,
        ),
    ],
)
def test_an_invalid_form_is_refused(client: TestClient, body: bytes, kind: str, code: int) -> None:
    answer = client.post("/api/search", content=body, headers={"Content-Type": kind})
    assert (answer.status_code, list(answer.json())) == (code, ["detail"])


def test_a_second_file_or_many_fields_are_refused(client: TestClient) -> None:
    two = [("file", ("a", image_bytes())), ("file", ("b", image_bytes()))]
    assert client.post("/api/search", files=two).status_code == 400
    many = {f"field{number}": "x" for number in range(50)}
    assert client.post("/api/search", files={"file": image_bytes()}, data=many).status_code == 400


def test_a_body_that_never_ends_is_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never_ends(*_: object) -> None:
        await asyncio.sleep(30)

    monkeypatch.setattr(slots, "STEP_SECONDS", 0.05)
    monkeypatch.setattr(uploads.MultiPartParser, "parse", never_ends)
    refused(send(client, image_bytes()), 408, "too slow")


def test_the_type_of_the_form_may_be_written_in_any_case(client: TestClient) -> None:
    body = b'--x\r\nContent-Disposition: form-data; name="file"; filename="q"\r\n\r\n%b\r\n--x--\r\n'
    headers = {"Content-Type": "Multipart/Form-Data ; boundary=x"}
    assert client.post("/api/search", content=body % image_bytes(), headers=headers).status_code == 200


def test_a_bad_form_is_not_logged() -> None:
    assert not logging.getLogger("python_multipart.multipart").isEnabledFor(logging.WARNING)


def test_a_name_with_a_path_writes_and_opens_nothing(client: TestClient, tmp_path: Path, embedder: MeanColour) -> None:
    target = tmp_path / "written.png"
    answer = send(client, image_bytes(), f"../../../../../{target}")
    assert (answer.status_code, target.exists(), embedder.calls) == (200, False, [1])


@pytest.mark.parametrize("charset", ["punycode", "undefined", "idna", "utf-16", "nonsense", '"', "utf-8\\"])
def test_only_utf_8_is_read(client: TestClient, charset: str) -> None:
    kind = f"multipart/form-data; boundary=x; charset={charset}"
    body = b'--x\r\nContent-Disposition: form-data; name="label"\r\n\r\n\xc3\xbc\r\n--x--\r\n'
    answer = client.post("/api/search", content=body, headers={"Content-Type": kind})
    refused(answer, 415, "send it in UTF-8")
    same = client.post("/api/search", content=body, headers={"Content-Type": kind.replace(charset, "UTF-8")})
    refused(same, 422, "has no file")
