"""Damaged runs and models: settings, records, checkpoints and weights."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.campaign.mutate import (
    JSON_VALUES,
    MARKUP,
    damaged,
    damaged_entry,
    damaged_json,
    damaged_toml,
    damaged_zip,
    payload,
)
from benchmarks.campaign.worker import Action, Failure, Sandbox

FILES = (
    "config.toml", "metrics.jsonl", "scores.json", "checkpoints/last.pt", "model/model.json", "model/model.safetensors",
    "data.sha256", "readout.safetensors",
)  # fmt: skip


def case(rng: Random, sandbox: Sandbox) -> Action:
    """A run with one damaged file, and a random command that reads runs."""
    name = rng.choice(("run", "run", "vectors-run"))
    data = sandbox.specimens / ("photos" if name == "run" else "vectors.npz")
    file = rng.choice(FILES)
    actions: list[Callable[[Path], Action]] = [
        lambda run: lambda: sandbox.nearkin("evaluate", run, "--out", sandbox.out / "scores.json"),
        lambda run: lambda: embed(sandbox, run, data),
        lambda run: lambda: report(sandbox, run),
    ]
    if file != "config.toml":  # a damaged number there may ask for a million epochs, which is valid
        actions += 2 * [lambda run: lambda: sandbox.nearkin("resume", run)]
        actions += [lambda run: lambda: sandbox.nearkin("resume", run, "--epochs", "2")]
    if name == "run":
        actions += [lambda run: lambda: sandbox.nearkin("index", run, data, "-o", sandbox.out / "gallery")]
    number = rng.randrange(len(actions))
    run = (sandbox.out if number in (3, 4, 5) and file != "config.toml" else sandbox.input) / "run"
    shutil.copytree(sandbox.specimens / name, run)
    damage(run / file, rng, sandbox.home)
    return actions[number](run)


def damage(file: Path, rng: Random, home: Path) -> None:
    """Damages one file of a run, a model or a gallery, according to its type."""
    if rng.random() < 0.06:
        damaged_entry(file, rng, home)
        return
    content = file.read_bytes() if file.is_file() else _usual(file)
    if rng.random() < 0.2:
        content = damaged(content, rng, first=rng.choice((None, 200)))
    elif file.suffix == ".toml":
        content = damaged_toml(content.decode(), rng).encode()
    elif file.suffix == ".json":
        content = damaged_json(content.decode(), rng).encode()
    elif file.suffix == ".jsonl":
        lines = content.decode().splitlines()
        place = rng.randrange(len(lines))
        lines[place] = rng.choice((damaged_json(lines[place], rng), rng.choice(JSON_VALUES)))
        content = "\n".join([*lines, ""]).encode()
    elif file.suffix == ".pt":
        content = payload(home / "executed") if rng.random() < 0.05 else _checkpoint(content, rng, home)
    elif file.suffix == ".safetensors":
        content = _weights(content, rng)
    else:
        content = damaged(content, rng)
    file.write_bytes(content)


def _usual(file: Path) -> bytes:
    """The content of a file that the specimens do not have."""
    if file.suffix != ".safetensors":
        return b"{}"
    import torch
    from safetensors.torch import save

    return bytes(save({"variance": torch.tensor(0.5, dtype=torch.float64)}))


def _checkpoint(content: bytes, rng: Random, home: Path) -> bytes:
    """A damaged checkpoint archive, or a valid one with a missing value or one of another type."""
    if rng.random() < 0.5:
        return damaged_zip(content, rng, home / "executed", lambda held, rng: damaged(held, rng, first=2_000))
    from io import BytesIO

    import torch

    state = torch.load(BytesIO(content), weights_only=True)
    values: list[Any] = [None, -1, 2**70, 1e300, float("nan"), "text", [], {}, {"a": 1}, True, torch.zeros(3)]
    parent, key = state, rng.choice(list(state))
    while isinstance(parent[key], dict) and parent[key] and rng.random() < 0.8:
        parent, key = parent[key], rng.choice(list(parent[key]))
    if rng.random() < 0.2:
        del parent[key]
    else:
        parent[key] = rng.choice(values)
    packed = BytesIO()
    torch.save(state, packed)
    return packed.getvalue()


def _weights(content: bytes, rng: Random) -> bytes:
    """Weights with a damaged header (types, shapes, offsets) or with values that are not finite."""
    (length,) = struct.unpack_from("<Q", content)
    header, data = content[8 : 8 + length], content[8 + length :]
    way = rng.randrange(4)
    if way == 0:
        numbers = bytearray(data)
        for _ in range(rng.choice((1, 1_000))):
            place = 4 * rng.randrange(len(data) // 4)
            numbers[place : place + 4] = struct.pack("<I", rng.choice((0x7FC00000, 0x7F800000, 0x7F7FFFFF, 0xFF800000)))
        return content[: 8 + length] + bytes(numbers)
    if way == 1:
        tensors = json.loads(header)
        tensor = tensors[rng.choice([name for name in tensors if name != "__metadata__"])]
        key = rng.choice(list(tensor))
        tensor[key] = rng.choice(
            ([0, 2**62], [2**40, 1], [], [-1], [1, 1, 1], "F64", "BOOL", "I8", MARKUP, [0, len(data)], {})
        )
        header = json.dumps(tensors).encode()
    else:
        header = damaged_json(header.decode(), rng).encode() if way == 2 else damaged(header, rng)
    return struct.pack("<Q", len(header)) + header + data


def embed(sandbox: Sandbox, run: Path, data: Path) -> None:
    import numpy as np

    vectors = sandbox.out / "vectors.npz"
    sandbox.nearkin("embed", run, data, "-o", vectors)
    with np.load(vectors) as found:
        if not np.isfinite(found["vectors"]).all():
            raise Failure("wrong", "vectors that are not finite")


def report(sandbox: Sandbox, run: Path) -> None:
    """Writes only the page: separate figures would take seconds."""
    from nearkin.experiments.run_report import write_report

    page = write_report(run, sandbox.out / "report.html", figures=False)
    if MARKUP in page.read_text(encoding="utf-8"):
        raise Failure("markup", "a value from the run's files is unescaped markup on the page")
