"""Hostile HTTP requests, as bytes; every function is deterministic.

The server must answer each with one sentence and a status below 500, or close the connection. It must not log a
traceback, and it must keep answering others. `send` sends one request; `every_request` yields all of them, then
mutations.
"""

from __future__ import annotations

import random
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from select import select
from urllib.parse import quote

BOUNDARY = "x"
LABELS = [
    "no such label",
    "' OR 1=1 --",
    '"; DROP TABLE items; --',
    "%",
    "\0",
    "a\0b",
    "\x7f\x1b[2J",
    "\ud800",
    "\u202e\u0000\uffff",
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "--1",
    "9" * 5000,
    "é" * 2000,
    " ",
    "\r\nSet-Cookie: a=b",
]
NUMBERS = [
    "0",
    "-1",
    "201",
    "1e9",
    "NaN",
    "inf",
    "٣",
    "²",
    "0x10",
    "1_0",
    " 5",
    "5 ",
    "",
    "9" * 5000,
    "\0",
    "1.0",
    "[]",
]
IDS = [
    "0",
    "-1",
    "1e3",
    "99999999999999999999",
    "9" * 4301,
    "1;2",
    "%00",
    "1%00",
    "..",
    "%2e%2e",
    "%2fetc%2fpasswd",
    "٣",
]
PATHS = [
    "/../../../../etc/passwd",
    "/..%2f..%2f..%2fetc%2fpasswd",
    "/%2e%2e/%2e%2e/server.py",
    "/..%5c..%5cserver.py",
    "//etc/passwd",
    "/page.js%00.png",
    "/%00",
    "/%ff%fe",
    "/%",
    "/%zz",
    "/" + "a" * 5000,
    "/" + "../" * 2000,
    "/api/items/..%2f1/image",
    "/api/items//image",
    "/api/items/1/image/../../../health",
    "/api/items/1/thumbnail/",
    "/page/../../app.py",
    "/CON",
    "/~root",
    "http://elsewhere.example/api/health",
    "*",
    "?",
]
CHARSETS = ["nonsense", "utf-16", "utf-7", "idna", "punycode", "undefined", "rot13", "hex", "zlib", "unicode_escape"]
CHARSETS += [
    "utf-8-sig",
    "cp037",
    "''",
    '"',
    "a" * 3000,
    "../utf_8",
    "\x01",
    "é",
    "utf-8;charset=idna",
    "raw_unicode_escape",
]
TYPES = ["", "multipart/form-data", "multipart/form-data;", "multipart/form-data; boundary=", "application/json"]
TYPES += ["text/plain", "application/x-www-form-urlencoded", "image/png", "multipart/mixed; boundary=x"]
TYPES += [
    "multipart/form-data; boundary=" + "b" * 5000,
    'multipart/form-data; boundary="',
    "multipart/form-data boundary=x",
]
TYPES += [
    "multipart/form-data; boundary=é",
    "multipart/form-data; boundary=x; boundary=y",
    "multipart/form-data; BOUNDARY*=x",
]

