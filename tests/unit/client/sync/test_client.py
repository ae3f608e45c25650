"""`SyncClient` on real sockets, with a server that says what the test wants."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from tidelog.client.backoff import Backoff
from tidelog.client.sync import changes as sync_changes
from tidelog.client.sync.blocking import BlockingSyncClient
from tidelog.client.sync.changes import Change, Changes
from tidelog.client.sync.client import ClientOffline, DraftInvalid, PartitionsRefused, SyncClient
from tidelog.client.sync.core import SyncCore
from tidelog.client.sync.messages import Json
from tidelog.sync.protocol.profiles import Model

MODEL = Model.parse({"settings": {"kind": "value", "actions": ["set"]}}, {}, 3)
QUICK = Backoff(first=0.01, most=0.02)


def value(name: str, given: object = 1) -> Json:
    """An event that sets a value."""
    return {"type": "set", "payload": {"target": f"settings.{name}", "value": given}}


class FakeServer:
    """Commits whatever it is given; each connection can be treated differently."""

    def __init__(self) -> None:
        self.url = ""
        self.log: list[Json] = []
        self.heard: list[list[Json]] = []
        """Messages of each connection."""
        self.tokens: list[str] = []
        self.refuses: Callable[[str], str | None] = lambda token: None
        """The error code to answer a token with."""
        self.limits: Json = {}
        self.drops_submits = 0
        """Submits to answer by dropping the connection, after committing."""
        self.connections: list[ServerConnection] = []
        self.forbids: set[str] = set()
        """Partitions that nobody may read."""

    async def handle(self, socket: ServerConnection) -> None:
        """Talk to one client."""
        heard: list[Json] = []
        self.heard.append(heard)
        self.connections.append(socket)
        async for frame in socket:
            message = json.loads(frame)
            heard.append(message)
            answer = getattr(self, "on_" + message["type"])
            await answer(socket, message["payload"])

    async def say(self, socket: ServerConnection, kind: str, payload: Json) -> None:
        """Send one message."""
        envelope = {"msg_id": "m", "timestamp": 0, "protocol_version": "1.0"}
        await socket.send(json.dumps({"type": kind, "payload": payload} | envelope))

    async def on_connect(self, socket: ServerConnection, payload: Json) -> None:
        """Grant or refuse a session."""
        self.tokens.append(payload["token"])
        code = self.refuses(payload["token"])
        if code is not None:
            await self.say(socket, "error", {"code": code, "message": "refused"})
            await socket.close(4401)
            return
        await self.say(socket, "connected", {"client_id": "ada", "limits": self.limits})

    async def on_sync(self, socket: ServerConnection, payload: Json) -> None:
        """Everything after the cursor, in one page."""
        denied = self.forbids.intersection(payload["partitions"])
        if denied:
            details = {"partitions": sorted(denied)}
            await self.say(socket, "error", {"code": "forbidden", "details": details})
            return
        since = payload["since_committed_id"]
        page = {
            "partitions": payload["partitions"],
            "effective_subscriptions": payload["partitions"],
            "events": [event for event in self.log if event["committed_id"] > since],
            "next_since_committed_id": len(self.log),
            "sync_to_committed_id": len(self.log),
            "has_more": False,
        }
        await self.say(socket, "sync_response", page)

    async def on_submit_events(self, socket: ServerConnection, payload: Json) -> None:
        """Commit, once per id."""
        places = {event["id"]: event["committed_id"] for event in self.log}
        results = []
        for item in payload["events"]:
            if item["id"] not in places:
                places[item["id"]] = len(self.log) + 1
                times = {"committed_id": places[item["id"]], "status_updated_at": 1}
                self.log.append(item | times | {"client_id": "ada"})
            result = {"status": "committed", "status_updated_at": 1}
            results.append(result | {"id": item["id"], "committed_id": places[item["id"]]})
        if self.drops_submits:
            self.drops_submits -= 1
            socket.transport.abort()
            return
        await self.say(socket, "submit_events_result", {"results": results})

    async def on_heartbeat(self, socket: ServerConnection, payload: Json) -> None:
        """Answer in kind."""
        await self.say(socket, "heartbeat_ack", payload)

    async def on_disconnect(self, socket: ServerConnection, payload: Json) -> None:
        """Close in order."""
        del payload
        await socket.close()


@asynccontextmanager
async def running(server: FakeServer) -> AsyncIterator[FakeServer]:
    """The server on a free port."""
    async with serve(server.handle, "127.0.0.1", 0) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        server.url = f"ws://127.0.0.1:{port}"
        yield server


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    """A running server."""
    async with running(FakeServer()) as server:
        yield server


@pytest.fixture
def client(server: FakeServer, tmp_path: Path) -> Callable[..., SyncClient]:
    """Makes clients of the server, all on one store file."""

    def make(**settings: Any) -> SyncClient:
        defaults: dict[str, Any] = {"url": server.url, "client_id": "ada", "token": "good"}
        defaults |= {"store": tmp_path / "client.db", "model": MODEL, "partitions": ["p"]}
        return SyncClient(**defaults | {"backoff": QUICK} | settings)

    return make


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that is about to happen."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - many conditions, most of them the server's
            await asyncio.sleep(0.005)


async def test_a_draft_is_committed(client: Callable[..., SyncClient], server: FakeServer) -> None:
    """Submitting does not wait for the server; `wait` does."""
    async with asyncio.timeout(60), client() as ada:
        await ada.sync()
        draft = await ada.submit(partitions=["p"], event=value("a"))
        assert draft.status == "draft"
        assert ada.view("p") == {"settings": {"a": 1}}
        row = await ada.wait(draft.id)
        assert (row.status, row.committed_id) == ("committed", 1)
        assert await ada.wait(draft.id) == row
        assert ada.pending() == []
    assert [event["id"] for event in server.log] == [draft.id]


async def test_closing_says_goodbye(client: Callable[..., SyncClient], server: FakeServer) -> None:
    """The server hears `disconnect`, and the store can be opened again."""
    async with asyncio.timeout(60):
        async with client() as ada:
            await ada.sync()
        assert server.heard[0][-1]["type"] == "disconnect"
        async with client():
            pass


async def test_everything_works_without_a_server(tmp_path: Path) -> None:
    """`url=None`: drafts are stored, shown, visible as pending, and there after a restart."""
    settings: dict[str, Any] = {"client_id": "ada", "store": tmp_path / "c.db", "model": MODEL}
    async with SyncClient(None, **settings, partitions=["p"]) as ada:
        await ada.submit_many([(["p"], value("a")), (["p"], value("b"))])
        with pytest.raises(ClientOffline):
            await ada.sync()
        with pytest.raises(DraftInvalid, match=r"event\.payload\.target"):
            await ada.submit(partitions=["p"], event={"type": "set", "payload": {}})
    async with SyncClient(None, **settings, partitions=["p"]) as ada:
        assert len(ada.pending()) == 2
        assert ada.view("p") == {"settings": {"a": 1, "b": 1}}
        assert ada.state == "disconnected"


async def test_drafts_written_offline_are_sent_later(
    client: Callable[..., SyncClient], server: FakeServer
) -> None:
    """The next connection fetches first and then submits them in their order."""
    async with client(url=None) as ada:
        drafts = [await ada.submit(partitions=["p"], event=value("a", n)) for n in range(3)]
    async with asyncio.timeout(60), client() as ada:
        await ada.wait(drafts[-1].id)
    assert [event["id"] for event in server.log] == [draft.id for draft in drafts]
    kinds = [message["type"] for message in server.heard[0]]
    assert kinds == ["connect", "sync", "submit_events", "disconnect"]


async def test_a_lost_answer_is_found_again(
    client: Callable[..., SyncClient], server: FakeServer
) -> None:
    """The connection drops between commit and answer: the next sync tells, nothing is doubled."""
    server.drops_submits = 1
    async with asyncio.timeout(60), client() as ada:
        await ada.sync()
        draft = await ada.submit(partitions=["p"], event=value("a"))
        row = await ada.wait(draft.id)
    assert row.committed_id == 1
    assert len(server.log) == 1
    assert len(server.heard) == 2


async def test_a_server_that_is_away_is_tried_again(tmp_path: Path) -> None:
    """Connecting goes on, with growing waits."""
    waits: list[int] = []

    class Noted(Backoff, frozen=True):
        def delay(self, attempt: int) -> float:
            waits.append(attempt)
            return 0.01

    settings: dict[str, Any] = {"client_id": "ada", "store": tmp_path / "c.db", "model": MODEL}
    async with asyncio.timeout(60):
        nobody = "ws://127.0.0.1:1"
        async with SyncClient(nobody, **settings, partitions=["p"], backoff=Noted()) as ada:
            await until(lambda: len(waits) > 3)
            assert ada.state == "disconnected"
    assert waits[:4] == [0, 1, 2, 3]


def test_waits_double_up_to_a_limit() -> None:
    """0.5 s, doubled to 30 s, with 20 % jitter either way."""
    low = Backoff(random=lambda: 0.0)
    high = Backoff(random=lambda: 1.0)
    assert [low.delay(attempt) for attempt in (0, 1, 2)] == pytest.approx([0.4, 0.8, 1.6])
    assert [high.delay(attempt) for attempt in (0, 1)] == pytest.approx([0.6, 1.2])
    assert high.delay(6) == pytest.approx(36.0)
    assert low.delay(10_000) == pytest.approx(24.0)


async def test_a_refused_token_is_not_tried_again(
    client: Callable[..., SyncClient], server: FakeServer
) -> None:
    """After `auth_failed` the client waits for the application."""
    server.refuses = lambda token: "auth_failed"
    async with asyncio.timeout(60), client(token="bad") as ada:
        with pytest.raises(ClientOffline, match="auth_failed"):
            await ada.sync()
        assert ada.halted == "auth_failed"
        await asyncio.sleep(0.1)
        assert server.tokens == ["bad"]
        server.refuses = lambda token: None
        ada.reconnect()
        await until(lambda: ada.state == "active")


async def test_a_fresh_token_is_tried_once(
    client: Callable[..., SyncClient], server: FakeServer
) -> None:
    """A callable may bring a new token: one retry, at once; a second refusal is final."""
    tokens = iter(f"t{number}" for number in range(10))

    async def token() -> str:
        return next(tokens)

    server.refuses = lambda token: "auth_failed" if token in ("t0", "t2", "t3") else None
    async with asyncio.timeout(60), client(token=token) as ada:
        await ada.sync()
        assert server.tokens == ["t0", "t1"]
        await server.say(
            server.connections[-1], "error", {"code": "auth_failed", "message": "expired"}
        )
        await until(lambda: ada.halted is not None and ada.state == "disconnected")
        await asyncio.sleep(0.05)
        assert server.tokens == ["t0", "t1", "t2"]


async def test_a_token_source_that_fails_is_asked_again(
    client: Callable[..., SyncClient], server: FakeServer
) -> None:
    """Its error is told, never its text: that could be a secret."""
    calls = 0

    async def token() -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("secret")
        return "good"

    async with asyncio.timeout(60), client(token=token) as ada:
        changes = ada.changes()
        await ada.sync()
        errors = [change async for change in _first(changes, "error")]
    assert errors[0].data["code"] == "token_unavailable"
    assert "secret" not in str(errors)


async def _first(changes: Changes, name: str) -> AsyncIterator[Change]:
    """Changes up to and including the first of a name."""
    async for change in changes:
        if change.name == name:
            yield change
            return


async def test_an_unsupported_profile_halts(
    client: Callable[..., SyncClient], server: FakeServer
) -> None:
    """`profile_unsupported` needs another client, not another attempt."""
    server.refuses = lambda token: "profile_unsupported"
    async with asyncio.timeout(60), client() as ada:
        with pytest.raises(ClientOffline, match="profile_unsupported"):
            await ada.sync()
        assert len(server.tokens) == 1


async def test_heartbeats_keep_the_advertised_time(
    client: Callable[..., SyncClient], server: FakeServer
) -> None:
    """One per third of the timeout."""
    server.limits = {"heartbeat_timeout_ms": 1500}
    async with asyncio.timeout(60), client() as ada:
        await ada.sync()
        await until(lambda: sum(m["type"] == "heartbeat" for m in server.heard[0]) >= 3)
        assert len(server.heard) == 1


async def test_a_silent_server_is_left(
    client: Callable[..., SyncClient], server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer to heartbeats for the whole timeout: the connection is none any more."""

    async def nothing(socket: ServerConnection, payload: Json) -> None:
        del socket, payload

    monkeypatch.setattr(server, "on_heartbeat", nothing, raising=False)
    server.limits = {"heartbeat_timeout_ms": 60}
    async with client():
        await until(lambda: len(server.heard) >= 2)


