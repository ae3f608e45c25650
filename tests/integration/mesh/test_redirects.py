"""No credential follows a redirection: the address that was named gets it, or nobody (issue 14)."""

import asyncio
import os
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.cli.command import run as run_command
from tidelog.client import ChannelClient, SyncClient
from tidelog.daemon.key_file import new_key, write_key
from tidelog.daemon.uplink.broker_address import dialled
from tidelog.daemon.uplink.broker_connection import BrokerConnection
from tidelog.daemon.uplink.interface import BrokerUnreachable
from tidelog.daemon.uplink.member_directory import MemberDirectory
from tidelog.daemon.uplink.names_db import Names
from tidelog.pipeline.publish import PublishError, _put
from tidelog.sync.protocol.profiles import Model

STATUSES = (301, 302, 303, 307, 308)


class Recorder(ThreadingHTTPServer):
    """Keeps the head of every request, and sends all of them on if it is told where."""

    daemon_threads = True

    def __init__(self, status: int = 200, onward: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = status
        self.onward = onward
        self.heads: list[str] = []
        self.asked = threading.Event()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Recorder
    protocol_version = "HTTP/1.1"  # a WebSocket client reads no other

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.heads.append(f"{self.requestline}\n{self.headers}")
        self.send_response(self.server.status)
        if self.server.onward:
            self.send_header("location", self.server.onward + self.path)
        body = b'{"invite": "x", "items": [], "has_more": false, "next_after": ""}'
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.server.asked.set()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - as the library calls

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - its name there
        """Nothing is printed."""


@contextmanager
def recording(status: int = 200, onward: str = "") -> Iterator[Recorder]:
    """A running recorder."""
    server = Recorder(status, onward)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def tidelog(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with an admin token."""
    token = {"TIDELOG_ADMIN_TOKEN": "a token that is nobody else's"}
    return run_command(*arguments, env={**os.environ, **token})


COMMANDS = {
    "mesh create": ("mesh", "create", "harbour", "--url", "{url}"),
    "mesh invite": ("mesh", "invite", "harbour", "--url", "{url}"),
    "mesh settings": ("mesh", "settings", "harbour", "--url", "{url}"),
    "mesh join": (
        "mesh",
        "join",
        "{url}/mesh/harbour#secret",
        "--name",
        "a",
        "--data-dir",
        "{new}",
    ),
    "mesh topic list": ("mesh", "topic", "list", "--data-dir", "{joined}"),
    "mesh queue create": ("mesh", "queue", "create", "thumbs", "--data-dir", "{joined}"),
    "sync model-version": ("sync", "model-version", "--url", "{url}"),
    "sync set": ("sync", "model-version", "4", "--url", "{url}"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_stops_at_a_redirection(tmp_path: Path, name: str) -> None:
    """It says where it was sent and what to do; nobody there hears of it."""
    joined = tmp_path / "joined"
    joined.mkdir()
    write_key(joined / "key.json", new_key())
    for status in (302, 308):
        with recording() as elsewhere, recording(status, elsewhere.url) as named:
            settings = f'mesh = "harbour"\nbroker = "{named.url}"\n'
            (joined / "daemon.toml").write_text(settings)
            places = {"url": named.url, "joined": joined, "new": tmp_path / f"new-{status}"}
            done = tidelog(*(part.format(**places) for part in COMMANDS[name]))
            assert elsewhere.heads == []
            assert len(named.heads) == 1
            assert done.returncode == 1
            assert f"returned {status}" in done.stderr
            assert f"{elsewhere.url}/" in done.stderr
            assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("status", STATUSES)
async def test_the_list_of_members(tmp_path: Path, status: int) -> None:
    """The daemon's token for it is not sent on."""
    with recording() as elsewhere, recording(status, elsewhere.url) as named:
        names = Names(tmp_path / "names.db")
        directory = MemberDirectory(named.url, "harbour", new_key(), names)
        with pytest.raises(BrokerUnreachable):
            await directory.members()
        names.close()
        assert len(named.heads) == 1
        assert elsewhere.heads == []


@pytest.mark.parametrize("status", STATUSES)
def test_published_snapshots(status: int) -> None:
    """Neither is the admin token of `pipeline publish`."""
    with recording() as elsewhere, recording(status, elsewhere.url) as named:
        with pytest.raises(PublishError, match=f"returned {status}.*{elsewhere.url}"):
            _put(named.url, "a token", {})
        assert elsewhere.heads == []


def uplink(url: str, path: Path) -> Awaitable[object]:
    """The daemon's own connection."""
    del path

    async def members() -> dict[str, str]:
        return {}

    async def key_of(name: str) -> str | None:
        return name

    return BrokerConnection(
        url,
        "harbour",
        new_key(),
        receive=list,
        on_negotiated=lambda parameters: None,
        publish=lambda kind, data: None,
        key_of=key_of,
        members=members,
        signed_host=dialled(url),
    ).run()


def as_socket(url: str) -> str:
    """The same address for a WebSocket."""
    return url.replace("http", "ws", 1)


async def synced(url: str, path: Path) -> None:
    """A sync client."""
    model = Model.parse({}, {}, 1)
    socket = as_socket(url) + "/sync"
    async with SyncClient(
        socket, token="secret", client_id="c", store=path / "c.db", model=model
    ) as client:
        await client.sync(["p"])


async def attached(url: str, path: Path) -> None:
    """A client of channels."""
    del path
    async with (
        ChannelClient(as_socket(url), "app-key", token="secret") as client,
        client.subscribe("room"),
    ):
        pass


@pytest.mark.parametrize("client", [uplink, synced, attached])
@pytest.mark.parametrize("status", [301, 307])
async def test_sockets(
    tmp_path: Path, status: int, client: Callable[[str, Path], Awaitable[object]]
) -> None:
    """Nothing that proves who somebody is goes over a socket that was redirected."""
    with recording() as elsewhere, recording(status, as_socket(elsewhere.url)) as named:
        running = asyncio.ensure_future(client(named.url, tmp_path))
        async with asyncio.timeout(60):
            while len(named.heads) < 2:  # the second attempt: all of the first is over
                assert not running.done(), running
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert elsewhere.heads == []
