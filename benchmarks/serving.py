"""`nearkin serve` under load: throughput, latency and memory.

    pip install 'nearkin[serve]'
    python benchmarks/serving.py                              # 8 and 32 clients, a minute each; then 5,000 requests
    python benchmarks/serving.py --seconds 5 --requests 500   # a trial run
    python benchmarks/serving.py --gallery photos.index --image query.jpg --out docs/results/serving.json

Every client acts like a user of the page, without pauses: it searches by image, loads eight thumbnails of the results,
and asks for the neighbours of the first one. It keeps its connection open, sends one request at a time, and counts
every status other than 200 as an error. Without `--gallery`, the script makes a gallery of 1,000 images (320 × 240
pixels, JPEG) with the untrained backbone `small`, so it measures the server, decoding and search, not a large network.
Clients and server share the machine. "memory" is that of the server and its processes, before and after; "load" is the
machine's load average over the last minute.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image
from provenance import made

import nearkin
from nearkin.data.transforms import Preprocess
from nearkin.models import Embedder, EmbeddingModel, ModelSpec

LABELS, PER_LABEL, THUMBNAILS = 50, 20, 8
FORM = b'--x\r\nContent-Disposition: form-data; name="file"; filename="query.jpg"\r\n\r\n%b\r\n--x--\r\n'


@dataclass(frozen=True)
class Measured:
    """Result of one phase; milliseconds as (median, 99th percentile), of all requests and of each kind."""

    clients: int
    requests: int
    errors: int
    per_second: float
    milliseconds: dict[str, tuple[float, float]]
    megabytes_before: float
    megabytes_after: float
    load: float


class Client:
    """A user of the page who never pauses."""

    def __init__(self, port: int, image: bytes) -> None:
        self._connection, self._body = HTTPConnection("127.0.0.1", port, timeout=60), FORM % image
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.errors = 0

    def visit(self, may_continue: Callable[[], bool]) -> None:
        """One search after the other, until ``may_continue`` says no."""
        while may_continue():
            found = json.loads(self._ask("search", "/api/search") or '{"neighbours": []}')["neighbours"]
            for each in found[:THUMBNAILS]:
                if not may_continue():
                    return
                self._ask("thumbnail", f"/api/items/{each['id']}/thumbnail")
            if found and may_continue():
                self._ask("neighbours", f"/api/items/{found[0]['id']}/neighbours")

    def _ask(self, kind: str, path: str) -> bytes:
        began = time.perf_counter()
        try:
            if kind == "search":
                self._connection.request("POST", path, self._body, {"Content-Type": "multipart/form-data; boundary=x"})
            else:
                self._connection.request("GET", path)
            answer = self._connection.getresponse()
            content = answer.read()
            failed = answer.status != 200
        except (OSError, HTTPException):
            self._connection.close()
            failed = True
        self.seconds[kind].append(time.perf_counter() - began)
        self.errors += failed
        return b"" if failed else content


def measure(server: int, port: int, image: bytes, clients: int, may_continue: Callable[[], bool]) -> Measured:
    """One phase, with ``clients`` clients in parallel."""
    people = [Client(port, image) for _ in range(clients)]
    before, start = megabytes(server), time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(lambda person: person.visit(may_continue), people))
    seconds, after = time.perf_counter() - start, megabytes(server)
    kinds = {kind: [each for person in people for each in person.seconds[kind]] for kind in people[0].seconds}
    kinds = {"all": [each for some in kinds.values() for each in some], **kinds}
    spread = {
        kind: (float(np.quantile(some, 0.5)) * 1e3, float(np.quantile(some, 0.99)) * 1e3)
        for kind, some in kinds.items()
    }
    requests, errors = len(kinds["all"]), sum(person.errors for person in people)
    return Measured(clients, requests, errors, requests / seconds, spread, before, after, os.getloadavg()[0])


def for_seconds(seconds: float) -> Callable[[], bool]:
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() < end


def for_requests(count: int) -> Callable[[], bool]:
    left, lock = iter(range(count)), threading.Lock()

    def may_continue() -> bool:
        with lock:
            return next(left, None) is not None

    return may_continue


def make_gallery(folder: Path) -> Path:
    """A gallery of blurred noise in 50 colours."""
    rng = np.random.default_rng(0)
    for label in range(LABELS):
        (folder / "photos" / f"{label:02}").mkdir(parents=True)
        tint = rng.integers(0, 160, 3)
        for number in range(PER_LABEL):
            noise = Image.fromarray((rng.integers(0, 95, (30, 40, 3)) + tint).astype(np.uint8))
            noise.resize((320, 240)).save(folder / "photos" / f"{label:02}" / f"{number:02}.jpg", quality=90)
    preprocess = Preprocess(size=28, resize=28, channels=1, mean=(0.5,), std=(0.5,))
    Embedder(EmbeddingModel(ModelSpec("small", 64, "always", preprocess))).save(folder / "model")
    nearkin.index(folder / "model", folder / "photos", folder / "photos.index").close()
    return folder / "photos.index"


def noise_image() -> bytes:
    encoded = BytesIO()
    Image.effect_noise((40, 30), 60).convert("RGB").resize((640, 480)).save(encoded, "JPEG")
    return encoded.getvalue()


def start(gallery: Path) -> tuple[subprocess.Popen[str], int]:
    """Starts the server; returns its process and port."""
    command = [sys.executable, "-m", "nearkin", "serve", str(gallery), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    found = re.search(r":(\d+) \(stop", server.stdout.readline())
    assert found is not None
    return server, int(found[1])


def megabytes(process: int) -> float:
    """Memory of a process and all its child processes (Linux)."""
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    own = float(next(line.split()[1] for line in status if line.startswith("VmRSS"))) / 1024
    threads = Path(f"/proc/{process}/task").iterdir()
    return own + sum(megabytes(int(child)) for each in threads for child in (each / "children").read_text().split())


HEAD = """\
| clients | requests | errors | requests/s | p50, ms | p99, ms | search p50 | search p99 | MB before | MB after | load |
|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"""


def row(each: Measured) -> str:
    times = " | ".join(f"{ms:,.0f}" for kind in ("all", "search") for ms in each.milliseconds[kind])
    return (
        f"| {each.clients} | {each.requests:,} | {each.errors} | {each.per_second:,.0f} | {times} | "
        f"{each.megabytes_before:,.0f} | {each.megabytes_after:,.0f} | {each.load:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--clients", type=int, nargs="+", default=[8, 32], help="parallel clients, one phase per number"
    )
    parser.add_argument("--seconds", type=float, default=60, help="length of each of these phases")
    parser.add_argument(
        "--requests", type=int, default=5000, help="requests of the last phase, with the first number of clients"
    )
    parser.add_argument("--gallery", type=Path, help="gallery to serve instead")
    parser.add_argument("--image", type=Path, help="image to search for instead")
    parser.add_argument("--out", type=Path, help="also write everything as JSON")
    options = parser.parse_args()
    about = made("cpu")
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    with ExitStack() as stack:
        gallery = options.gallery or make_gallery(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        image = options.image.read_bytes() if options.image else noise_image()
        server, port = start(gallery)
        try:
            measure(server.pid, port, image, 1, for_requests(50))  # warm-up
            print(HEAD, flush=True)
            measured = []
            for clients in (*options.clients, None):
                limit = for_requests(options.requests) if clients is None else for_seconds(options.seconds)
                measured.append(measure(server.pid, port, image, clients or options.clients[0], limit))
                print(row(measured[-1]), flush=True)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(20)
    if options.out is not None:
        options.out.write_text(json.dumps({**about, "measured": [asdict(each) for each in measured]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