async def test_nonsense_is_answered_by_reconnecting(
    client: Callable[..., SyncClient], server: FakeServer
) -> None:
    """Text that is no JSON, or JSON that is no message, ends the connection and not the client."""
    async with asyncio.timeout(60), client() as ada:
        for number, text in enumerate(("{", "[]", '{"type":"error"}'), start=1):
            await ada.sync()
            assert len(server.heard) == number
            await server.connections[-1].send(text)
            await until(lambda: ada.state != "active")
        await ada.sync()


async def test_broadcasts_are_changes(
    client: Callable[..., SyncClient], server: FakeServer
) -> None:
    """What others commit arrives as a change and in the view."""
    async with asyncio.timeout(60), client() as ada:
        await ada.sync()
        changes = ada.changes()
        commit = {"id": "e", "client_id": "bo", "partitions": ["p"], "event": value("b")}
        await server.say(
            server.connections[0],
            "event_broadcast",
            commit | {"committed_id": 1, "status_updated_at": 1},
        )
        [change] = [change async for change in _first(changes, "broadcast")]
        assert change.partitions == ("p",)
        assert change.data["event"] == value("b")
        assert ada.view("p") == {"settings": {"b": 1}}
        assert ada.row("e").client_id == "bo"


async def test_a_slow_consumer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: the oldest changes go, and how many is said first."""
    monkeypatch.setattr(sync_changes, "MAX_WAITING", 2)
    changes = Changes()
    for number in range(5):
        changes.add(Change("broadcast", (), {"number": number}))
    changes.end()
    seen = [(change.name, change.data) async for change in changes]
    assert seen == [
        ("missed", {"count": 3}),
        ("broadcast", {"number": 3}),
        ("broadcast", {"number": 4}),
    ]


async def test_changes_end_with_the_client(client: Callable[..., SyncClient]) -> None:
    """`async for` stops, and whoever waits is told."""
    async with asyncio.timeout(60):
        async with client(url=None) as ada:
            changes = ada.changes()
            draft = await ada.submit(partitions=["p"], event=value("a"))
            waiting = asyncio.create_task(ada.wait(draft.id))
            await asyncio.sleep(0)
        assert [change async for change in changes] == []
        with pytest.raises(ClientOffline):
            await waiting
        with pytest.raises(ClientOffline):
            ada.view("p")


async def test_partitions_can_be_added_and_left(
    client: Callable[..., SyncClient], server: FakeServer
) -> None:
    """Adding fetches and subscribes to all; leaving subscribes to the rest."""
    async with asyncio.timeout(60), client() as ada:
        await ada.sync()
        await ada.sync(["q"])
        assert ada.partitions == ("p", "q")
        ada.leave(["p"])
        await ada.sync()
        syncs = [m["payload"] for m in server.heard[0] if m["type"] == "sync"]
        assert [payload.get("subscription_partitions") for payload in syncs[:3]] == [
            ["p"],
            ["p", "q"],
            ["q"],
        ]


async def test_scripts_can_do_without_a_loop(server: FakeServer, tmp_path: Path) -> None:
    """The blocking twin: the same client in a thread."""

    def script() -> tuple[str, Json, list[str]]:
        with BlockingSyncClient(
            server.url,
            client_id="ada",
            token="good",
            store=tmp_path / "client.db",
            model=MODEL,
            partitions=["p"],
        ) as ada:
            ada.sync(timeout=5)
            draft = ada.submit(partitions=["p"], event=value("a"))
            status = ada.wait(draft.id, timeout=5).status
            assert ada.pending() == []
            seen = ada.view("p")
            ada.reconnect()
            ada.sync(timeout=5)
            assert ada.wipe("p") == 1
            assert ada.view("p") != seen
            return status, seen, [change.name for change in ada.changes(timeout=0.01)]

    assert await asyncio.to_thread(script) == ("committed", {"settings": {"a": 1}}, [])


def test_the_blocking_client_reports_a_failed_start(tmp_path: Path) -> None:
    """Its thread is gone when the store cannot be opened."""
    (tmp_path / "client.db").mkdir()
    client = BlockingSyncClient(None, client_id="a", store=tmp_path / "client.db", model=MODEL)
    with pytest.raises(Exception, match="cannot be opened"), client:
        pass
    with pytest.raises(RuntimeError, match="not open"):
        client.pending()


@pytest.mark.parametrize("ticks", range(6))
async def test_closing_is_not_lost_in_a_wake_up(
    client: Callable[..., SyncClient], server: FakeServer, ticks: int
) -> None:
    """A cancellation that meets an arriving message, at any step of it, still ends the link."""
    del server
    async with asyncio.timeout(60), client() as ada:
        await ada.sync()
        await asyncio.sleep(0.02)
        assert ada._link is not None
        assert ada._task is not None
        ada._link.wake()
        for _ in range(ticks):
            await asyncio.sleep(0)
        ada._task.cancel()
        done, _ = await asyncio.wait([ada._task], timeout=1)
        was_lost = not done
        ada._task.cancel()
    assert not was_lost


# Success is said only of what was fetched: 17.9


@pytest.mark.parametrize("names", [[""], ["q", "x" * 129], "tasks", [7], ["\ud800"], ["q", None]])
async def test_a_sync_of_invalid_names_raises(
    client: Callable[..., SyncClient], server: FakeServer, names: Any
) -> None:
    """Nothing is asked for or followed, and what was followed is fetched as before."""
    async with asyncio.timeout(60), client() as ada:
        await ada.sync()
        with pytest.raises(PartitionsRefused):
            await ada.sync(names)
        assert ada.partitions == ("p",)
        server.log = [commit_of(1, value("a"))]
        await ada.sync()
        assert ada.view("p") == {"settings": {"a": 1}}
        kinds = [message["type"] for message in server.heard[0]]
        assert kinds == ["connect", "sync", "sync"]
    with pytest.raises(PartitionsRefused):
        client(partitions=names)


async def test_a_sync_of_a_forbidden_partition_raises(
    client: Callable[..., SyncClient], server: FakeServer
) -> None:
    """It names what was not fetched; the rest is complete, and what is left raises no more."""
    server.forbids = {"secret"}
    server.log = [commit_of(1, value("a"))]
    async with asyncio.timeout(60), client() as ada:
        with pytest.raises(PartitionsRefused, match="secret") as raised:
            await ada.sync(["secret"])
        assert raised.value.partitions == ("secret",)
        assert ada.view("p") == {"settings": {"a": 1}}
        with pytest.raises(PartitionsRefused, match="secret"):
            await ada.sync()
        ada.leave(["secret"])
        await ada.sync()
        server.forbids = set()
        await ada.sync(["secret"])
    async with asyncio.timeout(60), client(partitions=["p", "secret"]) as ada:
        server.forbids = {"secret"}
        with pytest.raises(PartitionsRefused, match="secret"):
            await ada.sync()


async def test_a_sync_that_the_server_cannot_read_raises(
    client: Callable[..., SyncClient], server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason: no page, no success."""

    async def refuse(socket: ServerConnection, payload: Json) -> None:
        del payload
        await server.say(socket, "error", {"code": "bad_request", "message": "too long"})

    monkeypatch.setattr(server, "on_sync", refuse, raising=False)
    async with asyncio.timeout(60), client() as ada:
        changes = ada.changes()
        with pytest.raises(PartitionsRefused, match="p"):
            await ada.sync()
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                async for change in changes:
                    assert change.name != "status_changed" or not change.data["synced"]