NOT_HTTP = [b"\r\n" * 3000, b"\0" * 300, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9, b"a" * 100_000]
NOT_HTTP += [b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
NOT_HTTP += [b"GET / HTTP/1.1\n\n", b"GET / HTTP/1.1\r\n\r\n"]


@dataclass(frozen=True)
class HostileRequest:
    """One connection.

    Args:
        name: what is wrong with it.
        raw: head and body, as sent.
        aborted: whether to close the connection after ``raw``, without waiting for an answer.
        pause: seconds between two bytes; 0: send everything at once.
    """

    name: str
    raw: bytes
    aborted: bool = False
    pause: float = 0.0


def request(
    method: str = "GET", target: str = "/api/health", headers: dict[str, str] | None = None, body: bytes = b""
) -> bytes:
    """The bytes of a request; nothing is checked or quoted.

    >>> request("GET", "/", {"A": "b"})
    b'GET / HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nConnection: close\\r\\nA: b\\r\\n\\r\\n'
    """
    fields = {"Host": "127.0.0.1", "Connection": "close"} | (headers or {})
    if body:
        fields = {"Content-Length": str(len(body))} | fields
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode("utf-8", "surrogatepass") + body


def part(disposition: str, content: bytes, more: str = "") -> bytes:
    """One field of a form."""
    head = f"--{BOUNDARY}\r\nContent-Disposition: {disposition}\r\n{more}\r\n"
    return head.encode("utf-8", "surrogatepass") + content + b"\r\n"


def form(
    image: bytes, fields: dict[str, str] | None = None, content_type: str | None = None, end: bytes = b"--x--\r\n"
) -> bytes:
    """A search by image, by default as a browser sends it."""
    body = part('form-data; name="file"; filename="a.png"', image)
    for name, value in (fields or {}).items():
        body += part(f'form-data; name="{name}"', value.encode("utf-8", "surrogatepass"))
    kind = f"multipart/form-data; boundary={BOUNDARY}" if content_type is None else content_type
    return request("POST", "/api/search", {"Content-Type": kind}, body + end)


def malformed_forms(image: bytes) -> Iterator[HostileRequest]:
    """Forms that end too early, have too many parts, or are not forms."""
    file = 'form-data; name="file"; filename="a"'
    bodies = {
        "empty": b"",
        "only its end": b"--x--\r\n",
        "no end": part(file, image),
        "no first boundary": image,
        "boundary cut": part(file, image) + b"--",
        "line feeds only": part(file, image).replace(b"\r\n", b"\n") + b"--x--\n",
        "header without colon": b"--x\r\nContent-Disposition\r\n\r\n\r\n--x--\r\n",
        "header without end": b"--x\r\nContent-Disposition: " + b"a" * 70_000,
        "many headers": b"--x\r\n" + b"A: b\r\n" * 9000 + b"\r\n\r\n--x--\r\n",
        "no disposition": b"--x\r\n\r\nabc\r\n--x--\r\n",
        "no name": part("form-data", b"abc") + b"--x--\r\n",
        "empty name": part('form-data; name=""', b"abc") + b"--x--\r\n",
        "name not UTF-8": part(file, image).replace(b'name="file"', b'name="\xff\xfe"') + b"--x--\r\n",
        "file name not UTF-8": part(file, image).replace(b'"a"', b'"\xff\xfe"') + b"--x--\r\n",
        "file name with a path": part('form-data; name="file"; filename="../../../etc/cron.d/x"', image) + b"--x--",
        "file name with NUL": part('form-data; name="file"; filename="a\0b"', image) + b"--x--\r\n",
        "file name encoded": part("form-data; name=\"file\"; filename*=idna''%ff", image) + b"--x--\r\n",
        "text as file": part('form-data; name="file"', b"abc") + b"--x--\r\n",
        "two files": part(file, image) * 2 + b"--x--\r\n",
        "k twice": part(file, image) + part('form-data; name="k"', b"1") * 2 + b"--x--\r\n",
        "many fields": part('form-data; name="a"', b"b") * 5000 + b"--x--\r\n",
        "a field of 2 MB": part('form-data; name="label"', bytes(2_000_000)) + b"--x--\r\n",
        "a form in the form": part(file, part(file, image)) + b"--x--\r\n",
        "part with a length": part(file, image, "Content-Length: -1\r\n") + b"--x--\r\n",
        "part in base64": part(file, image, "Content-Transfer-Encoding: base64\r\n") + b"--x--\r\n",
        "part of an odd type": part(file, image, "Content-Type: text/plain; charset=idna\r\n") + b"--x--\r\n",
        "nothing but zeros": bytes(100_000),
    }
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    for name, body in bodies.items():
        yield HostileRequest(f"form: {name}", request("POST", "/api/search", headers, body))


def wrong_types(image: bytes) -> Iterator[HostileRequest]:
    """Invalid content types, and character sets that cannot decode."""
    for kind in TYPES:
        yield HostileRequest(f"type: {kind[:60]}", form(image, content_type=kind))
    for charset in CHARSETS:
        for kind in (
            f"multipart/form-data; charset={charset}; boundary=x",
            f"multipart/form-data; boundary=x; charset={charset}",
        ):
            name = f"charset: {charset[:60]!r}"
            yield HostileRequest(name, form(image, {"label": "ü\0"}, kind))


def bad_labels(image: bytes) -> Iterator[HostileRequest]:
    """Unknown labels, in the query and in the form."""
    for label in LABELS:
        quoted = quote(label.encode("utf-8", "surrogatepass"))
        for target in (f"/api/items?label={quoted}", f"/api/items/1/neighbours?label={quoted}"):
            yield HostileRequest(f"label: {label[:40]!r}", request(target=target))
        yield HostileRequest(f"label in a form: {label[:40]!r}", form(image, {"label": label}))
    yield HostileRequest("label that is not UTF-8", request(target="/api/items?label=%ff%fe"))


def bad_queries(image: bytes) -> Iterator[HostileRequest]:
    """Numbers that are invalid or out of range, and endless query strings."""
    for number in NUMBERS:
        quoted = quote(number.encode("utf-8", "surrogatepass"))
        for target in (
            f"/api/items?k={quoted}",
            f"/api/items/1/neighbours?k={quoted}",
            f"/api/items/1/thumbnail?size={quoted}",
        ):
            yield HostileRequest(f"number: {number[:40]!r}", request(target=target))
        yield HostileRequest(f"number in a form: {number[:40]!r}", form(image, {"k": number}))
    for id in IDS:
        for kind in ("neighbours", "thumbnail", "image"):
            yield HostileRequest(f"item: {id[:40]}", request(target=f"/api/items/{quote(id, safe='%;.')}/{kind}"))
    for query in (
        "&" * 5000,
        "k=1&" * 2000,
        "k[]=1",
        "k=1&k=2",
        "=",
        "label",
        "%",
        "k=%",
        "k=1#k=2",
        ";" * 3000,
        "__proto__=1",
    ):
        yield HostileRequest(f"query: {query[:40]}", request(target=f"/api/items?{query}"))


def path_tricks() -> Iterator[HostileRequest]:
    """Paths that are invalid or lead out of the page's folder."""
    for path in PATHS:
        yield HostileRequest(f"path: {path[:60]}", request(target=path))


def wrong_methods(image: bytes) -> Iterator[HostileRequest]:
    """Every HTTP method at every kind of address."""
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "HEAD", "get", "FOO", "X" * 3000):
        for target in ("/", "/page.js", "/api/search", "/api/health", "/api/items/1/image", "/nothing"):
            yield HostileRequest(f"method: {method[:20]} {target}", request(method, target, body=b"abc"))
    yield HostileRequest("method: a form by PUT", form(image).replace(b"POST", b"PUT", 1))


