"""Cases for the campaign that do what nearkin must never do, for `test_campaign`."""

from __future__ import annotations

import ctypes
import os
import socket
import time
from random import Random

from benchmarks.campaign.worker import Action, Refused, Sandbox


def sound(rng: Random, sandbox: Sandbox) -> Action:
    """Writes to its output, and rejects half of the inputs."""
    refuse = rng.random() < 0.5

    def act() -> None:
        (sandbox.out / "result").write_text("done")
        if refuse:
            raise Refused("no, thank you")

    return act


def traceback(_: Random, __: Sandbox) -> Action:
    return lambda: {}["no such key"]


def hang(_: Random, __: Sandbox) -> Action:
    return lambda: time.sleep(60)


def memory(_: Random, __: Sandbox) -> Action:
    return lambda: (b"x" * 300_000_000, time.sleep(0.2))


def crash(_: Random, __: Sandbox) -> Action:
    return lambda: os._exit(9)


def changed(_: Random, sandbox: Sandbox) -> Action:
    """Deletes a user's file without going through Python, as a database might."""
    return lambda: ctypes.CDLL(None).unlink(os.fsencode(sandbox.home / "thesis.txt"))


def executed(_: Random, __: Sandbox) -> Action:
    return lambda: os.system("true")


def connected(_: Random, __: Sandbox) -> Action:
    def act() -> None:
        with socket.socket() as connection:
            connection.settimeout(0.01)
            connection.connect_ex(("192.0.2.1", 9))

    return act