@pytest.mark.parametrize("code", ["auth_failed", "profile_unsupported"])
async def test_waiting_ends_when_the_client_halts(
    client: Callable[..., SyncClient], server: FakeServer, code: str
) -> None:
    """Nobody will decide the draft until the application acts; it stays, and can be waited for."""
    server.refuses = lambda token: code
    async with asyncio.timeout(60), client() as ada:
        draft = await ada.submit(partitions=["p"], event=value("a"))
        with pytest.raises(ClientOffline, match=code):
            await ada.wait(draft.id)
        with pytest.raises(ClientOffline, match=code):
            await ada.wait(draft.id)
        assert [each.id for each in ada.pending()] == [draft.id]
        server.refuses = lambda token: None
        ada.reconnect()
        assert (await ada.wait(draft.id)).status == "committed"


async def test_a_wait_for_the_next_attempt_can_be_ended(
    client: Callable[..., SyncClient], server: FakeServer
) -> None:
    """The application knows that the network is back; while connected there is nothing to do."""
    async with asyncio.timeout(10), client(backoff=Backoff(first=3600, most=3600)) as ada:
        await ada.sync()
        ada.reconnect()
        for number in (2, 3):
            changes = ada.changes()
            server.connections[-1].transport.abort()
            async for change in changes:
                if change.name == "status_changed" and change.data["state"] == "disconnected":
                    break
            ada.reconnect()
            await ada.sync()
            assert len(server.connections) == number


