"""`MeshClient` against the daemon's own HTTP server with scripted answers."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from tidelog.client import DaemonUnavailable, MeshClient, MeshRefused
from tidelog.client.backoff import Backoff
from tidelog.client.mesh.http import Endpoint
from tidelog.daemon.ipc.events import Port, encode
from tidelog.daemon.ipc.http import Request, Response, Stream, answer, refuse
from tidelog.daemon.ipc.server import IpcServer
from tidelog.daemon.ipc.token_file import TokenFile
from tidelog.daemon.metrics import DaemonMetrics
from tidelog.daemon.settings import IpcSettings

QUEUED = {"client_message_id": "k", "status": "queued"}
QUICK = Backoff(first=0.01, most=0.02)


class Script:
    """Answers in turn; the last one stays."""

    def __init__(self, *answers: Response | Stream) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []

    async def respond(self, request: Request) -> Response | Stream:
        """The next answer."""
        self.requests.append(request)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a Unix socket's may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="tdl-") as name:
        yield Path(name)


@asynccontextmanager
async def serving(folder: Path, *answers: Response | Stream) -> AsyncIterator[tuple[Script, int]]:
    """A daemon's server on its socket and on a port."""
    script = Script(*answers)
    token = TokenFile(folder / "token", lambda: 0.0)
    server = IpcServer(script.respond, IpcSettings(), DaemonMetrics(), token)
    await server.start_unix(folder / "daemon.sock")
    try:
        yield script, await server.start_tcp()
    finally:
        await server.close(0)
        await asyncio.sleep(0.01)  # connections that end are told so in the next turns of the loop


async def test_a_port_is_opened_with_the_token(folder: Path) -> None:
    """The token is read from the daemon's directory."""
    async with serving(folder, answer(200, {"connected": True})) as (script, port):
        assert await MeshClient(folder, port=port).health() == {"connected": True}
        assert script.requests[0].transport == "tcp"
        with pytest.raises(MeshRefused, match="401"):
            await _with_token(port, "wrong").health()


def _with_token(port: int, token: str) -> MeshClient:
    client = MeshClient("/nowhere")
    client._endpoint = Endpoint(port=port, token=token)
    return client


async def test_a_busy_daemon_is_asked_again_under_the_same_key(folder: Path) -> None:
    """A key that was made for a call stays the same through its repetitions."""
    busy = refuse(503, "outbox_busy", "later", ("retry-after", "0"))
    limited = refuse(429, "daemon_busy", "later")
    async with serving(folder, busy, limited, answer(202, QUEUED)) as (script, _):
        sent = await MeshClient(folder, backoff=QUICK).send("topic:t", "x")
    assert sent.status == "queued"
    assert len(script.requests) == 3
    assert len({request.body for request in script.requests}) == 1


async def test_patience_ends(folder: Path) -> None:
    """What the daemon said last is raised."""
    async with serving(folder, refuse(503, "outbox_busy", "later")):
        with pytest.raises(MeshRefused, match="outbox_busy"):
            await MeshClient(folder, backoff=QUICK, patience_s=0.05).send("topic:t", "x")


async def test_a_refusal_is_not_repeated(folder: Path) -> None:
    """Asking again would change nothing."""
    async with serving(folder, refuse(507, "insufficient_storage", "full")) as (script, _):
        with pytest.raises(MeshRefused) as refused:
            await MeshClient(folder, backoff=QUICK).send("topic:t", "x")
    assert (refused.value.status, refused.value.error) == (507, "insufficient_storage")
    assert len(script.requests) == 1


async def test_a_broken_stream_goes_on_behind_the_last_message(folder: Path) -> None:
    """Each connection says what was seen; comments and other events are passed over."""

    def stream(*numbers: int) -> Stream:
        async def serve(port: Port) -> None:
            port.send(b": hello\n\n" + encode("peer_join", {"name": "x"}, None))
            for number in numbers:
                port.send(
                    encode("message", {"body": str(number), "cursor": f"c{number}"}, f"c{number}")
                )

        return Stream(serve)

    bodies = []
    async with (
        serving(folder, stream(1, 2), stream(3)) as (script, _),
        aclosing(MeshClient(folder, backoff=QUICK).inbox("c0")) as inbox,
        asyncio.timeout(5),
    ):
        async for message in inbox:
            bodies.append(message.body)
            if len(bodies) == 3:
                break
    assert bodies == ["1", "2", "3"]
    assert [request.values("last-event-id") for request in script.requests] == [["c0"], ["c2"]]


async def test_a_stream_without_a_daemon_ends_with_a_remedy(folder: Path) -> None:
    """After some patience."""
    with pytest.raises(DaemonUnavailable, match="tidelog daemon up"):
        async for _ in MeshClient(folder, backoff=QUICK, patience_s=0.03).inbox():
            pass


async def test_a_header_cannot_be_smuggled(folder: Path) -> None:
    """A cursor from elsewhere must not become a second header."""
    async with serving(folder, answer(200, {})):
        with pytest.raises(ValueError, match="line break"):
            async for _ in Endpoint(socket=folder / "daemon.sock").events("x\r\nevil: 1"):
                pass
