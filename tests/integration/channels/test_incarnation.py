"""A log that was restored is another history: nobody is given it as the rest of the lost one."""

import asyncio
import hmac
import json
import secrets
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from support.channels.events import heard
from support.channels.peer import APP, V2_QUERY, Api, Peer, handshake, ok, refused, until
from support.channels.process import channels_process, sdk_client, subscribed
from support.cli.command import tidelog
from support.web.balancer import Balancer
from tidelog.base.sql import sqlitefile
from tidelog.client import ChannelClient
from tidelog.client.backoff import Backoff
from tidelog.config.schema import SCHEMA
from tidelog.testing.postgresql import create_database
from tidelog.testing.process import ServerProcess

CHANNEL = "room"
KEPT, SEEN, NEW = 3, 8, 7
"""The backup is of position 3; clients saw 8; then 7 more are written after the 3: up to 10."""


class Served:
    """A server process as a test talks to it."""

    def __init__(self, server: ServerProcess, api: Api) -> None:
        self.api = api
        self._url = f"ws://127.0.0.1:{server.port}/app/{APP.key}?{V2_QUERY}"

    async def publish(self, count: int, text: str, channel: str = CHANNEL) -> None:
        """Publish so many messages, each after the other."""
        for number in range(count):
            await self.api.publish(channel, f"{text} {number}")

    @asynccontextmanager
    async def peer(self) -> AsyncIterator[Peer]:
        """A V2 socket after its handshake."""
        async with connect(
            self._url, compression=None, ping_interval=None, close_timeout=2
        ) as socket:
            peer = Peer(socket, APP, 2)
            await handshake(peer)
            yield peer

    async def resume(self, given: dict[str, Any], channel: str = CHANNEL) -> list[dict[str, Any]]:
        """Everything that answers a resume from this position, `resume_success` last."""
        async with self.peer() as peer:
            await peer.resume(**{channel: given})
            frames = [await peer.receive()]
            while frames[-1]["event"] != "sockudo:resume_success":
                frames.append(await peer.receive())
            return frames


@asynccontextmanager
async def served(directory: Path, store: str, port: int = 0) -> AsyncIterator[Served]:
    """A server process on `store` for the length of the block; it ends in good order."""
    with channels_process(directory, store) as server:
        server.port = port
        await asyncio.to_thread(server.start)
        async with httpx.AsyncClient(timeout=60, trust_env=False, verify=False) as client:
            yield Served(server, Api(server.url, client))
        assert await asyncio.to_thread(server.terminate) == 0


def position(frame: dict[str, Any]) -> dict[str, Any]:
    """What a client remembers of a frame."""
    return {
        "serial": frame["serial"],
        "stream_id": frame["stream_id"],
        "last_message_id": frame["message_id"],
    }


def failure(frames: list[dict[str, Any]]) -> tuple[str, str]:
    """Code and reason of a resume that failed, and of which nothing was sent."""
    [failed, success] = frames
    assert failed["event"] == "sockudo:resume_failed"
    data, answer = json.loads(failed["data"]), json.loads(success["data"])
    assert answer["recovered"] == []
    assert [each["code"] for each in answer["failed"]] == [data["code"]]
    assert data["current_stream_id"] is None, "told to subscribers only (channels D20)"
    return data["code"], data["reason"]


def serials(frames: list[dict[str, Any]]) -> list[int]:
    """The serials of a resume that went well."""
    *replayed, success = frames
    answer = json.loads(success["data"])
    assert answer["failed"] == []
    assert [each["replayed"] for each in answer["recovered"]] == [len(replayed)]
    return [frame["serial"] for frame in replayed]