async def test_two_devices_under_one_name_are_told(
    client: Callable[..., SyncClient], server: FakeServer
) -> None:
    """A connection that another one displaces again and again is no accident."""

    async def displace(socket: ServerConnection, payload: Json) -> None:
        del payload
        await socket.close(4409)

    server.on_sync = displace  # type: ignore[method-assign]
    async with asyncio.timeout(10), client() as ada:
        async for change in ada.changes():
            if change.name == "error":
                assert change.data["code"] == "superseded"
                assert "'ada'" in change.data["message"]
                break
        assert len(server.connections) == 3


async def test_a_draft_can_be_withdrawn(
    client: Callable[..., SyncClient], server: FakeServer
) -> None:
    """Until it is on its way: it is not shown, not submitted, and nobody waits for it."""
    async with client(url=None) as ada:
        for name in ("a", "b"):
            await ada.submit(partitions=["p"], event=value(name), id=name)
        assert ada.view("p") == {"settings": {"a": 1, "b": 1}}
        changes = ada.changes()
        waiting = asyncio.create_task(ada.wait("a"))
        await asyncio.sleep(0)
        assert ada.withdraw("a")
        with pytest.raises(KeyError):
            await waiting
        assert (await anext(changes)).name == "withdrawn"
        assert ada.view("p") == {"settings": {"b": 1}}
        with pytest.raises(KeyError):
            ada.withdraw("a")
    async with asyncio.timeout(10), client(url=server.url) as ada:
        await ada.wait("b")
        assert not ada.withdraw("b")
    assert [event["id"] for event in server.log] == ["b"]


