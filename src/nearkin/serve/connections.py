"""uvicorn's connections with deadlines: who hardly sends or hardly reads does not keep others out."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections import Counter

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0  # for the head of a request, from its first byte or from the connection
READ_SECONDS = 20.0  # in which a client must take some of an answer
BACKLOG = 128  # connections taken at once; the open files must suffice for them beside the others


class Deadline:
    """Ends a connection some seconds after `start`, unless `stop` comes first; it can be started again."""

    def __init__(self, seconds: float, transport: asyncio.Transport) -> None:
        self._seconds, self._transport = seconds, transport
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._transport.abort)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None


class GuardedProtocol(H11Protocol):
    """One connection. Beyond `max_connections` the client with most idle ones loses the oldest of them.

    A connection is idle while no request of it is being answered: before the head is complete, and after the answer.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # An answer is written in two pieces, and the second would wait 40 ms until the client has confirmed the first;
        # asyncio says so by itself only to sockets that name their protocol.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.since, self.address = self.loop.time(), self.client[0] if self.client else ""
        self._head = Deadline(HEAD_SECONDS, transport)
        self._reader = Deadline(READ_SECONDS, transport)
        self._head.start()
        if len(self.connections) > max_connections():
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.is_idle:
            self._head.start()
        else:
            self._head.stop()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader.start()

    def resume_writing(self) -> None:
        self._reader.stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head.stop()
        self._reader.stop()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _make_room(self) -> None:
        idle = [each for each in self.connections if isinstance(each, GuardedProtocol) and each.is_idle]
        [(crowd, _)] = Counter(each.address for each in idle).most_common(1)
        oldest = min((each for each in idle if each.address == crowd), key=lambda each: each.since)
        self.connections.discard(oldest)  # at once: it is lost only in the next round of the loop
        oldest.transport.abort()


def max_connections() -> int:
    """Half of the files that this process may open, and no more than 512."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 512 if files == resource.RLIM_INFINITY else min(512, files // 2)