@pytest.fixture
def restore_location(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Where the backup is restored to."""
    if engine == "sqlite":
        return str(tmp_path / "restored" / "tidelog.db")
    return asyncio.run(create_database(request.getfixturevalue("postgresql_server")))


class Lost:
    """What clients remember of the history that was lost."""

    frames: list[dict[str, Any]]
    """Of the channel, up to serial 8."""
    succeeded: dict[str, Any]
    """The `subscription_succeeded` at serial 8."""
    old_succeeded: dict[str, Any]
    """The `subscription_succeeded` at serial 3."""
    cursor: str
    """Of the second page of history."""
    backup: Path


async def lose(directory: Path, store: str) -> Lost:
    """A log of 8 messages whose backup has 3 of them."""
    lost = Lost()
    lost.backup = directory / "backup.db"
    async with served(directory, store) as server, server.peer() as peer:
        await server.publish(KEPT, "kept")
        lost.old_succeeded = await peer.subscribe(CHANNEL)
        made = await tidelog("backup", str(lost.backup), "--store", store)
        assert made["head"] == KEPT
        await server.publish(SEEN - KEPT, "lost")
        async with server.peer() as late:
            lost.succeeded = await late.subscribe(CHANNEL)
        start = {"serial": 0, "stream_id": lost.succeeded["stream_id"]}
        lost.frames = (await server.resume(start))[:-1]
        page = await server.api.history(CHANNEL, limit=2, direction="oldest_first")
        lost.cursor = page["next_cursor"]
    assert [frame["serial"] for frame in lost.frames] == list(range(1, SEEN + 1))
    return lost


async def test_a_restored_log_is_not_the_rest_of_the_lost_one(
    tmp_path: Path, store_location: str, restore_location: str
) -> None:
    """Restored at 3 after it was at 8, then at 10: who saw 8 begins anew, who saw 3 goes on."""
    lost = await lose(tmp_path, store_location)
    await tidelog("restore", str(lost.backup), "--store", restore_location)
    async with served(tmp_path, restore_location) as server:
        await server.publish(NEW, "new")
        for seen in range(KEPT + 1, SEEN + 1):
            frames = await server.resume(position(lost.frames[seen - 1]))
            assert failure(frames) == ("stream_reset", "history_replaced"), seen
        frames = await server.resume(position(lost.succeeded))
        assert failure(frames) == ("stream_reset", "history_replaced")
        for seen in (0, 1, KEPT):
            given = {"serial": 0, "stream_id": lost.succeeded["stream_id"]}
            frames = await server.resume(position(lost.frames[seen - 1]) if seen else given)
            assert serials(frames) == list(range(seen + 1, KEPT + NEW + 1))
        assert serials(await server.resume(position(lost.old_succeeded))) == [4, 5, 6, 7, 8, 9, 10]
        assert {frame["stream_id"] for frame in frames[:-1]} != {lost.succeeded["stream_id"]}
        # What was read of the new history is a position like any other.
        assert serials(await server.resume(position(frames[3]))) == [8, 9, 10]

        # A serial alone may be of either history: only what both have is taken for good.
        for seen, is_good in ((KEPT, True), (KEPT + 1, False), (SEEN, False)):
            async with server.peer() as peer:
                await peer.send("resume", {"channel_serials": {CHANNEL: seen}})
                frames = [await peer.receive()]
                while frames[-1]["event"] != "sockudo:resume_success":
                    frames.append(await peer.receive())
            if is_good:
                assert serials(frames) == list(range(seen + 1, KEPT + NEW + 1))
            else:
                assert failure(frames) == ("stream_reset", "history_replaced")

        asked = {"limit": 2, "direction": "oldest_first", "cursor": lost.cursor}
        answer = await server.api.get(f"/channels/{CHANNEL}/history", **asked)
        refused(answer, 400, "invalid_input")


async def test_an_event_stream_goes_on_or_is_reset(
    tmp_path: Path, store_location: str, restore_location: str, free_port: int
) -> None:
    """As a socket: who saw 3 has the new messages after them, who saw 8 is told and rewound."""
    lost = await lose(tmp_path, store_location)
    await tidelog("restore", str(lost.backup), "--store", restore_location)
    stream_id = lost.succeeded["stream_id"]
    async with served(tmp_path, restore_location, free_port) as server:
        await server.publish(NEW, "new")
        async with heard(free_port, CHANNEL, last_id=f"{stream_id}:{KEPT}") as listener:
            assert (await listener.expect("sockudo:connection_established"))["data"]
            frames = [await listener.frame() for _ in range(NEW)]
            assert [frame["serial"] for frame in frames] == [*range(KEPT + 1, KEPT + NEW + 1)]
            assert {frame["data"] for frame in frames} == {f"new {n}" for n in range(NEW)}
            assert frames[0]["stream_id"] != stream_id
        async with heard(free_port, CHANNEL, last_id=f"{stream_id}:{SEEN}", rewind=9) as listener:
            await listener.expect("sockudo:connection_established")
            failed = json.loads((await listener.expect("sockudo:resume_failed"))["data"])
            assert (failed["code"], failed["reason"]) == ("stream_reset", "history_replaced")
            await listener.subscribed()
            states = [await listener.frame() for _ in range(9)]
            assert [state["data"] for state in states[-NEW:]] == [f"new {n}" for n in range(NEW)]


async def test_our_client_goes_on_or_says_that_it_could_not(
    tmp_path: Path, store_location: str, restore_location: str, free_port: int
) -> None:
    """Who saw 3 has the new messages after them; who saw 8 is told, and has what there is."""
    backup = tmp_path / "backup.db"
    async with AsyncExitStack() as clients:
        quick = Backoff(first=0.01, most=0.05)
        client = ChannelClient(f"ws://127.0.0.1:{free_port}", APP.key, backoff=quick)
        async with served(tmp_path, store_location, free_port) as server:
            await server.publish(KEPT, "kept", "one")
            await server.publish(KEPT, "kept", "two")
            await clients.enter_async_context(client)
            one = await clients.enter_async_context(client.subscribe("one", rewind=10))
            two = await clients.enter_async_context(client.subscribe("two", rewind=10))
            await tidelog("backup", str(backup), "--store", store_location)
            await server.publish(SEEN - KEPT, "lost", "two")
            await until(lambda: len(two.messages) == SEEN)
            assert len(one.messages) == KEPT
        await tidelog("restore", str(backup), "--store", restore_location)
        async with served(tmp_path, restore_location, free_port) as server:
            await server.publish(NEW, "new", "one")
            await server.publish(NEW, "new", "two")
            await until(lambda: len(one.messages) == len(two.messages) == KEPT + NEW)
            whole = [f"kept {n}" for n in range(KEPT)] + [f"new {n}" for n in range(NEW)]
            assert [message.data for message in one.messages] == whole
            await until(lambda: [message.data for message in two.messages] == whole)
            assert one.resets == 0
            assert two.resets == 1


@pytest.mark.filterwarnings("ignore:ConnectionClosed:DeprecationWarning")  # in sockudo-python
async def test_the_sdk_is_reset_and_its_idle_channels_go_on(tmp_path: Path, free_port: int) -> None:
    """It sends the id of `subscription_succeeded` back; that is no message, and is not compared."""
    store, restored = (str(tmp_path / name / "tidelog.db") for name in ("store", "restored"))
    backup = tmp_path / "backup.db"
    failed: list[Any] = []
    successes: list[Any] = []
    async with Balancer(free_port) as balancer, AsyncExitStack() as clients:
        async with served(tmp_path, store, free_port) as server:
            await server.publish(KEPT, "kept", "idle")
            await server.publish(KEPT, "kept", "busy")
            client = await clients.enter_async_context(
                sdk_client(balancer, connection_recovery=True, max_reconnect_attempts=None)
            )
            client.bind("sockudo:resume_failed", lambda data, _: failed.append(data))
            client.bind("sockudo:resume_success", lambda data, _: successes.append(data))
            _, idle = await subscribed(client, "idle")
            _, busy = await subscribed(client, "busy")
            await tidelog("backup", str(backup), "--store", store)
            await server.publish(SEEN - KEPT, "lost", "busy")
            await until(lambda: len(busy) == SEEN - KEPT)
        await tidelog("restore", str(backup), "--store", restored)
        async with served(tmp_path, restored, free_port) as server:
            await until(lambda: len(successes) == 1)
            assert [each["channel"] for each in successes[0]["recovered"]] == ["idle"]
            assert [(each["channel"], each["code"]) for each in failed] == [
                ("busy", "stream_reset")
            ]
            await server.publish(1, "new", "idle")
            await server.publish(1, "new", "busy")
            await until(lambda: ("chat.message", "new 0") in idle)
            await until(lambda: ("chat.message", "new 0") in busy)


async def test_a_subscriber_is_told_before_and_after_it_subscribes(
    tmp_path: Path, store_location: str, restore_location: str
) -> None:
    """Also on a private channel, where a resume before the subscribe is only judged."""
    channel = "private-room"
    backup = tmp_path / "backup.db"
    async with served(tmp_path, store_location) as server, server.peer() as peer:
        await server.publish(KEPT, "kept", channel)
        kept = await peer.subscribe(channel)
        await tidelog("backup", str(backup), "--store", store_location)
        await server.publish(SEEN - KEPT, "lost", channel)
        seen = [await peer.receive() for _ in range(SEEN - KEPT)][-1]
    await tidelog("restore", str(backup), "--store", restore_location)
    async with served(tmp_path, restore_location) as server:
        await server.publish(NEW, "new", channel)
        frames = await server.resume(position(seen), channel)
        assert failure(frames) == ("stream_reset", "history_replaced")
        async with server.peer() as peer:
            current = await peer.subscribe(channel)
            assert current["stream_id"] != seen["stream_id"]
            await peer.resume(**{channel: position(seen)})
            failed = json.loads((await peer.expect(":resume_failed", channel))["data"])
            assert failed["code"] == "stream_reset"
            assert failed["current_stream_id"] == current["stream_id"]
        async with server.peer() as peer:
            await peer.resume(**{channel: position(kept)})
            [recovered] = (await peer.resumed())["recovered"]
            assert (recovered["replayed"], recovered["position"]) == (0, None)
            current = await peer.subscribe(channel)
            assert current["serial"] == KEPT
            assert [(await peer.receive())["serial"] for _ in range(NEW)] == list(range(4, 11))


async def test_an_upgrade_resets_nobody(tmp_path: Path) -> None:
    """The first incarnation of a store that is there already has the stream ids it had before.

    Also for a client whose last frame was a `subscription_succeeded`, whose id was random then.
    """
    store = str(tmp_path / "store" / "tidelog.db")
    async with served(tmp_path, store) as server, server.peer() as peer:
        await server.publish(KEPT, "before")
        succeeded = await peer.subscribe(CHANNEL)
    text = f"stream_id/{log_id(store)}/0/channels/{APP.id}/{CHANNEL}"
    assert stream_id_before(text) == succeeded["stream_id"]
    earlier = tmp_path / "earlier" / "tidelog.db"
    make_earlier(store, earlier)
    # When a store was upgraded is kept in whole seconds: not in that of the last message.
    await asyncio.sleep(1 - time.time() % 1)
    async with served(tmp_path, str(earlier)) as server:
        await server.publish(1, "after")
        given = position(succeeded) | {"last_message_id": "7d6d2d0e-8f4c-4d5e-9c3b-0d5a1b2c3d4e"}
        assert serials(await server.resume(given)) == [4]


def make_earlier(store: str, earlier: Path) -> None:
    """The same log in a file of the last version without incarnations."""
    earlier.parent.mkdir()
    with closing(sqlite3.connect(earlier, isolation_level=None)) as connection:
        sqlitefile.migrate(connection, earlier, SCHEMA.migrations("sqlite")[:6])
        connection.execute("ATTACH ? AS later", (store,))
        tables = connection.execute("SELECT name FROM main.sqlite_schema WHERE type = 'table'")
        for (table,) in tables.fetchall():
            found = connection.execute(f"PRAGMA main.table_info({table})")
            columns = ", ".join(row[1] for row in found)
            connection.execute(
                f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM later.{table}"
            )


def log_id(store: str) -> str:
    """Of an SQLite store."""
    with closing(sqlite3.connect(store)) as connection:
        found: str = connection.execute("SELECT log_id FROM head").fetchone()[0]
        return found


def stream_id_before(text: str) -> str:
    """How `stream_id` was made before there were incarnations."""
    digest = hmac.digest(APP.secret.encode(), text.encode(), "sha256").hex()
    variant = "89ab"[int(digest[16], 16) & 3]
    return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}"


async def test_the_last_message_tells_when_nothing_else_can(tmp_path: Path) -> None:
    """A file that was put back with `cp` has the old name: only the id of a message differs."""
    store = tmp_path / "store" / "tidelog.db"
    old = tmp_path / "old.db"
    async with served(tmp_path, str(store)) as server:
        await server.publish(KEPT, "kept")
    shutil.copy(store, old)
    async with served(tmp_path, str(store)) as server, server.peer() as peer:
        succeeded = await peer.subscribe(CHANNEL)
        await server.publish(SEEN - KEPT, "lost")
        seen = [await peer.receive() for _ in range(SEEN - KEPT)]
        again = await peer.subscribe(CHANNEL)
        assert again["serial"] == SEEN
    for ending in ("", "-wal", "-shm"):
        store.with_name(store.name + ending).unlink(missing_ok=True)
    shutil.copy(old, store)
    async with served(tmp_path, str(store)) as server:
        await server.publish(NEW, "new")
        for frame in seen:
            frames = await server.resume(position(frame))
            assert failure(frames) == ("stream_reset", "message_id_mismatch")
        without = position(seen[-1])
        del without["last_message_id"]
        assert serials(await server.resume(without)) == [9, 10], "nobody can tell"
        assert serials(await server.resume(position(again))) == [9, 10], "a system frame's id"
        assert serials(await server.resume(position(succeeded))) == list(range(4, 11))
        unknown = position(succeeded) | {"last_message_id": secrets.token_hex(8)}
        assert failure(await server.resume(unknown)) == ("stream_reset", "message_id_mismatch")


async def test_every_frame_a_client_may_remember_is_a_good_position(
    tmp_path: Path, store_location: str
) -> None:
    """Live, replayed and rewound frames of every operation, and `resume_success` itself."""
    async with served(tmp_path, store_location) as server, server.peer() as peer:
        first = await peer.subscribe(CHANNEL)
        sent = [await server.api.publish(CHANNEL, f"text {n}") for n in range(3)]
        for action in ("append", "update", "append"):
            await server.api.mutate(action, CHANNEL, sent[0]["message_serial"], data="more")
        await server.api.mutate("delete", CHANNEL, sent[1]["message_serial"])
        frames = [first, *[await peer.receive() for _ in range(7)]]
        async with server.peer() as other:
            frames.append(await other.subscribe(CHANNEL, rewind=10))
            frames += [await other.receive() for _ in range(3)]
            await other.expect(":rewind_complete", CHANNEL)
        *replayed, success = await server.resume(position(first))
        [recovered] = json.loads(success["data"])["recovered"]
        for given in [*map(position, [*frames, *replayed]), recovered["position"]]:
            assert serials(await server.resume(given)) == list(range(given["serial"] + 1, 8))
        state = ok(await server.api.get(f"/channels/{CHANNEL}/history/state"))
        assert state["stream"]["stream_id"] == first["stream_id"]