def contents(folder: Path) -> bytes:
    """The client's file and what belongs to it."""
    return b"".join(path.read_bytes() for path in folder.glob("client.db*"))


async def test_a_partition_can_be_wiped(
    client: Callable[..., SyncClient], server: FakeServer, tmp_path: Path
) -> None:
    """Nothing of it is left in the file but drafts and what another partition has too."""
    shared = commit_of(3, value("both", "shared-text")) | {"partitions": ["p", "q"]}
    other = commit_of(2, value("other", "other-text")) | {"partitions": ["q"]}
    server.log = [commit_of(1, value("gone", "secret-text")), other, shared]
    async with asyncio.timeout(10), client(partitions=["p", "q"]) as ada:
        await ada.sync()
        ada.save_snapshot("p")
        assert await ada.wipe("p") == 1
        assert ada.partitions == ("q",)
        assert ada.view("q") == {"settings": {"other": "other-text", "both": "shared-text"}}
        assert ada._core.last_committed_id("p") == 0
        assert [row.id for row in ada._core.store.rows()] == ["e2", "e3"]
        stored = contents(tmp_path)
        assert b"other-text" in stored
        assert b"secret-text" not in stored


# Failures of the application and of its disk: 17.10

NOTES = Model.parse({}, {"note": True}, 3)


