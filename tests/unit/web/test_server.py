"""What takes connections from a port, and how they end with it."""

import asyncio
import logging
import socket
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.web import server
from tidelog.web.server import PortServer, http_date


@given(st.integers(0, 4_102_444_800))
def test_times_are_written_as_http_wants_them(unix_seconds: int) -> None:
    """As the standard library writes them."""
    assert http_date(unix_seconds) == formatdate(unix_seconds, usegmt=True).encode()


class Stubborn(asyncio.Protocol):
    """A connection that does not end when it is told to."""

    def __init__(self, served: PortServer) -> None:
        self._served = served
        self.is_told = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be there."""
        self.transport = transport
        self._served.connections.add(self)

    def shutdown(self) -> None:
        """Stay."""
        self.is_told = True


@pytest.mark.parametrize("is_hurried", [True, False])
async def test_who_does_not_end_is_given_up(
    is_hurried: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After accepted work is finished, and at once if the server is told to hurry."""
    monkeypatch.setattr(server, "END_SECONDS", 3600.0 if is_hurried else 0.0)
    finished: list[set[object]] = []

    async def finish() -> None:
        finished.append(set(served.connections))
        if is_hurried:
            served.hurry()

    served = PortServer(Stubborn, set, 5, finish)
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    serving = asyncio.create_task(served.serve(listener))
    _, writer = await asyncio.open_connection(*address)
    while not served.connections:  # noqa: ASYNC110 - a set tells nobody
        await asyncio.sleep(0.005)
    [stubborn] = served.connections
    answering = asyncio.create_task(asyncio.Event().wait())
    served.tasks.add(answering)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        served.end()
        await serving
    assert finished == [{stubborn}]
    assert stubborn.is_told
    assert listener.fileno() == -1
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert bool(caplog.records) is not is_hurried
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)
    writer.close()
    stubborn.transport.close()