def odd_headers() -> Iterator[HostileRequest]:
    """Headers that are too large, contradict each other, or come from another site."""
    headers: dict[str, dict[str, str]] = {
        "a large one": {"X": "a" * 60_000},
        "many": {f"X-{number}": "a" for number in range(2000)},
        "a length below zero": {"Content-Length": "-1"},
        "a length that is no number": {"Content-Length": "²"},
        "a length of 5,000 digits": {"Content-Length": "9" * 5000},
        "a length of terabytes": {"Content-Length": str(2**42)},
        "two ways to tell the length": {"Content-Length": "5", "Transfer-Encoding": "chunked"},
        "an unknown encoding": {"Transfer-Encoding": "gzip, chunked"},
        "another origin": {"Origin": "https://elsewhere.example"},
        "no origin": {"Origin": "null"},
        "an origin that is none": {"Origin": "http://[::1"},
        "another site": {"Sec-Fetch-Site": "cross-site"},
        "another host": {"Host": "elsewhere.example"},
        "no host": {"Host": ""},
        "a host that is none": {"Host": "[::1:80:@"},
        "a host with half a bracket": {"Host": "[::1"},
        "a forwarded address that is none": {"X-Forwarded-For": ", ,\x01,999.1.2.3", "X-Forwarded-Proto": "\xff"},
        "a token that is none": {"Authorization": "Bearer \xff\xfe"},
        "a log-in": {"Authorization": "Basic AAAA"},
        "a cookie without end": {"Cookie": "=;" * 5000},
        "a range": {"Range": "bytes=9-1,-5," + "0-0," * 3000},
        "a tag": {"If-None-Match": '"' * 5000},
        "a date": {"If-Modified-Since": "Thu, 99 Foo 99999 99:99:99 GMT"},
        "an upgrade": {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Key": "a",
            "Sec-WebSocket-Version": "13",
        },
        "an expectation": {"Expect": "200-maybe"},
        "a name that is none": {"A B": "c"},
        "a character that may not be": {"A": "b\0c"},
        "a line folded": {"A": "b\r\n c"},
        "another request inside": {"A": "b\r\n\r\nGET /api/labels HTTP/1.1"},
    }
    for name, given in headers.items():
        for target in ("/", "/api/items/1/thumbnail"):
            yield HostileRequest(f"head with {name}", request(target=target, headers=given))
        yield HostileRequest(
            f"form with {name}",
            request("POST", "/api/search", {"Content-Type": "multipart/form-data; boundary=x"} | given),
        )
    for raw in NOT_HTTP:
        yield HostileRequest(f"not HTTP: {raw[:20]!r}", raw)
    chunked = {"Transfer-Encoding": "chunked", "Content-Type": "multipart/form-data; boundary=x"}
    for body in (
        b"zz\r\n",
        b"-1\r\n\r\n",
        b"ffffffffffffffffffff\r\n",
        b"5;" + b"a" * 9000 + b"\r\nabcde\r\n0\r\n\r\n",
        b"0\r\nA: b\r\n\r\n",
    ):
        yield HostileRequest(f"chunks: {body[:20]!r}", request("POST", "/api/search", chunked) + body)
    yield HostileRequest("many requests on one connection", request(headers={"Connection": "keep-alive"}) * 300)