def noted(data: object) -> Json:
    """An event of the event profile."""
    return {"type": "event", "payload": {"schema": "note", "data": data}}


def gather(state: Json, event: Json) -> Json:
    """Collect what was noted; text of the wrong kind is more than this can bear."""
    data = event["payload"]["data"]
    if data == "poison":
        raise KeyError("title")
    if data == "nothing":
        return None  # type: ignore[return-value] # the mistake it is about
    return {"notes": [*state.get("notes", []), data]}


def commit_of(place: int, event: Json) -> Json:
    """What somebody else committed."""
    return {
        "id": f"e{place}",
        "client_id": "bo",
        "partitions": ["p"],
        "event": event,
        "committed_id": place,
        "status_updated_at": 1,
    }


async def errors_of(changes: Changes, code: str) -> list[Json]:
    """The errors of one code that have been told by now."""
    seen = []
    with suppress(TimeoutError):
        while True:
            async with asyncio.timeout(0.05):
                change = await anext(changes)
            if change.name == "error" and change.data["code"] == code:
                seen.append(change.data)
    return seen


@pytest.mark.parametrize("poison", ["poison", "nothing"])
async def test_an_exception_in_the_reducer_skips_the_event(
    client: Callable[..., SyncClient],
    server: FakeServer,
    caplog: pytest.LogCaptureFixture,
    poison: str,
) -> None:
    """It is logged and told, the other events count, and the client goes on: also next time."""
    server.log = [commit_of(1, noted("a")), commit_of(2, noted(poison)), commit_of(3, noted("b"))]
    settings: dict[str, Any] = {"model": NOTES, "profile": "canonical", "reduce": gather}
    for start in (1, 2):
        caplog.clear()
        async with asyncio.timeout(10), client(**settings) as ada:
            changes = ada.changes()
            await ada.sync()
            assert ada.view("p") == {"notes": [*(["a", "b"]), *range(1, start)]}
            draft = await ada.submit(partitions=["p"], event=noted(start))
            assert (await ada.wait(draft.id)).status == "committed"
            assert ada.view("p") == {"notes": ["a", "b", *range(1, start + 1)]}
            [told] = await errors_of(changes, "reducer_failed")
            assert told["details"] == {"partition": "p", "committed_id": 2, "count": 1}
            assert ada.state == "active"
        assert caplog.text.count("reducer_failed") == 1


