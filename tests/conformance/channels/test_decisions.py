"""Decisions that no numbered check covers (channels 0), and other musts of the contract."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.channels.peer import (
    Api,
    ChannelsNode,
    Peer,
    channel_path,
    channels_server,
    message_path,
    nothing_else,
    ok,
    refused,
    unique,
)
from tidelog.channels.front.reads.history_reader import HistoryReader
from tidelog.channels.settings import App

pytestmark = pytest.mark.asyncio(loop_scope="module")

SpareStore = Callable[[], Awaitable[str]]


def status(value: str, part: str = "transport") -> dict[str, Any]:
    """Extras with a stream's status."""
    return {"ai": {part: {"status": value}}}


# Streams.


async def test_the_append_that_ends_a_stream_may_be_empty(node: ChannelsNode, api: Api) -> None:
    """Channels D16: by the status of either part in the request; not by one that was there."""
    for part, ending in (
        ("transport", "complete"),
        ("transport", "cancelled"),
        ("codec", "complete"),
        ("codec", "cancelled"),
    ):
        channel = unique()
        async with node.v2() as delta, node.v2(append_mode="full") as full:
            for peer in (delta, full):
                await peer.subscribe(channel)
            ack = await api.publish(channel, "text", extras=status("streaming"))
            serial = ack["message_serial"]
            for extras in (None, status("streaming"), status("other", "codec"), {}):
                response = await api.try_mutate("append", channel, serial, data="", extras=extras)
                refused(response, 400, "invalid_input")
            await api.mutate("append", channel, serial, data="", extras=status(ending, part))
            for peer, expected in ((delta, ""), (full, "text")):
                assert (await peer.receive())["data"] == "text"
                frame = await peer.expect("sockudo:message.append", channel)
                assert frame["data"] == expected
                assert frame["extras"]["ai"] == {part: {"status": ending}}
        assert (await api.item(channel, serial))["data"] == "text"
        newest = (await api.versions(channel, serial))["items"][0]
        assert (newest["action"], newest["data"]) == ("append", "")


async def test_a_status_that_does_not_exist(api: Api) -> None:
    """5.5: it has a code of its own."""
    channel = unique()
    response = await api.events(channel, data="x", extras=status("paused"))
    refused(response, 400, "ai_invalid_transport_header", ai_code=104000)
    wrong: Any
    for wrong in ({"ai": []}, {"ai": {"transport": {"status": 7}}}, {"ai": {"transport": "x"}}):
        assert (await api.events(channel, data="x", extras=wrong)).status_code == 400
    assert (await api.history(channel))["items"] == []


async def test_limits_of_some_channels(tmp_path: Path) -> None:
    """Channels D14: `ai_transport.channels` narrows where the limits hold."""
    narrow = {"max_appends_per_message": 1, "channels": ["private-ai:"]}
    async with channels_server(tmp_path, ai_transport=narrow) as node:
        for channel, expected in ((unique("private-ai:x"), 413), (unique("other"), 200)):
            ack = await node.api.publish(channel, "")
            await node.api.mutate("append", channel, ack["message_serial"], data="1")
            response = await node.api.try_mutate("append", channel, ack["message_serial"], data="2")
            assert response.status_code == expected


async def test_ai_events_are_acknowledged(api: Api) -> None:
    """4.2: an event named `ai-...` gets its serials without asking."""
    channel = unique()
    answer = ok(await api.events(channel, name="ai-output", data="x"))
    ack = answer["channels"][channel]
    assert ack["message_serial"] == ack["version_serial"] == ack["acknowledgement_id"]
    assert (ack["history_serial"], ack["delivery_serial"]) == (1, 1)


# Summaries (channels 5.1).


