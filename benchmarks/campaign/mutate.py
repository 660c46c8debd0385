"""Functions that damage bytes, JSON, TOML, zip archives, and files in a folder."""

from __future__ import annotations

import json
import os
import re
import struct
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

MARKUP = "<img src=x onerror=alert(1)>"  # must be escaped on every page
ESCAPE = "\x1b]0;owned\x07\x1b[2J"  # must never reach a terminal
LARGEST = 4_000_000  # bytes in a damaged file

EXTREMES = (0, 1, -1, 127, 128, 255, 256, 32767, 32768, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)

JSON_VALUES = (
    "null", "true", "false", "0", "-1", "1", "1.5", "1e999", "-1e999", "NaN", "1e-320", "9223372036854775808",
    "9" * 5000, '""', '"1"', '"\\u0000"', '"\\ud800"', '"../../home/thesis.txt"', '"/dev/zero"', '"[]"', "[]", "{}",
    "[[[]]]", '{"a": 1}', "[null]", "[" * 900 + "]" * 900, "[" * 100_000, '{"a":' * 100_000, f'"{"A" * 200_000}"',
    json.dumps(MARKUP), json.dumps(ESCAPE), '"none"', '"auto"', '"é中\\u202e"', "",
)  # fmt: skip
TOML_VALUES = (
    "true", "0", "-1", "1.5", "1e999", "-inf", "nan", "9223372036854775808", "9" * 5000, '""', '"1"', '"\\u0000"',
    '"../../home/thesis.txt"', '"/dev/zero"', "[]", "{}", "[[1], ['a']]", "[" * 900 + "]" * 900, "[" * 100_000,
    "{a=" * 5_000 + "1" + "}" * 5_000, f'"{"A" * 200_000}"', json.dumps(MARKUP), json.dumps(ESCAPE), "1979-05-27",
    '"none"', "0x7fffffffffffffff", '"é中\\u202e"', "'''", "",
)  # fmt: skip


def damaged(content: bytes, rng: Random, first: int | None = None) -> bytes:
    """Damages some bytes, only among the ``first`` ones if given."""
    head, rest = (content, b"") if first is None else (content[:first], content[first:])
    data = bytearray(head)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        rng.choice(WAYS)(data, rng)
    return (bytes(data) + rest)[:LARGEST]