async def test_a_reducer_that_is_repaired_sees_what_it_missed(
    client: Callable[..., SyncClient], server: FakeServer
) -> None:
    """A state that lacks an event is never saved in its place."""
    server.log = [commit_of(1, noted("a")), commit_of(2, noted("poison"))]
    settings: dict[str, Any] = {"model": NOTES, "profile": "canonical"}
    async with asyncio.timeout(10), client(**settings, reduce=gather) as ada:
        await ada.sync()
        assert ada.save_snapshot("p") is None
        ada.prune()

    def repaired(state: Json, event: Json) -> Json:
        return {"notes": [*state.get("notes", []), event["payload"]["data"]]}

    async with asyncio.timeout(10), client(**settings, reduce=repaired) as ada:
        await ada.sync()
        assert ada.view("p") == {"notes": ["a", "poison"]}
        assert ada.save_snapshot("p") == 2


async def test_a_submit_that_raises_has_stored_nothing(
    client: Callable[..., SyncClient], server: FakeServer
) -> None:
    """The reducer cannot bear the draft: the application is told, and the draft is not kept."""
    settings: dict[str, Any] = {"model": NOTES, "profile": "canonical", "reduce": gather}
    async with asyncio.timeout(10), client(**settings) as ada:
        await ada.sync()
        with pytest.raises(DraftInvalid, match="KeyError"):
            await ada.submit(partitions=["p"], event=noted("poison"), id="bad")
        assert ada.pending() == []
        with pytest.raises(KeyError):
            ada.row("bad")
        draft = await ada.submit(partitions=["p"], event=noted("good"))
        await ada.wait(draft.id)
        assert ada.view("p") == {"notes": ["good"]}
    assert [event["id"] for event in server.log] == [draft.id]


async def test_a_draft_that_the_reducer_cannot_bear_any_more_is_told(
    client: Callable[..., SyncClient],
) -> None:
    """It was stored by another version of the application: hidden from the view, and said so."""
    settings: dict[str, Any] = {"model": NOTES, "profile": "canonical"}
    async with client(url=None, **settings) as ada:
        await ada.submit(partitions=["p"], event=noted("poison"), id="bad")
        await ada.submit(partitions=["p"], event=noted("good"))
    async with client(url=None, **settings, reduce=gather) as ada:
        changes = ada.changes()
        assert ada.view("p") == ada.view("p") == {"notes": ["good"]}
        [told] = await errors_of(changes, "reducer_failed")
        assert told["details"] == {"partition": "p", "id": "bad", "count": 1}
        assert ada.pending()[0].id == "bad"


def overwrite(path: Path, wanted: bytes, instead: bytes) -> None:
    """Damage the content of a file where `wanted` is written, as a failing disk does."""
    content = path.read_bytes()
    assert wanted in content
    assert len(wanted) == len(instead)
    path.write_bytes(content.replace(wanted, instead))


async def test_a_damaged_row_is_skipped_and_fetched_again(
    client: Callable[..., SyncClient], server: FakeServer, tmp_path: Path
) -> None:
    """What SQLite cannot notice: text that is no JSON any more, in one event of the log."""
    server.log = [commit_of(place, value(f"v{place}")) for place in (1, 2, 3)]
    async with asyncio.timeout(10), client() as ada:
        await ada.sync()
    overwrite(
        tmp_path / "client.db", b'{"target":"settings.v2"', b"\xff" + b'"target":"settings.v2"'
    )
    async with client(url=None) as ada:
        changes = ada.changes()
        assert ada.view("p") == {"settings": {"v1": 1, "v3": 1}}
        [told] = await errors_of(changes, "store_damaged")
        assert told["details"] == {"partition": "p", "committed_id": 2, "count": 1}
    async with asyncio.timeout(10), client() as ada:
        await ada.sync()
        assert ada.view("p") == {"settings": {"v1": 1, "v2": 1, "v3": 1}}
        draft = await ada.submit(partitions=["p"], event=value("mine"))
        assert (await ada.wait(draft.id)).status == "committed"


async def test_damaged_partitions_of_a_row_hide_no_other_event(
    client: Callable[..., SyncClient], server: FakeServer, tmp_path: Path
) -> None:
    """SQLite's own functions refuse such a row; where it belongs is known by the index too."""
    server.log = [commit_of(place, value(f"v{place}")) for place in (1, 2, 3)]
    async with asyncio.timeout(10), client() as ada:
        await ada.sync()
        draft = await ada.submit(partitions=["p"], event=value("mine"))
        await ada.wait(draft.id)
    with closing(sqlite3.connect(tmp_path / "client.db")) as file, file:
        file.execute("UPDATE events SET partitions = '[\"p\"' WHERE committed_id = 2")
    async with client(url=None) as ada:
        assert ada.view("p") == {"settings": {"v1": 1, "v2": 1, "v3": 1, "mine": 1}}
    async with asyncio.timeout(10), client() as ada:
        await ada.sync()
        assert ada.view("p") == {"settings": {"v1": 1, "v2": 1, "v3": 1, "mine": 1}}


