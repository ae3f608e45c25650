"""Reading what was received: pages, live events, replay (mesh 8.2, 8.3)."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from support.mesh.local_daemon import SETTINGS, LocalDaemon, delivery, running, until, with_ipc
from tidelog.daemon.settings import InboxSettings
from tidelog.testing.clock import FakeClock


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[LocalDaemon]:
    """A daemon whose clock stands still."""
    async with running(tmp_path, clock=FakeClock()) as started:
        yield started


def receive(daemon: LocalDaemon, *numbers: int, **changes: Any) -> None:
    """Store deliveries and publish them, as the uplink does."""
    for message in daemon.inbox.receive([delivery(number, **changes) for number in numbers]):
        if message is not None:
            daemon.events.publish_message(message)


class Reader:
    """An event stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, daemon: LocalDaemon, last: str | None = None) -> "Reader":
        """A reader that may have seen something before."""
        reader, writer = await asyncio.open_unix_connection(str(daemon.socket), limit=2**22)
        header = f"Last-Event-ID: {last}\r\n" if last else ""
        writer.write(f"GET /v1/events HTTP/1.1\r\n{header}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"text/event-stream" in head
        before = daemon.events.readers
        if last is None:
            await until(lambda: daemon.events.readers > before or daemon.events.readers > 0)
        return cls(reader, writer)

    async def next(self) -> tuple[str | None, str, Any]:
        """Id, kind and data of the next event."""
        async with asyncio.timeout(10):
            while True:
                fields = {}
                text = (await self._reader.readuntil(b"\n\n")).decode()
                for line in text.splitlines():
                    name, _, value = line.partition(": ")
                    fields[name] = value
                if "event" in fields:
                    return fields.get("id"), fields["event"], json.loads(fields["data"])

    def close(self) -> None:
        """Leave."""
        self._writer.close()


async def test_pages_have_every_message_once(daemon: LocalDaemon) -> None:
    """Although all were received in the same millisecond."""
    receive(daemon, *range(25))
    seen = []
    async with daemon.unix() as client:
        url = "/v1/inbox?limit=10"
        while True:
            response = await client.get(url)
            page = response.json()
            seen += [item["client_message_id"] for item in page["items"]]
            if page["next_cursor"] is None:
                assert "link" not in response.headers
                break
            assert response.headers["link"].endswith('>; rel="next"')
            url = response.headers["link"].split(">")[0].removeprefix("<")
    assert seen == [f"c-{number}" for number in range(25)]


async def test_a_page_can_be_narrowed(daemon: LocalDaemon) -> None:
    """By topic, by sender and by time, which includes its moment."""
    receive(daemon, 1)
    receive(daemon, 2, topic=None)
    receive(daemon, 3, sender_pubkey="cc" * 32, sender_name="carol")
    assert isinstance(daemon.clock, FakeClock)
    daemon.clock.advance(1000)
    receive(daemon, 4)
    async with daemon.unix() as client:

        async def ids(**query: str) -> list[int]:
            page = (await client.get("/v1/inbox", params=query)).json()
            return [item["history_id"] for item in page["items"]]

        at = (await client.get("/v1/inbox")).json()["items"][3]["received_at"]
        assert await ids() == [1, 2, 3, 4]
        assert await ids(topic="alerts") == [1, 3, 4]
        assert await ids(**{"from": "carol"}) == await ids(**{"from": "cc" * 32}) == [3]
        assert await ids(since=at) == [4]


@pytest.mark.parametrize(
    "query",
    [
        *("limit=0", "limit=1001", "limit=x", "limit=" + "9" * 5000, "cursor=%00", "cursor=YWJj"),
        *("since=yesterday", "since=2026-01-01", "since=2026-01-01T00:00:00"),
    ],
)
async def test_a_wrong_query_is_refused(query: str, daemon: LocalDaemon) -> None:
    """Nothing is guessed."""
    async with daemon.unix() as client:
        assert (await client.get(f"/v1/inbox?{query}")).status_code == 400


async def test_a_page_has_a_size(tmp_path: Path) -> None:
    """It ends before it is too large, and the next one goes on there."""
    settings = with_ipc(max_response_bytes=65_536)
    async with running(tmp_path, settings=settings) as daemon, daemon.unix() as client:
        receive(daemon, 1, 2, 3, body="x" * 40_000)
        first = (await client.get("/v1/inbox")).json()
        assert len(first["items"]) == 1
        second = await client.get("/v1/inbox", params={"cursor": first["next_cursor"]})
        assert [item["history_id"] for item in second.json()["items"]] == [2]


async def test_a_message_is_told_once(daemon: LocalDaemon) -> None:
    """Live, to every reader, and not again when it is delivered again."""
    one, two = await Reader.open(daemon), await Reader.open(daemon)
    receive(daemon, 1)
    receive(daemon, 1)
    daemon.events.publish("peer_join", {"name": "bob"})
    for reader in (one, two):
        cursor, kind, data = await reader.next()
        assert (kind, data["client_message_id"], data["cursor"]) == ("message", "c-1", cursor)
        assert await reader.next() == (None, "peer_join", {"name": "bob"})
        reader.close()


async def test_a_reader_that_comes_back_misses_nothing(daemon: LocalDaemon) -> None:
    """More than a page of messages is replayed, then what is live follows."""
    reader = await Reader.open(daemon)
    receive(daemon, 0)
    last, _, _ = await reader.next()
    reader.close()
    receive(daemon, *range(1, 351))
    again = await Reader.open(daemon, last)
    receive(daemon, 351)
    numbers = [(await again.next())[2]["history_id"] for _ in range(351)]
    assert numbers == list(range(1, 352))
    again.close()


async def test_an_unknown_place_is_refused(daemon: LocalDaemon) -> None:
    """A reader is not silently started somewhere else."""
    async with daemon.unix() as client:
        response = await client.get("/v1/events", headers={"Last-Event-ID": "7"})
    assert (response.status_code, response.json()["error"]) == (400, "cursor_invalid")


ESCAPED = "\x01" * 65_536
"""As large as a message may be by default, and six times as large in JSON."""


async def test_large_messages_are_replayed(daemon: LocalDaemon) -> None:
    """Although together they are more than a stream's buffer: any member can send them."""
    receive(daemon, 0)
    first = daemon.inbox.page()[0].cursor
    receive(daemon, *range(1, 7), body=ESCAPED)
    reader = await Reader.open(daemon, first)
    assert [(await reader.next())[2]["history_id"] for _ in range(6)] == list(range(1, 7))
    receive(daemon, 7)
    assert (await reader.next())[2]["history_id"] == 7
    reader.close()


async def test_large_messages_at_once_reach_a_live_reader(daemon: LocalDaemon) -> None:
    """It gets from the inbox what did not fit, and is live again."""
    reader = await Reader.open(daemon)
    receive(daemon, *range(6), body=ESCAPED)
    assert [(await reader.next())[2]["history_id"] for _ in range(6)] == list(range(6))
    await until(lambda: daemon.events.readers == 1)
    daemon.events.publish("peer_join", {"name": "bob"})
    assert (await reader.next())[1] == "peer_join"
    reader.close()


async def test_a_message_larger_than_the_buffer_arrives(tmp_path: Path) -> None:
    """One message always fits, or its reader could never get past it."""
    async with running(tmp_path, settings=with_ipc(stream_buffer_bytes=65_536)) as daemon:
        reader = await Reader.open(daemon)
        receive(daemon, 1, 2, body=ESCAPED)
        cursor, _, data = await reader.next()
        assert data["history_id"] == 1
        assert (await reader.next())[2]["history_id"] == 2
        again = await Reader.open(daemon, cursor)
        assert (await again.next())[2]["history_id"] == 2
        reader.close()
        again.close()


async def test_a_slow_reader_misses_no_message(tmp_path: Path) -> None:
    """Its buffer has a bound, and the others go on; it reads what it missed from the inbox."""
    async with running(tmp_path, settings=with_ipc(stream_buffer_bytes=65_536)) as daemon:
        slow, quick = await Reader.open(daemon), await Reader.open(daemon)
        await until(lambda: daemon.events.readers == 2)
        slow._reader._transport.pause_reading()  # type: ignore[attr-defined]
        for number in range(40):
            receive(daemon, number, body="x" * 30_000)
            assert (await quick.next())[2]["history_id"] == number
        await until(lambda: daemon.events.readers == 1)
        waiting = [one._transport.get_write_buffer_size() for one in daemon.server.connections]
        assert max(waiting) <= 65_536
        slow._reader._transport.resume_reading()  # type: ignore[attr-defined]
        assert [(await slow.next())[2]["history_id"] for _ in range(40)] == list(range(40))
        await until(lambda: daemon.events.readers == 2)
        slow.close()
        quick.close()


async def test_a_reader_that_takes_nothing_is_cut_off(tmp_path: Path) -> None:
    """Or 32 of them would be all the streams there are."""
    settings = with_ipc(stream_buffer_bytes=65_536, stream_timeout_ms=200)
    async with running(tmp_path, settings=settings) as daemon:
        stuck = await Reader.open(daemon)
        stuck._reader._transport.pause_reading()  # type: ignore[attr-defined]
        receive(daemon, *range(40), body="x" * 30_000)
        await until(lambda: daemon.server.streams == 0)
        stuck.close()


async def test_an_unknown_event_is_a_defect(daemon: LocalDaemon) -> None:
    """The kinds are the contract's."""
    with pytest.raises(ValueError, match="not an event"):
        daemon.events.publish("news", {})


def test_a_body_that_is_no_text_is_shown_as_base64(tmp_path: Path) -> None:
    """Text stays text, also text that claims to be something else."""
    daemon = LocalDaemon(tmp_path)
    [binary] = daemon.inbox.receive([delivery(1, body="AP8=", body_encoding="base64")])
    [odd] = daemon.inbox.receive([delivery(2, body="%", body_encoding="base64")])
    assert binary is not None
    assert odd is not None
    assert (binary.body, binary.body_encoding) == ("AP8=", "base64")
    assert (odd.body, odd.body_encoding) == ("%", "utf8")
    assert structs.asdict(daemon.inbox.page()[0]) == structs.asdict(binary)


async def test_a_page_that_nobody_reads_is_dropped(tmp_path: Path) -> None:
    """Its memory is not held for longer than a request may take."""
    async with running(tmp_path, settings=with_ipc(body_timeout_ms=200)) as daemon:
        receive(daemon, *range(100), body="x" * 30_000)
        reader, writer = await asyncio.open_unix_connection(str(daemon.socket))
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /v1/inbox HTTP/1.1\r\n\r\n")
        await until(lambda: len(daemon.server.connections) == 1)
        await until(lambda: not daemon.server.connections)
        writer.transport.abort()
        await asyncio.sleep(0)


async def test_a_page_that_is_read_slowly_arrives(daemon: LocalDaemon) -> None:
    """And the connection goes on after it."""
    receive(daemon, *range(50), body="x" * 30_000)
    async with daemon.unix() as client:
        for _ in range(2):
            page = (await client.get("/v1/inbox")).json()
            assert len(page["items"]) == 50
    assert daemon.server.in_flight == 0


async def test_search_is_off_unless_it_is_wanted(daemon: LocalDaemon) -> None:
    """It is no endpoint then, and no feature."""
    async with daemon.unix() as client:
        answer = await client.get("/v1/inbox/search?q=body")
        version = (await client.get("/v1/version")).json()
    assert (answer.status_code, answer.json()["error"]) == (404, "not_found")
    assert "inbox_fts" not in version["ipc_features"]


async def test_search_pages_like_the_inbox(tmp_path: Path) -> None:
    """What matches comes in pages that name the next one."""
    settings = structs.replace(SETTINGS, inbox=InboxSettings(full_text_search=True))
    async with running(tmp_path, settings=settings) as daemon, daemon.unix() as client:
        receive(daemon, 1, 2, 3, body="the tide is in")
        receive(daemon, 4, body="and out again")
        first = await client.get("/v1/inbox/search", params={"q": "tide", "limit": "2"})
        link = first.headers["link"].partition(">")[0].removeprefix("<")
        second = await client.get(link)
        nothing = await client.get("/v1/inbox/search")
        wrong = await client.get("/v1/inbox/search", params={"q": "tide", "cursor": "?"})
        version = (await client.get("/v1/version")).json()
    found = [[item["client_message_id"] for item in p.json()["items"]] for p in (first, second)]
    assert found == [["c-1", "c-2"], ["c-3"]]
    assert (second.json()["next_cursor"], nothing.json()["items"]) == (None, [])
    assert (wrong.status_code, wrong.json()["error"]) == (400, "cursor_invalid")
    assert "inbox_fts" in version["ipc_features"]