def aborted(image: bytes, count: int = 20) -> Iterator[HostileRequest]:
    """A valid search that is aborted: before its first byte, in the head, in the body, before the answer."""
    whole = form(image)
    for place in range(count):
        yield HostileRequest(f"aborted after {place}/{count}", whole[: len(whole) * place // count], aborted=True)
    yield HostileRequest("aborted before the answer", whole, aborted=True)
    yield HostileRequest("aborted before an image", request(target="/api/items/1/image"), aborted=True)


def slow(image: bytes, pause: float = 1.0) -> Iterator[HostileRequest]:
    """A head and a body that arrive very slowly."""
    whole = form(image)
    yield HostileRequest("slow head", whole, pause=pause)
    yield HostileRequest("slow body", whole.replace(b"Connection: close", b"Connection: keep-alive"), pause=pause)


def mutations(image: bytes, count: int, seed: int = 0) -> Iterator[HostileRequest]:
    """Requests of all kinds with some bytes changed, removed, repeated or inserted."""
    rng = random.Random(seed)
    begin = [HostileRequest("search", form(image, {"k": "3", "label": "a"})), *_single(image)]
    for _ in range(count):
        chosen = rng.choice(begin)
        raw = bytearray(chosen.raw)
        for _ in range(rng.randint(1, 6)):
            at, upto = rng.randrange(len(raw) + 1), rng.randrange(1, 9)
            raw[at : at + upto] = rng.choice([b"", rng.randbytes(3), bytes(raw[:40]), b"\r\n", b"%00"])
        yield replace(chosen, name=f"mutated {chosen.name}", raw=bytes(raw))


def every_request(image: bytes, mutated: int = 0, seed: int = 0) -> Iterator[HostileRequest]:
    """All of the above except the slow ones, then ``mutated`` mutations."""
    return chain(_single(image), aborted(image), mutations(image, mutated, seed))


def _single(image: bytes) -> Iterator[HostileRequest]:
    kinds = (malformed_forms, wrong_types, bad_labels, bad_queries, wrong_methods)
    return chain(path_tricks(), odd_headers(), *(kind(image) for kind in kinds))


@dataclass(frozen=True)
class Answer:
    """The answer; status 0 if the connection was closed without one."""

    status: int
    head: bytes
    body: bytes
    seconds: float


def send(address: tuple[str, int], hostile: HostileRequest, timeout: float = 5.0) -> Answer:
    """Sends one request and reads the answer.

    Args:
        timeout: seconds before giving up. If no answer has started within a fifth of it, the server may be waiting for
            more, so the sending side is closed.
    """
    began, received = time.monotonic(), b""
    with socket.create_connection(address, timeout) as connection:
        connection.settimeout(timeout)
        try:
            if hostile.pause:
                for byte in hostile.raw:
                    connection.send(bytes([byte]))
                    time.sleep(hostile.pause)
                    if time.monotonic() - began > timeout:
                        break
            else:
                connection.sendall(hostile.raw)
            if not hostile.aborted:
                if not select([connection], [], [], timeout / 5)[0]:
                    connection.shutdown(socket.SHUT_WR)
                while not _is_whole(received) and (more := connection.recv(2**16)):
                    received += more
        except OSError:  # closed by the server, or too slow
            pass
    head, _, body = received.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1] if head.startswith(b"HTTP/") else b"0"
    return Answer(int(status), head, body, time.monotonic() - began)


def _is_whole(received: bytes) -> bool:
    """Whether the answer is complete: a server may keep the connection open."""
    head, _, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
    return length is not None and len(body) >= int(length[1])