def _flip(data: bytearray, rng: Random) -> None:
    for _ in range(rng.choice((1, 1, 8))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _put_number(data: bytearray, rng: Random) -> None:
    size = rng.choice((1, 2, 4, 8))
    number = rng.choice(EXTREMES) % 256**size
    place = rng.randrange(max(1, len(data) - size + 1))
    data[place : place + size] = number.to_bytes(size, rng.choice(("little", "big")))


def _truncate(data: bytearray, rng: Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _cut(data: bytearray, rng: Random) -> None:
    start = rng.randrange(len(data) + 1)
    del data[start : start + rng.choice((1, 4, 100))]


def _repeat(data: bytearray, rng: Random) -> None:
    start = rng.randrange(len(data) + 1)
    piece = bytes(data[start : start + rng.choice((1, 16, 500))])
    data[start:start] = piece * min(rng.choice((1, 1, 10, 10_000)), LARGEST // max(1, len(piece)))


def _splice(data: bytearray, rng: Random) -> None:
    start, end = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
    size = rng.choice((4, 64, 1000))
    data[end : end + size] = data[start : start + size]


def _insert(data: bytearray, rng: Random) -> None:
    place = rng.randrange(len(data) + 1)
    data[place:place] = rng.randbytes(rng.choice((1, 4, 64)))


WAYS: tuple[Callable[[bytearray, Random], None], ...] = (
    _flip, _flip, _put_number, _put_number, _truncate, _cut, _repeat, _splice, _insert,
)  # fmt: skip


def damaged_json(text: str, rng: Random) -> str:
    """JSON with a hostile value, or a missing, duplicate or unknown key."""
    parents: list[dict[str, Any]] = []

    def collect(value: Any) -> None:
        if isinstance(value, dict) and value:
            parents.append(value)
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            collect(each)

    whole = json.loads(text)
    collect(whole)
    hostile = rng.choice(JSON_VALUES)
    if not parents or rng.random() < 0.05:
        return hostile
    parent = rng.choice(parents)
    key = rng.choice(list(parent))
    way = rng.random()
    if way < 0.1:
        del parent[key]
    elif way < 0.2:
        parent[rng.choice(("unknown", "", "__class__", ESCAPE))] = parent.pop(key)
    elif way < 0.25:
        return json.dumps(whole).replace("{", f"{{{json.dumps(key)}: {hostile}, ", 1)
    else:
        parent[key] = "\0here"
    return json.dumps(whole).replace(json.dumps("\0here"), hostile)


def damaged_toml(text: str, rng: Random) -> str:
    """TOML with a hostile value, or a missing, duplicate or renamed line."""
    lines = text.splitlines()
    place = rng.choice([n for n, line in enumerate(lines) if line])
    way = rng.random()
    if way < 0.1:
        del lines[place]
    elif way < 0.2:
        lines.insert(rng.randrange(len(lines) + 1), lines[place])
    elif way < 0.3:
        name = rng.choice(("unknown", "name", '"\\u0000"', "a.b.c"))
        lines[place] = re.sub(r"^\w+", lambda _: name, lines[place])
    else:
        lines[place] = re.sub(r"=.*", lambda _: f"= {rng.choice(TOML_VALUES)}", lines[place])
    return "\n".join(lines)


def payload(target: Path) -> bytes:
    """A pickle that creates the file ``target`` when it is unpickled."""
    return b"cos\nsystem\n(S'touch %s'\ntR." % os.fsencode(target)


def damaged_zip(content: bytes, rng: Random, target: Path, member: Callable[[bytes, Random], bytes]) -> bytes:
    """A zip archive with one member that is damaged by ``member``, a pickle, or wrong in the directory."""
    with zipfile.ZipFile(BytesIO(content)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    place = rng.randrange(len(members))
    name, held = members[place]
    way = rng.randrange(10)
    if way < 5:
        members[place] = (name, member(held, rng))
    elif way == 5:
        members[place] = (name, payload(target))
    elif way == 6:
        members[place] = (rng.choice(("../evil", "/tmp/evil", "a\\b", "", "\0", name + ".npy", ESCAPE)), held)
    elif way == 7:
        members.insert(rng.randrange(len(members) + 1), (name, member(held, rng)))
    elif way == 8:
        del members[place]
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for each, data in members:
            archive.writestr(zipfile.ZipInfo(each or "empty"), data)
    return _damaged_directory(packed.getvalue(), rng) if way == 9 else packed.getvalue()


def _damaged_directory(content: bytes, rng: Random) -> bytes:
    """Puts an extreme value into the flags, method, checksum, sizes or offset of a directory entry."""
    data = bytearray(content)
    places = [found.start() for found in re.finditer(b"PK\x01\x02|PK\x03\x04", content)]
    start = rng.choice(places)
    offset, form = rng.choice(((8, "<H"), (10, "<H"), (16, "<I"), (20, "<I"), (24, "<I"), (42, "<I")))
    number = rng.choice((1, *EXTREMES)) % 256 ** struct.calcsize(form)
    if start + offset + 4 <= len(data):
        struct.pack_into(form, data, start + offset, number)
    return bytes(data)


def damaged_entry(path: Path, rng: Random, home: Path) -> None:
    """Replaces a file by nothing, a folder, a pipe, or a link to a user's file or to a device."""
    path.unlink(missing_ok=True)
    way = rng.randrange(6)
    if way == 0:
        path.mkdir()
    elif way == 1:
        os.mkfifo(path)
    elif way == 2:
        path.symlink_to(rng.choice((home / "thesis.txt", home / "photos" / "items.sqlite")))
    elif way == 3:
        path.symlink_to(rng.choice(("/dev/zero", "/dev/full", path.name, "/proc/self/mem")))
    elif way == 4:
        path.write_bytes(b"")
