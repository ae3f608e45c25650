"""Open streams: how they are found, seen and ended, by the server's administration and by nodes."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.channels.peer import ChannelsNode, channels_server, unique
from support.cli.command import run as run_command
from support.cli.command import tidelog
from support.log.nodes import Witness
from tidelog.channels.upkeep import streams as module
from tidelog.config.schema import SCHEMA
from tidelog.testing.clock import FakeClock

TOKEN = "an admin token of some length"
STREAMING = {"ai": {"transport": {"status": "streaming"}}}
TIMEOUT_MS = 60_000
ADMIN = "/channels/admin/streams"


@asynccontextmanager
async def serving(
    directory: Path, store: str, clock: FakeClock, **options: Any
) -> AsyncIterator[ChannelsNode]:
    """A server with an admin token, whose time the test moves."""
    async with channels_server(directory, store, clock=clock, admin_token=TOKEN, **options) as node:
        node.api.now = lambda: clock.now_ms() / 1000
        yield node


async def opened(node: ChannelsNode, channel: str, count: int) -> list[str]:
    """Streams that nobody will end; their serials."""
    return [
        (await node.api.publish(channel, str(number), extras=STREAMING))["message_serial"]
        for number in range(count)
    ]


async def status(node: ChannelsNode, channel: str, serial: str) -> dict[str, str]:
    """What a message says of its stream."""
    item = await node.api.item(channel, serial)
    found: dict[str, str] = item["extras"]["ai"]["transport"]
    return found


async def administer(node: ChannelsNode, method: str, path: str, **request: Any) -> Any:
    """Status and body of an administrator's request."""
    answer = await node.client.request(
        method,
        f"{node.api.url}{path}",
        headers={"authorization": f"Bearer {TOKEN}"},
        **request,
    )
    return answer.status_code, answer.json()