async def test_summary(node: ChannelsNode, api: Api) -> None:
    """It counts without being counted: no serial, no version, V2 only."""
    channel = unique()
    async with node.v1() as v1, node.v2() as v2, node.v2() as ana, node.v2() as bo:
        for peer in (v1, v2):
            await peer.subscribe(channel)
        await ana.signin("ana", {"message_update_any": ["*"]})
        await bo.signin("bo", {"message_update_own": ["*"]})
        ack = await api.publish(channel, "Hé")
        serial = ack["message_serial"]
        await api.mutate("append", channel, serial, data="llo", client_id="cy")
        path = f"{message_path(channel, serial)}/summary"
        item = await api.item(channel, serial)
        expected: dict[str, Any] = {
            "action": "message.summary",
            "serial": serial,
            "latest": {
                "action": "append",
                "version_serial": item["version"]["serial"],
                "timestamp_ms": item["version"]["timestamp_ms"],
                "client_id": "cy",
            },
            "versions": 2,
            "appends": 1,
            "data_bytes": 6,
            "deleted": False,
        }
        got = ok(await api.get(path))
        if got["latest"]["action"] == "message.append":  # the contract leaves the spelling open
            expected["latest"]["action"] = "message.append"
        assert got == expected
        assert ok(await api.post(path, {})) == expected
        assert ok(await api.post(path, {"socket_id": ana.socket_id})) == expected
        response = await api.post(path, {"socket_id": bo.socket_id})
        assert response.status_code == 401
        for event in ("chat.message", "sockudo:message.append"):
            await v2.expect(event, channel)
        for _ in range(2):
            frame = await v2.expect("sockudo:message.summary", channel)
            assert "serial" not in frame
            data = frame["data"]
            assert (json.loads(data) if isinstance(data, str) else data) == expected
        await v1.expect("chat.message", channel)
        await nothing_else(api, channel, v1, v2)
        await api.mutate("delete", channel, serial)
        assert ok(await api.get(path))["deleted"] is True
        assert len((await api.versions(channel, serial))["items"]) == 3
        refused(await api.get(f"{message_path(channel, 'x')}/summary"), 404, "not_found")


# Resume and rewind.


def _is_complete(frame: dict[str, Any]) -> bool:
    return bool(frame["event"] == "sockudo:rewind_complete")


async def test_resume_of_a_private_channel_needs_its_stream_id(
    node: ChannelsNode, api: Api
) -> None:
    """Channels D6: serial-only positions and wrong guesses of a stranger are refused at once."""
    for channel in (unique("private-room"), unique("presence-lab")):
        await api.publish(channel, "secret")
        async with node.v2() as stranger:
            for positions in (
                {"channel_positions": {channel: {"serial": 0}}},
                {"channel_serials": {channel: 0}},
                {"channel_positions": {channel: {"serial": 0, "stream_id": "guess"}}},
                {"channel_positions": {channel: {"serial": 0, "stream_id": None}}},
            ):
                await stranger.send("resume", positions)
                frame = await stranger.expect(":resume_failed", channel)
                data = json.loads(frame["data"])
                assert data["current_stream_id"] is None, "D20"
                assert "secret" not in json.dumps(frame)
                summary = await stranger.resumed()
                assert summary["recovered"] == []
                assert [failed["channel"] for failed in summary["failed"]] == [channel]
            await stranger.quiet()


async def test_resume_as_text_of_several_channels(node: ChannelsNode, api: Api) -> None:
    """The data of a resume may be a string; each channel is resumed by itself."""
    names = [unique() for _ in range(3)]
    async with node.v2() as control, node.v2() as again:
        positions = {}
        live: dict[str, Any] = {}
        for name in names:
            head = await control.subscribe(name)
            positions[name] = {"serial": 0, "stream_id": head["stream_id"]}
            await api.publish(name, "x")
            live[name] = await control.receive()
        positions[names[1]] = {"serial": 1, "stream_id": positions[names[1]]["stream_id"]}
        await again.send("resume", json.dumps({"channel_positions": positions}))
        frames = [await again.receive() for _ in range(2)]
        assert {frame["channel"]: frame for frame in frames} == {
            name: live[name] for name in (names[0], names[2])
        }
        summary = await again.resumed()
        replayed = {entry["channel"]: entry["replayed"] for entry in summary["recovered"]}
        assert replayed == dict(zip(names, (1, 0, 1), strict=True))
        await again.quiet()


async def test_many_questions_at_once(node: ChannelsNode, api: Api) -> None:
    """6.2: each page that is asked for is answered, or refused with 4301 as one too many."""
    channel = unique()
    await api.publish(channel)
    async with node.v2() as v2:
        await v2.subscribe(channel)
        for _ in range(20):
            await v2.send("channel_history", {"channel": channel})
        pages = 0
        for _ in range(20):
            frame = await v2.receive()
            if frame["event"] == "sockudo:error":
                assert frame["data"]["code"] == 4301
            else:
                assert len(frame["data"]["items"]) == 1
                pages += 1
        assert pages >= 2
        await v2.quiet()


async def test_legacy_positions(node: ChannelsNode, api: Api) -> None:
    """A bare serial resumes a public channel from the hot buffer."""
    channel = unique()
    async with node.v2() as control:
        await control.subscribe(channel)
        for n in range(3):
            await api.publish(channel, str(n))
        live = [await control.receive() for _ in range(3)]
        async with node.v2() as again:
            await again.send("resume", {"channel_serials": {channel: 1}})
            assert [await again.receive() for _ in range(2)] == live[1:]
            [recovered] = (await again.resumed())["recovered"]
            assert (recovered["source"], recovered["replayed"]) == ("hot", 2)


