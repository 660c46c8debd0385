"""The server: its address, its output, its token, and shutdown."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient
from serve.colours import image_bytes

from nearkin.data.transforms import Preprocess
from nearkin.errors import UserError
from nearkin.models import Embedder, EmbeddingModel, ModelSpec
from nearkin.search import Gallery
from nearkin.serve import serve, server
from nearkin.serve.server import LOOPBACK, host_name, is_local, listen, names

TOKEN = "a-token-of-some-length"


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [
        ("127.0.0.1", 70_000, "port must be from 0 to 65535, got 70000"),
        ("no.such.host.invalid", 0, "cannot serve at no.such.host.invalid:0"),
        ("192.0.2.1", 0, "cannot serve at 192.0.2.1:0"),
    ],
)
def test_an_impossible_address_is_refused_in_one_sentence(host: str, port: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        listen(host, port)


@pytest.mark.parametrize("local", [True, False])
def test_only_allowed_host_names_are_accepted(local: bool) -> None:
    plain, allowing = names("Photos", (), local), names("Photos", ["images.example"], local)
    assert (plain is None) == (not local)  # the names that other machines use are unknown
    assert "images.example" not in (plain or ())
    assert allowing == {*LOOPBACK, "photos", "images.example"}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "127.1", "127.0.0.2", "0.0.0.0"])
def test_a_loopback_address_is_local_however_it_is_written(host: str) -> None:
    with listen(host, 0) as listening:
        assert is_local(listening) == (host != "0.0.0.0")


@pytest.mark.parametrize("given", ["https://images.example", "images.example:443", "images.example/a", "*", ""])
def test_an_invalid_host_name_is_refused_in_one_sentence(given: str) -> None:
    with pytest.raises(UserError, match=r"is not a host name; use the name alone, such as images\.example"):
        host_name(given)


def test_a_host_name_that_is_not_ascii_is_refused() -> None:
    with pytest.raises(UserError, match=r"'faß\.de' is not ASCII; .* xn--"):
        host_name("faß.de")


def test_a_port_in_use_is_one_sentence(gallery: Gallery) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is in use; choose another"):
            serve(gallery, port=port)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[FastAPI]:
    """The applications that `serve` would serve; no server is started."""
    apps: list[FastAPI] = []

    def nothing(app: FastAPI) -> SimpleNamespace:
        apps.append(app)
        return SimpleNamespace(run=lambda sockets: [each.getsockname() for each in sockets])

    monkeypatch.setattr(server, "http_server", nothing)
    monkeypatch.delenv("NEARKIN_TOKEN", raising=False)
    return apps


def status(app: FastAPI, token: str | None = None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return TestClient(app, base_url="http://localhost").get("/page.js", headers=headers).status_code


def test_a_random_token_is_printed_if_other_machines_can_connect(
    gallery: Gallery, served: list[FastAPI], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        serve(gallery, host="0.0.0.0", port=0)
    links = re.findall(r"^open http://0\.0\.0\.0:\d+/\?token=([\w-]{32})$", capsys.readouterr().out, re.MULTILINE)
    assert len(set(links)) == 2
    assert [status(app, token) for app, token in zip(served, links, strict=True)] == [200, 200]
    assert [status(app) for app in served] == [401, 401]


def test_this_machine_needs_no_token(
    gallery: Gallery, served: list[FastAPI], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARKIN_TOKEN", "")  # counts as not set
    serve(gallery, port=0)
    assert "token" not in capsys.readouterr().out
    assert status(served[0]) == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("by", ["argument", "environment"])
def test_a_given_token_is_required_and_never_printed(
    host: str,
    by: str,
    gallery: Gallery,
    served: list[FastAPI],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    if by == "environment":
        monkeypatch.setenv("NEARKIN_TOKEN", TOKEN)
    serve(gallery, host, port=0, open_browser=True, token=TOKEN if by == "argument" else None)
    assert TOKEN not in capsys.readouterr().out + opened[0]
    assert (status(served[0]), status(served[0], TOKEN)) == (401, 200)


@pytest.mark.parametrize("token", ["", "secret"])
def test_a_token_that_is_too_short_is_refused(token: str, gallery: Gallery, served: list[FastAPI]) -> None:
    with pytest.raises(UserError, match="a token must be 16 or more letters"):
        serve(gallery, port=0, token=token)
    assert served == []


@pytest.mark.parametrize("package", ["uvicorn", "fastapi", "python_multipart"])
def test_a_missing_extra_is_one_sentence(package: str, gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("nearkin.serve.") and not name.endswith("server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"serving needs {package}; run `pip install 'nearkin\[serve\]'`"):
        serve(gallery)


def test_a_real_gallery_is_served_until_ctrl_c(photos: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    grey = Preprocess(size=16, resize=16, channels=1, mean=(0.5,), std=(0.5,))
    Embedder(EmbeddingModel(ModelSpec("small", 8, "always", grey))).save(tmp_path / "model")
    Gallery.index(tmp_path / "model", photos, tmp_path / "gallery.index").close()
    command = ["serve", str(tmp_path / "gallery.index"), "--port", "0", "--allow-host", "images.example"]
    server = subprocess.Popen(
        [sys.executable, "-m", "nearkin", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert server.stdout is not None
        said = re.fullmatch(r"36 items at (http://127\.0\.0\.1:\d+) \(stop with Ctrl-C\)\n", server.stdout.readline())
        assert said is not None
        body = b'--x\r\nContent-Disposition: form-data; name="file"; filename="q"\r\n\r\n%b\r\n--x--\r\n'
        request = urllib.request.Request(
            f"{said[1]}/api/search",
            body % image_bytes((80, 80, 80)),
            {"Content-Type": "multipart/form-data; boundary=x"},
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert b'"name":"class' in answer.read()
        known, strange = (
            urllib.request.Request(f"{said[1]}/api/health", headers={"Host": name})
            for name in ("images.example", "evil.images.example")
        )
        with urllib.request.urlopen(known, timeout=20) as answer:
            assert answer.status == 200
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(strange, timeout=20)
        server.send_signal(signal.SIGINT)
        _, complaints = server.communicate(timeout=15)
        assert (server.returncode, complaints) == (0, "")
    finally:
        server.kill()
