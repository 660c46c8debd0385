"""What strangers send: every bad file is one sentence, and nothing of it reaches the disk."""

from __future__ import annotations

import asyncio
import logging
import struct
import subprocess
import sys
import tempfile
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fastapi import HTTPException, Request
from fastapi.testclient import TestClient
from httpx2 import Response
from PIL import Image
from serve.colours import MeanColour, colour_of, picture_bytes

from nearkin.serve import places, uploads
from nearkin.serve.places import UploadPlaces
from nearkin.serve.uploads import DecodeLimiter, DecodeLimiters


def send(client: TestClient, content: bytes, name: str = "a.png", **fields: str | int) -> Response:
    return client.post("/api/search", files={"file": (name, content)}, data={k: str(v) for k, v in fields.items()})


def refused(answer: Response, code: int, words: str) -> None:
    assert answer.status_code == code, answer.text
    assert list(answer.json()) == ["detail"]
    assert words in answer.json()["detail"]


def png_that_claims(width: int, height: int) -> bytes:
    """The head of a huge picture in a few bytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_the_type_follows_from_the_content_not_from_the_name(client: TestClient, kind: str) -> None:
    answer = send(client, picture_bytes(colour_of("green", 4), kind), "query.exe", k=1)
    assert answer.status_code == 200
    assert answer.json()["neighbours"][0]["label"] == "green"


def test_of_an_animation_the_first_frame_is_searched(client: TestClient) -> None:
    frames = [Image.new("RGB", (16, 16), colour_of(label, 0)) for label in ("green", "red")]
    encoded = BytesIO()
    frames[0].save(encoded, "GIF", save_all=True, append_images=frames[1:])
    assert send(client, encoded.getvalue(), k=1).json()["neighbours"][0]["label"] == "green"


@pytest.mark.parametrize("size", [(20_000, 10_000), (8_000, 5_001), (2**31 - 1, 2**31 - 1)])
def test_too_many_pixels_are_refused_before_they_are_decoded(client: TestClient, size: tuple[int, int]) -> None:
    refused(send(client, png_that_claims(*size)), 413, "more than 40 megapixels")


def test_what_is_no_picture_is_refused(client: TestClient) -> None:
    refused(send(client, b"<svg onload=alert(1)>" * 9), 415, "not a picture")
    refused(send(client, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), 415, "not a picture")
    refused(send(client, b""), 422, "0 bytes")


def test_a_picture_cut_off_is_refused(client: TestClient) -> None:
    whole = picture_bytes(kind="JPEG", side=300)
    refused(send(client, whole[: len(whole) // 2]), 422, "cut off")
    refused(send(client, png_that_claims(100, 100)), 422, "cut off")


def test_a_file_beyond_the_limit_is_refused(client: TestClient) -> None:
    refused(send(client, bytes(1_100_000)), 413, "larger than 1 MB")


@pytest.mark.parametrize("announced", [[], [(b"content-length", b"10")]])
def test_a_body_that_hides_its_length_is_read_no_further_than_the_limit(announced: list[tuple[bytes, bytes]]) -> None:
    came = 0

    async def endless() -> dict[str, object]:
        nonlocal came
        came += 2**16
        start = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' if came == 2**16 else b""
        return {"type": "http.request", "body": start + bytes(2**16), "more_body": True}

    headers = [(b"content-type", b"multipart/form-data; boundary=x"), *announced]
    with pytest.raises(HTTPException, match="413"):
        asyncio.run(uploads.read_search(Request({"type": "http", "headers": headers}, endless), 2**20, UploadPlaces(1)))
    assert came <= 2**20 + 2**17


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
    refused(send(client, picture_bytes(), k=k), 422, "k: input should be")
    refused(client.get("/api/items/1/neighbours", params={"k": k}), 422, "k: input should be")


def test_a_label_that_does_not_exist_is_named(client: TestClient) -> None:
    refused(send(client, picture_bytes(), label="pink"), 422, "no item has the label 'pink'")


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
def test_a_form_that_is_none_is_refused(client: TestClient, body: bytes, kind: str, code: int) -> None:
    answer = client.post("/api/search", content=body, headers={"Content-Type": kind})
    assert (answer.status_code, list(answer.json())) == (code, ["detail"])


def test_a_second_file_or_many_fields_are_refused(client: TestClient) -> None:
    two = [("file", ("a", picture_bytes())), ("file", ("b", picture_bytes()))]
    assert client.post("/api/search", files=two).status_code == 400
    many = {f"field{number}": "x" for number in range(50)}
    assert client.post("/api/search", files={"file": picture_bytes()}, data=many).status_code == 400


def test_a_body_that_never_ends_is_given_up(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never_ends(*_: object) -> None:
        await asyncio.sleep(30)

    monkeypatch.setattr(places, "STEP_SECONDS", 0.05)
    monkeypatch.setattr(uploads.MultiPartParser, "parse", never_ends)
    refused(send(client, picture_bytes()), 408, "arrives too slowly")


def test_decoded_pictures_wait_until_there_is_room() -> None:
    async def most_at_once() -> int:
        budget, inside, most = DecodeLimiter(10, decoders=1), 0, 0

        async def work() -> None:
            nonlocal inside, most
            async with budget.room_for(4):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.002)
                inside -= 1

        await asyncio.gather(*(work() for _ in range(6)))
        return most

    assert asyncio.run(most_at_once()) == 2


def test_a_large_picture_does_not_make_a_photo_wait(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_go_on = threading.Event(), threading.Event()

    def slow_if_large(image: Image.Image) -> Image.Image:
        if image.width > 100:
            begun.set()
            may_go_on.wait(10)
        return image

    monkeypatch.setattr(uploads, "PHOTO", 100 * 100)
    monkeypatch.setattr(uploads, "decode", slow_if_large)
    with ThreadPoolExecutor(4) as pool:
        large = [pool.submit(send, client, picture_bytes(side=101)) for _ in range(4)]
        assert begun.wait(5)
        assert send(client, picture_bytes(side=100)).status_code == 200
        assert not any(each.done() for each in large)
        may_go_on.set()
        assert {each.result().status_code for each in large} == {200}


def test_the_largest_upload_finds_room() -> None:
    async def enter(image: Image.Image) -> None:
        async with asyncio.timeout(1), DecodeLimiters().of(image).room_for(uploads.cost(image)):
            pass

    asyncio.run(enter(SimpleNamespace(width=8_000, height=5_000, mode="F")))  # type: ignore[arg-type]
    asyncio.run(enter(SimpleNamespace(width=4_000, height=4_000, mode="F")))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_picture_larger_than_a_photo_is_made_smaller(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PHOTO", 100 * 100)
    decoded = uploads.decode(uploads.open_picture(picture_bytes((40, 90, 200), kind, side=160)))
    assert decoded.size == (80, 80)
    assert np.abs(np.asarray(decoded, dtype=int) - (40, 90, 200)).max() <= 2
    assert uploads.decode(uploads.open_picture(picture_bytes(kind=kind, side=100))).size == (100, 100)


@pytest.mark.parametrize(("mode", "kind"), [("F", "TIFF"), ("RGBA", "WEBP"), ("P", "PNG")])
def test_decoding_takes_no_more_memory_than_was_counted(mode: str, kind: str, tmp_path: Path) -> None:
    """In a process of its own: what a process has taken at most never falls again."""
    Image.new(mode, (3_000, 2_500)).save(tmp_path / "picture", kind, method=0, transparency=0)
    script = """if True:
        import sys
        from pathlib import Path
        from resource import RUSAGE_SELF, getrusage
        from nearkin.serve.uploads import cost, decode, open_picture
        image = open_picture(Path(sys.argv[1]).read_bytes())
        counted, before = cost(image), getrusage(RUSAGE_SELF).ru_maxrss
        decode(image)
        print((getrusage(RUSAGE_SELF).ru_maxrss - before) * 1024, counted)
    """
    run = subprocess.run([sys.executable, "-c", script, tmp_path / "picture"], capture_output=True, text=True)
    taken, counted = map(int, run.stdout.split())
    assert taken <= counted + 10e6


def test_the_type_of_the_form_may_be_written_in_any_case(client: TestClient) -> None:
    body = b'--x\r\nContent-Disposition: form-data; name="file"; filename="q"\r\n\r\n%b\r\n--x--\r\n'
    headers = {"Content-Type": "Multipart/Form-Data ; boundary=x"}
    assert client.post("/api/search", content=body % picture_bytes(), headers=headers).status_code == 200


def test_a_bad_form_is_nothing_for_the_log() -> None:
    assert not logging.getLogger("python_multipart.multipart").isEnabledFor(logging.WARNING)


def test_a_name_with_a_path_writes_and_opens_nothing(client: TestClient, tmp_path: Path, embedder: MeanColour) -> None:
    target = tmp_path / "written.png"
    answer = send(client, picture_bytes(), f"../../../../../{target}")
    assert (answer.status_code, target.exists(), embedder.calls) == (200, False, [1])


@pytest.mark.parametrize("charset", ["punycode", "undefined", "idna", "utf-16", "nonsense", '"', "utf-8\\"])
def test_only_utf_8_is_read(client: TestClient, charset: str) -> None:
    kind = f"multipart/form-data; boundary=x; charset={charset}"
    body = b'--x\r\nContent-Disposition: form-data; name="label"\r\n\r\n\xc3\xbc\r\n--x--\r\n'
    answer = client.post("/api/search", content=body, headers={"Content-Type": kind})
    refused(answer, 415, "send it in UTF-8")
    same = client.post("/api/search", content=body, headers={"Content-Type": kind.replace(charset, "UTF-8")})
    refused(same, 422, "has no file")