async def test_positions_that_are_none(node: ChannelsNode) -> None:
    """Malformed positions are answered with an error or a failure, never with silence."""
    async with node.v2() as v2:
        wrong: Any
        for wrong in (7, [], "x", {"serial": "x"}, {"serial": -1}, {"serial": 1.5}, {}):
            await v2.send("resume", {"channel_positions": {unique(): wrong}})
            frame = await v2.receive()
            assert frame["event"] in ("sockudo:error", "sockudo:resume_failed")
            if frame["event"] == "sockudo:resume_failed":
                await v2.resumed()
        await v2.quiet()


async def test_publishing_during_resume_and_rewind(node: ChannelsNode, api: Api) -> None:
    """However they meet, a socket sees every operation once and in order."""
    channel, last = unique(), 90
    async with node.v2() as control:
        head = await control.subscribe(channel)
        for n in range(30):
            await api.publish(channel, str(n))

        async def publish() -> None:
            for n in range(30, last):
                await api.publish(channel, str(n))

        async def serials(peer: Peer, is_end: Callable[[dict[str, Any]], bool]) -> list[int]:
            seen: list[int] = []
            while not is_end(frame := await peer.receive()):
                if "extras" in frame:
                    seen.append(frame["serial"])
            return seen if "extras" not in frame else [*seen, frame["serial"]]

        async def resume() -> None:
            async with node.v2() as peer:
                await peer.resume(**{channel: {"serial": 0, "stream_id": head["stream_id"]}})
                await peer.attach(channel)
                seen = await serials(peer, lambda frame: frame.get("serial") == last)
                assert seen == list(range(1, last + 1))

        async def rewind() -> None:
            while not publishing.done():
                async with node.v2() as peer:
                    await peer.attach(channel, rewind=100)
                    seen = await serials(peer, _is_complete)
                    assert seen == list(range(1, len(seen) + 1))

        publishing = asyncio.create_task(publish())
        await asyncio.gather(publishing, *(resume() for _ in range(3)), rewind(), rewind())
        seen = [(await control.receive())["serial"] for _ in range(last)]
        assert seen == list(range(1, last + 1))