async def test_two_nodes_end_a_stream_once(
    tmp_path: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find all of them; each message gets one version more."""
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.02)
    clock, channel = FakeClock(), unique()
    async with (
        serving(tmp_path / "a", postgresql_url, clock) as a,
        serving(tmp_path / "b", postgresql_url, clock) as b,
    ):
        serials = await opened(a, channel, 60)
        clock.advance(TIMEOUT_MS)
        for serial in serials:
            async with asyncio.timeout(30):
                for node in (a, b):
                    while (await status(node, channel, serial))["status"] != "cancelled":  # noqa: ASYNC110 - nothing tells
                        await asyncio.sleep(0.01)
        for serial in serials:
            assert len((await b.api.versions(channel, serial))["items"]) == 2
        name, labels = "tidelog_channels_streams_closed_total", {"reason": "orphan_timeout"}
        registries = [node.server.metrics.registry for node in (a, b)]
        counted = [registry.get_sample_value(name, labels) or 0 for registry in registries]
        assert sum(counted) == len(serials)


async def test_a_sweep_reads_what_is_open_and_nothing_else(
    tmp_path: Path, store_location: str
) -> None:
    """The query for open streams uses their index, also to count those of one channel."""
    engine = "postgresql" if store_location.startswith("postgresql") else "sqlite"
    clock, channel = FakeClock(), unique()
    async with serving(tmp_path, store_location, clock) as node:
        await opened(node, channel, 3)
        for _ in range(30):
            await node.api.publish(channel, "no stream")
    witness = Witness(store_location)
    queries = SCHEMA.queries(engine)
    try:
        if engine == "sqlite":
            find = queries["channels_open_streams"].replace("?", "''")
            count = queries["channels_channel"].replace("?1", "''").replace("?2", "0")
            plans = [witness.rows(f"EXPLAIN QUERY PLAN {query}") for query in (find, count)]
        else:
            witness.rows("SET enable_seqscan = off")
            witness.rows("SET enable_bitmapscan = off")
            find = queries["channels_open_streams"]
            for number, value in enumerate(("''", "0", "'channels0'", "9", "9"), start=1):
                find = find.replace(f"${number}", f"ARRAY[{value}]")
            count = (
                queries["channels_channel"].replace("$1", "ARRAY['x']").replace("$2", "ARRAY[1]")
            )
            plans = [witness.rows(f"EXPLAIN {query}") for query in (find, count)]
    finally:
        witness.close()
    for plan in plans:
        assert "channels_message_open" in str(plan), plan


async def test_streams_are_seen_and_ended_by_the_administrator(
    tmp_path: Path, store_location: str
) -> None:
    """Page by page, those of an app or a channel; whoever has no token sees and ends nothing."""
    clock, room, other = FakeClock(), unique(), unique()
    async with serving(tmp_path, store_location, clock) as node:
        serials = await opened(node, room, 5)
        clock.advance(7_000)
        [there] = await opened(node, other, 1)
        seen: list[Any] = []
        query: dict[str, Any] = {"app_id": "tide", "channel": room, "limit": 2}
        while True:
            code, page = await administer(node, "GET", ADMIN, params=query)
            assert (code, len(page["streams"]) <= 2) == (200, True)
            seen += page["streams"]
            if page["next_cursor"] is None:
                break
            query["cursor"] = page["next_cursor"]
        assert [each["message_serial"] for each in seen] == serials
        assert {(each["app_id"], each["channel"]) for each in seen} == {("tide", room)}
        assert {each["silent_seconds"] for each in seen} == {7.0}
        assert {each["published_at_ms"] for each in seen} == {seen[0]["written_at_ms"]}
        for wish, count in (({}, 6), ({"app_id": "tide"}, 6), ({"app_id": "plain"}, 0)):
            assert len((await administer(node, "GET", ADMIN, params=wish))[1]["streams"]) == count
        for unknown in ("tid", "tide0", "nope"):
            order = {"app_id": unknown, "channel": room, "reason": "r"}
            for answer in (
                await administer(node, "GET", ADMIN, params={"app_id": unknown}),
                await administer(node, "POST", "/channels/admin/forget", json=order),
            ):
                assert (answer[0], answer[1]["code"]) == (404, "not_found")
                assert f"there is no app '{unknown}'; configured are " in answer[1]["error"]
        order = {"app_id": "tide", "channel": room, "message_serial": serials[0]}
        for headers in ({}, {"authorization": "Bearer wrong"}):
            for method, path in (("GET", ADMIN), ("POST", f"{ADMIN}/close")):
                answer = await node.client.request(
                    method, f"{node.api.url}{path}", headers=headers, content=json.dumps(order)
                )
                assert (answer.status_code, answer.json()["code"]) == (401, "auth_failed")
        close = f"{ADMIN}/close"
        early = {**order, "silent_seconds": 8}
        assert await administer(node, "POST", close, json=early) == (200, {"closed": False})
        assert await administer(node, "POST", close, json=order) == (200, {"closed": True})
        assert await administer(node, "POST", close, json=order) == (200, {"closed": False})
        assert await status(node, room, serials[0]) == {
            "status": "cancelled",
            "error-code": "closed_by_operator",
        }
        false = f"{1:020d}{serials[1][20:]}"  # another time than that of the message
        for wrong in (
            {**order, "channel": other},
            {**order, "message_serial": "1"},
            {**order, "message_serial": false},
        ):
            assert (await administer(node, "POST", close, json=wrong))[0] == 404
        for bad in ({}, {**order, "silent_seconds": -1}, {**order, "app_id": 1}):
            assert (await administer(node, "POST", close, json=bad))[0] == 400
        for query in (
            {"channel": room},
            {"limit": 0},
            {"limit": "x"},
            {"cursor": "x"},
            {"cursor": "1@"},
        ):
            code, body = await administer(node, "GET", ADMIN, params=query)
            assert (code, body["code"]) == (400, "invalid_input"), query
        assert (await status(node, other, there))["status"] == "streaming"


async def test_the_command_lists_and_ends_streams(tmp_path: Path) -> None:
    """`tidelog channels streams`, with and without `--close`."""
    clock, (room, other) = FakeClock(), sorted((unique(), unique()))  # they are listed in order
    async with serving(tmp_path, "", clock) as node:
        serials = await opened(node, room, 2)
        clock.advance(30_000)
        [young] = await opened(node, other, 1)
        config = tmp_path / "tidelog.toml"
        config.write_text(f'admin_token = "{TOKEN}"\n', encoding="utf-8")
        place = ("channels", "streams", "--url", node.api.url, "--config", str(config))
        shown = await asyncio.to_thread(run_command, *place, check=True)
        cells = [line.split("│")[3].strip() for line in shown.stdout.splitlines() if "│" in line]
        assert serials[0] in "".join(cells), "the whole of it, which --message takes"
        listed = (await tidelog(*place))["streams"]
        assert [each["message_serial"] for each in listed] == [*serials, young]
        ended = (await tidelog(*place, "--silent-for", "20", "--close"))["streams"]
        assert [(each["message_serial"], each["closed"]) for each in ended] == [
            (serial, True) for serial in serials
        ]
        assert (await status(node, room, serials[1]))["status"] == "cancelled"
        left = (await tidelog(*place, "--app", "tide", "--channel", other))["streams"]
        assert [each["message_serial"] for each in left] == [young]
        one = (await tidelog(*place, "--message", young, "--close"))["streams"]
        assert one[0]["closed"]
