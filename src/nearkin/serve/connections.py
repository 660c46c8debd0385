"""uvicorn connections with deadlines, so that slow clients cannot block the others."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections import Counter

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0  # to send the headers of a request; counted from the connection, or from their first byte
READ_SECONDS = 20.0  # in which a client must read some of a response
BACKLOG = 128  # connections accepted at once; they count towards the limit of open files


class Deadline:
    """Aborts a connection some seconds after `start`, unless `stop` is called first. It can be restarted."""

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
    """One connection. If there are more than `max_connections`, the client with the most idle ones loses its oldest.

    A connection is idle before the headers of a request are complete, and after the response.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # A response is written in two pieces. With Nagle's algorithm the second waits 40 ms for an acknowledgement.
        # asyncio turns the algorithm off only for sockets whose protocol number is set.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.since, self.address = self.loop.time(), self.client[0] if self.client else ""
        self._headers = Deadline(HEADER_SECONDS, transport)
        self._reader = Deadline(READ_SECONDS, transport)
        self._headers.start()
        if len(self.connections) > max_connections():
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.is_idle:
            self._headers.start()
        else:
            self._headers.stop()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader.start()

    def resume_writing(self) -> None:
        self._reader.stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers.stop()
        self._reader.stop()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _make_room(self) -> None:
        idle = [each for each in self.connections if isinstance(each, GuardedProtocol) and each.is_idle]
        [(busiest, _)] = Counter(each.address for each in idle).most_common(1)
        oldest = min((each for each in idle if each.address == busiest), key=lambda each: each.since)
        self.connections.discard(oldest)  # now: `connection_lost` comes only later
        oldest.transport.abort()


def max_connections() -> int:
    """Half of the process's limit of open files, at most 512."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 512 if files == resource.RLIM_INFINITY else min(512, files // 2)