@pytest.mark.inside
async def test_what_goes_live_while_a_rewind_reads(
    node: ChannelsNode, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6.3: in the rows already, it is not sent again; committed after the read, it is sent."""
    channel, read = unique(), HistoryReader.between
    started, go, done, end = (asyncio.Event() for _ in range(4))

    async def slowly(*arguments: Any) -> Any:
        started.set()
        await go.wait()
        rows = await read(*arguments)
        done.set()
        await end.wait()
        return rows

    first = await api.publish(channel, "a")
    async with node.v2() as peer, node.v2() as control:
        await control.subscribe(channel)
        monkeypatch.setattr(HistoryReader, "between", slowly)
        await peer.subscribe(channel, rewind=10)
        await started.wait()
        await api.mutate("append", channel, first["message_serial"], data="b")
        await api.publish(channel, "c")
        go.set()
        await done.wait()
        await api.mutate("append", channel, first["message_serial"], data="d")
        await api.publish(channel, "e")
        for _ in range(4):
            await control.receive()  # all of it is delivered, for peer it is held
        end.set()
        frames = [await peer.receive() for _ in range(4)]
        assert [(frame["serial"], frame["data"]) for frame in frames] == [
            (2, "ab"),
            (3, "c"),
            (4, "d"),
            (5, "e"),
        ]
        complete = (await peer.expect(":rewind_complete", channel))["data"]
        assert (complete["historical_count"], complete["live_count"]) == (1, 3)
        monkeypatch.undo()
        await nothing_else(api, channel, peer, control)


async def test_rewind_has_the_page_as_its_limit(tmp_path: Path) -> None:
    """Beyond `max_page_size` the oldest are left out, and it says so."""
    async with channels_server(tmp_path, history={"max_page_size": 3}) as node:
        channel = unique()
        for n in range(4):
            await node.api.publish(channel, str(n))
        for wish in (10, {"seconds": 600}):
            async with node.v2() as v2:
                await v2.subscribe(channel, rewind=wish)
                assert [(await v2.receive())["data"] for _ in range(3)] == ["1", "2", "3"]
                done = (await v2.expect(":rewind_complete", channel))["data"]
                assert (done["historical_count"], done["truncated_by_limit"]) == (3, True)
        assert (await node.api.history(channel, limit=50))["limit"] == 3


async def test_rewind_switched_off(tmp_path: Path) -> None:
    """6.3: an error and no subscription."""
    async with channels_server(tmp_path, rewind_enabled=False) as node, node.v2() as v2:
        channel = unique()
        await v2.attach(channel, rewind=1)
        await v2.expect_denied(channel, 4300)
        await v2.subscribe(channel)


# What outlives a process.


async def test_a_restart_loses_nothing(tmp_path: Path, spare_store: SpareStore) -> None:
    """Messages, versions, serials, receipts and the stream are the same after it."""
    store, channel = await spare_store(), unique()
    async with channels_server(tmp_path, store) as node, node.v2() as v2:
        head = await v2.subscribe(channel)
        ack = await node.api.publish(channel, "Hel", message_id="mine")
        serial = ack["message_serial"]
        fields = {"data": "lo", "op_id": "op", "extras": {"headers": {"n": 1}}}
        append = await node.api.mutate("append", channel, serial, **fields)
        await node.api.mutate("update", channel, serial, name="renamed")
        live = [await v2.receive() for _ in range(3)]
        before = await node.api.item(channel, serial), await node.api.history(channel)
    async with channels_server(tmp_path, store) as node, node.v2() as v2:
        api = node.api
        assert (await api.item(channel, serial), await api.history(channel)) == before
        await v2.resume(**{channel: {"serial": 0, "stream_id": head["stream_id"]}})
        assert [await v2.receive() for _ in range(3)] == live, "from the store, as it was live"
        [recovered] = (await v2.resumed())["recovered"]
        assert (recovered["source"], recovered["replayed"]) == ("cold", 3)
        again = await v2.subscribe(channel)
        assert (again["stream_id"], again["serial"]) == (head["stream_id"], 3)
        repeated = await api.mutate("append", channel, serial, **fields)
        assert repeated == {**append, "status": "duplicate"}
        same = ok(await api.events(channel, data="Hel", message_id="mine"))["channels"][channel]
        assert (same["message_serial"], same["delivery_serial"]) == (serial, 1)
        more = await api.mutate("append", channel, serial, data="!")
        assert (more["delivery_serial"], more["history_serial"]) == (4, 1)
        assert (await api.item(channel, serial))["data"] == "Hello!"
        assert (await v2.receive())["serial"] == 4


# Limits of the HTTP API.


@pytest.mark.one_front
async def test_rate_limit(tmp_path: Path) -> None:
    """8.1: 429 with `Retry-After`; the limit is the app's own."""
    slow = App(id="tide", key="tide-key", secret="s", max_api_requests_per_minute=3)
    other = App(id="plain", key="plain-key", secret="t")
    async with channels_server(tmp_path, apps=(slow, other)) as node:
        node.api.app, node.plain.app = slow, other
        responses = [await node.api.get("/channels") for _ in range(4)]
        assert [response.status_code for response in responses] == [200, 200, 200, 429]
        refused(responses[3], 429, "rate_limited")
        assert int(responses[3].headers["retry-after"]) >= 1
        ok(await node.plain.get("/channels"))


async def test_unparseable_values_are_400(api: Api) -> None:
    """Channels D8: bodies and query values of the wrong form, on every kind of route."""
    channel = unique()
    ack = await api.publish(channel, "x")
    path = message_path(channel, ack["message_serial"])
    for body in (b"", b"[]", b"{", b'"x"', b"\xff", b'{"data":1e999}', b'{"data":"x","data":"y"}'):
        for route in (f"{path}/update", f"{path}/append", "/events", "/batch_events"):
            refused(await api.request("POST", route, body), 400, "invalid_input")
    for query in ({"limit": "x"}, {"start_serial": "1.5"}, {"start_time_ms": "now"}):
        refused(await api.get(f"{channel_path(channel)}/history", **query), 400, "invalid_input")
    assert len((await api.versions(channel, ack["message_serial"]))["items"]) == 1


async def test_numbers_are_kept_as_they_were_written(node: ChannelsNode, api: Api) -> None:
    """Data of an update is the application's JSON, to the digit."""
    channel = unique()
    ack = await api.publish(channel, "x")
    path = message_path(channel, ack["message_serial"])
    body = b'{"data":{"big":12345678901234567890123,"precise":0.10000000000000000001,"e":1.50}}'
    assert (await api.request("POST", f"{path}/update", body)).status_code == 200
    raw = (await api.get(path)).text
    for digits in ("12345678901234567890123", "0.10000000000000000001", "1.50"):
        assert digits in raw
