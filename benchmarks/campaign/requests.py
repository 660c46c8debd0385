"""Hostile requests to a real `nearkin serve`."""

from __future__ import annotations

import json
import socket
import threading
import time
from functools import cache
from pathlib import Path
from random import Random

from benchmarks.campaign.images import damaged_image
from benchmarks.campaign.worker import Action, Failure, Refused, Sandbox
from tests.reference.hostile_requests import HostileRequest, every_request, form, mutations, request, send

Address = tuple[str, int]
HEALTH = HostileRequest("health", request())


def case(rng: Random, sandbox: Sandbox) -> Action:
    """One hostile request; afterwards the server must still answer a valid one."""
    image = (sandbox.specimens / "photos" / "class0" / "0.png").read_bytes()
    way = rng.randrange(3)
    if way == 0:
        hostile = rng.choice(_listed(image))
    elif way == 1:
        (hostile,) = mutations(image, count=1, seed=rng.getrandbits(32))
    else:
        hostile = HostileRequest("damaged image", form(damaged_image(rng, sandbox)[1]))
    (sandbox.input / "request.txt").write_bytes(hostile.raw)
    address = start_server(sandbox.specimens / "gallery")
    return lambda: _send(address, hostile, sandbox)


def _send(address: Address, hostile: HostileRequest, sandbox: Sandbox) -> None:
    answer = send(address, hostile, timeout=4.0)
    if answer.status >= 500 and answer.status != 503:
        raise Failure("traceback", f"{hostile.name}: answered {answer.status}")
    if str(sandbox.folder.parent).encode() in answer.head + answer.body:
        raise Failure("leak", f"{hostile.name}: the answer contains a path")
    if send(address, HEALTH, timeout=4.0).status != 200:
        raise Failure("silence", f"{hostile.name}: the server no longer answers")
    if not 200 <= answer.status < 400:
        _check_refusal(answer.status, answer.body, hostile)


def _check_refusal(status: int, body: bytes, hostile: HostileRequest) -> None:
    """Checks that the answer is a sentence; for invalid HTTP, the server's own text or a closed connection."""
    try:
        text = body.decode()  # a second answer may follow, if the request was read as two
        sentence = json.JSONDecoder().raw_decode(text)[0]["detail"] if text.startswith("{") else text
    except (ValueError, KeyError) as error:
        raise Failure("wrong", f"{hostile.name}: answered {status} with {body[:200]!r}") from error
    raise Refused(f"{status} {sentence!a}")


@cache
def _listed(image: bytes) -> list[HostileRequest]:
    return list(every_request(image))


@cache
def start_server(gallery: Path) -> Address:
    """Starts the server, once per worker process."""
    from nearkin import Gallery

    with socket.create_server(("127.0.0.1", 0)) as free:
        address = ("127.0.0.1", int(free.getsockname()[1]))
    opened = Gallery.open(gallery)
    threading.Thread(target=opened.serve, kwargs={"port": address[1]}, daemon=True).start()
    for _ in range(200):
        time.sleep(0.05)
        try:
            if send(address, HEALTH).status == 200:
                return address
        except OSError:
            continue
    raise RuntimeError("the server did not start")
