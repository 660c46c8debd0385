"""A real server and hostile clients: others are still answered, and the log stays short."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection

import pytest
from reference.hostile_requests import HostileRequest, aborted, every_request, form, request, send
from serve.colours import image_bytes
from serve.running import running

from nearkin.search import Gallery
from nearkin.serve import app as serve_app
from nearkin.serve import connections, server, slots
from nearkin.serve.app import make_app

Address = tuple[str, int]
INCOMPLETE_HEADERS = b"GET /api/health HTTP/1.1\r\nHost: 127"


@pytest.fixture
def address(gallery: Gallery) -> Iterator[Address]:
    with running(make_app(gallery, max_upload_mb=1)) as address:
        yield address


@contextmanager
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No errors may be logged, neither by nearkin nor by uvicorn, which has its own logger."""
    logger = logging.getLogger("uvicorn")
    logger.addHandler(caplog.handler)
    try:
        yield
    finally:
        logger.removeHandler(caplog.handler)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def answers(address: Address, raw: bytes) -> int:
    """The status of a response that must come within two seconds."""
    answer = send(address, HostileRequest("honest", raw), timeout=10)
    assert answer.seconds < 2
    return answer.status


def is_closed(client: socket.socket, within: float) -> bool:
    client.settimeout(within)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def test_incomplete_headers_do_not_block_others(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "max_connections", lambda: 10)
    with ExitStack() as held:
        clients = [held.enter_context(socket.create_connection(address)) for _ in range(30)]
        for client in clients:
            client.sendall(INCOMPLETE_HEADERS)
        assert answers(address, request()) == 200
        assert all(is_closed(client, 1) for client in clients[:19])
        assert not is_closed(clients[-1], 0.01)


def test_headers_have_a_deadline_that_more_bytes_do_not_extend(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)
    with socket.create_connection(address) as client, socket.create_connection(address) as second:
        second.sendall(
            request(headers={"Connection": "keep-alive"}) + INCOMPLETE_HEADERS
        )  # the next headers on a connection
        for _ in range(3):
            client.sendall(b"a")
            time.sleep(0.05)
            second.sendall(b"a")
        assert is_closed(client, 0.5)
        second.settimeout(0.5)
        with pytest.raises(ConnectionResetError):
            while second.recv(2**16):
                pass
            raise ConnectionResetError


def test_a_client_that_does_not_read_is_disconnected(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READ_SECONDS", 0.2)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(address)
        client.settimeout(3)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            for _ in range(600):
                client.sendall(request(target="/openapi.json", headers={"Connection": "keep-alive"}) * 50)
                time.sleep(0.005)
    assert answers(address, request()) == 200


def test_the_second_piece_of_a_response_does_not_wait_for_an_acknowledgement(address: Address) -> None:
    client, seconds = HTTPConnection(*address), []
    for _ in range(40):
        began = time.perf_counter()
        client.request("GET", "/api/items/1/thumbnail")
        client.getresponse().read()
        seconds.append(time.perf_counter() - began)
    client.close()
    assert min(seconds[20:]) < 0.03  # acknowledgements are delayed by 40 ms, except for the first packets


def test_slow_bodies_do_not_block_others(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_app, "MAX_UPLOADS", 4)
    monkeypatch.setattr(slots, "GRACE_SECONDS", 0.2)
    whole = form(image_bytes(side=200))
    with running(make_app(gallery)) as address, ExitStack() as held:
        for _ in range(12):
            held.enter_context(socket.create_connection(address)).sendall(whole[:250])
        assert answers(address, request()) == 200
        assert answers(address, whole) == 200


def test_every_hostile_request_is_refused_in_a_sentence_and_nothing_is_logged(
    address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    with quiet(caplog):
        for hostile in every_request(image_bytes(), mutated=10):
            answer = send(address, hostile, timeout=1.5)
            assert answer.status < 500, hostile.name
            assert answer.seconds < 2, hostile.name
            if answer.status >= 400 and b"HEAD" not in hostile.raw[:4] and b"Invalid HTTP" not in answer.body:
                assert list(json.loads(answer.body)) == ["detail"], hostile.name
        assert answers(address, request()) == 200


def test_interrupted_uploads_are_not_logged(address: Address, caplog: pytest.LogCaptureFixture) -> None:
    with quiet(caplog):
        for hostile in aborted(image_bytes()):
            send(address, hostile)
        assert answers(address, form(image_bytes())) == 200


def test_requests_cancelled_at_shutdown_leave_one_line_in_the_log(
    gallery: Gallery, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STOP_SECONDS", 0)
    with ExitStack() as held:
        with running(make_app(gallery)) as address:
            logging.getLogger("uvicorn").addHandler(caplog.handler)
            clients = [held.enter_context(socket.create_connection(address)) for _ in range(3)]
            for client in clients:
                client.sendall(form(image_bytes())[:250])
            time.sleep(0.2)
        logging.getLogger("uvicorn").removeHandler(caplog.handler)
    assert caplog.text.count("\n") == 1
    assert "Cancel 3 running task(s)" in caplog.text


def test_a_body_that_stops_being_http_leaves_no_traceback(
    address: Address, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("uvicorn"), "handlers", [caplog.handler])
    head = {"Transfer-Encoding": "chunked", "Content-Type": "multipart/form-data; boundary=x"}
    for body in (b"5;" + b"a" * 9000 + b"\r\nabcde\r\n0\r\n\r\n", b"5\r\nabcdeX\r\n", b"5\r\nabcde\r\nzz\r\n"):
        bad = HostileRequest("bad chunks", request("POST", "/api/search", head) + body)
        assert send(address, bad).status == 400
    assert send(address, HostileRequest("health", request())).status == 200
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