def damage_pages(path: Path, wanted: bytes) -> None:
    """Overwrite the whole of every page that holds `wanted` but the first."""
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[16:18], "big")
    found = [
        start
        for start in range(size, len(content), size)
        if wanted in content[start : start + size]
    ]
    assert found
    for start in found:
        content[start : start + size] = b"\xa5" * size
    path.write_bytes(content)


def fill(server: FakeServer, count: int) -> None:
    """A log of more pages than one."""
    server.log = [commit_of(place, value(f"v{place}", "x" * 400)) for place in range(1, count + 1)]


async def test_a_damaged_page_does_not_end_the_client(
    client: Callable[..., SyncClient],
    server: FakeServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Found while it runs: told, the file is replaced, the drafts that can be read are kept."""
    fill(server, 200)
    path = tmp_path / "client.db"
    async with asyncio.timeout(20), client() as ada:
        await ada.sync()
    async with asyncio.timeout(20), client(url=None) as ada:
        await ada.submit(partitions=["p"], event=value("draft"), id="d1")
    async with asyncio.timeout(20), client(url=server.url) as ada:
        changes = ada.changes()
        ada._core.store._file.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        damage_pages(path, b"settings.v77")
        ada._core.store._file.connection.execute("PRAGMA cache_size = 0")
        row = await ada.wait("d1")
        assert row.status == "committed"
        await ada.sync()
        assert ada.view("p")["settings"].keys() == {
            *(f"v{place}" for place in range(1, 201)),
            "draft",
        }
        assert await errors_of(changes, "store_damaged")
    assert "store_damaged" in caplog.text
    async with asyncio.timeout(20), client() as ada:
        await ada.sync()
        assert len(ada.view("p")["settings"]) == 201


async def test_a_damaged_page_hides_its_own_events_only(
    client: Callable[..., SyncClient], server: FakeServer, tmp_path: Path
) -> None:
    """Without a server there is nothing to fetch: what can be read is shown, and the rest told."""
    fill(server, 200)
    async with asyncio.timeout(20), client() as ada:
        await ada.sync()
    async with client(url=None) as ada:
        changes = ada.changes()
        ada._core.store._file.connection.execute("PRAGMA cache_size = 0")
        damage_pages(tmp_path / "client.db", b"settings.v77")
        shown = ada.view("p")["settings"]
        assert {"v1", "v200"} < shown.keys()
        assert "v77" not in shown
        [told] = await errors_of(changes, "store_damaged")
        assert told["details"]["count"] == 200 - len(shown)
        draft = await ada.submit(partitions=["p"], event=value("mine"))
        assert ada.view("p")["settings"].keys() == {*shown, "mine"}
        assert ada.pending() == [draft]


async def test_a_damaged_file_is_replaced_at_the_start(
    client: Callable[..., SyncClient],
    server: FakeServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What the check at the start finds: the drafts are taken over, the old file is kept aside."""
    fill(server, 200)
    path = tmp_path / "client.db"
    async with asyncio.timeout(20), client() as ada:
        await ada.sync()
    async with client(url=None) as ada:
        await ada.submit(partitions=["p"], event=value("draft"), id="d1")
    damage_pages(path, b"settings.v77")
    damaged = path.read_bytes()
    async with asyncio.timeout(20), client() as ada:
        changes = ada.changes()
        assert [draft.id for draft in ada.pending()] == ["d1"]
        assert (await ada.wait("d1")).status == "committed"
        assert len(ada.view("p")["settings"]) == 201
        [told] = await errors_of(changes, "store_damaged")
    [aside] = await asyncio.to_thread(lambda: list(tmp_path.glob("*.damaged-*")))
    assert aside.name in told["message"]
    assert aside.read_bytes() == damaged
    assert "store_damaged" in caplog.text


async def test_whatever_goes_wrong_in_the_client_is_told_and_survived(
    client: Callable[..., SyncClient],
    server: FakeServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mistake of ours costs the connection, never the client."""
    real = SyncCore.receive_all
    failures = iter([RuntimeError("a mistake of ours")])

    def sometimes(core: SyncCore, messages: Any) -> None:
        for failure in failures:
            raise failure
        real(core, messages)

    monkeypatch.setattr(SyncCore, "receive_all", sometimes)
    async with asyncio.timeout(10), client() as ada:
        changes = ada.changes()
        await ada.sync()
        [told] = await errors_of(changes, "client_failed")
        assert "RuntimeError" in told["message"]
    assert "a mistake of ours" in caplog.text
