"""Checks 26-29 of the channels contract: what subscribers of either protocol are sent."""

import asyncio
from typing import Any

import pytest

from support.channels.peer import (
    UUID4,
    VERSION_SERIAL,
    Api,
    ChannelsNode,
    headers_of,
    nothing_else,
    plain_frame,
    refused,
    unique,
)
from support.channels.sdk import sdk_client

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:ConnectionClosed:DeprecationWarning"),  # in sockudo-python
]


async def test_check_26_v2_create_frame(node: ChannelsNode, api: Api) -> None:
    """Exactly: the published name (channels D3), the data, ids, extras with the five headers."""
    channel = unique()
    async with node.v2() as v2:
        head = await v2.subscribe(channel)
        extras = {"headers": {"tenant": "acme", "n": 1, "b": False}, "echo": True}
        key = unique("key")  # is never sent
        ack = await api.publish(
            channel, {"text": "hi"}, extras=extras, tags={"kind": "note"}, idempotency_key=key
        )
        frame = await v2.receive()
        item = await api.item(channel, ack["message_serial"])
        message_id, stamp = frame.pop("message_id"), item["version"]["timestamp_ms"]
        assert UUID4.fullmatch(message_id)
        assert frame == {
            "event": "chat.message",
            "channel": channel,
            "data": '{"text":"hi"}',
            "stream_id": head["stream_id"],
            "serial": ack["delivery_serial"],
            "tags": {"kind": "note"},
            "extras": {
                "headers": headers_of("create", ack, stamp, tenant="acme", n=1, b=False),
                "echo": True,
            },
        }
        assert ack["delivery_serial"] == 1
        assert VERSION_SERIAL.fullmatch(ack["message_serial"])
        assert int(ack["message_serial"].partition(":")[0]) == stamp
        # The stored projection has the internal name, and the published one beside it.
        assert (item["event"], item["name"]) == ("sockudo:message.create", "chat.message")
        [row] = (await api.history(channel))["items"]
        assert (row["event_name"], row["message_id"]) == ("sockudo:message.create", message_id)
        await api.publish(channel, socket_id="1.1")
        async with node.v2() as ana:
            await ana.signin("ana")
            await api.publish(channel, socket_id=ana.socket_id)
        assert "user_id" not in await v2.receive()
        assert (await v2.receive())["user_id"] == "ana"


async def test_check_27_v1_sees_creates_only(node: ChannelsNode, api: Api) -> None:
    """A create is event, channel and data to the byte; mutations are not sent at all."""
    channel = unique()
    async with node.v1() as v1, node.v2() as v2:
        for peer in (v1, v2):
            await peer.subscribe(channel)
        extras = {"headers": {"tenant": "acme"}}
        ack = await api.publish(channel, "Hel", extras=extras, tags={"kind": "note"})
        serial = ack["message_serial"]
        await api.mutate("append", channel, serial, data="lo")
        await api.mutate("update", channel, serial, data="new")
        await api.mutate("delete", channel, serial)
        await api.publish(channel, "x", name="sockudo:custom")
        assert await v1.receive() == {"event": "chat.message", "channel": channel, "data": "Hel"}
        assert await v1.receive() == {"event": "pusher:custom", "channel": channel, "data": "x"}
        for event in ("chat.message", *(f"sockudo:message.{a}" for a in MUTATIONS)):
            await v2.expect(event, channel)
        await v2.expect("sockudo:custom", channel)
        await nothing_else(api, channel, v1, v2)


MUTATIONS = ("append", "update", "delete")


async def test_check_28_message_ids_of_mutations(node: ChannelsNode, api: Api) -> None:
    """Each version has its own id (channels D2), so the SDK's deduplication drops none of them."""
    channel = unique()
    seen: list[tuple[str, Any]] = []
    done = asyncio.Event()
    async with node.v2() as v2, sdk_client(node) as client:
        await v2.subscribe(channel)
        subscribed = asyncio.Event()
        room = client.subscribe(channel)
        room.bind("sockudo:subscription_succeeded", lambda *_: subscribed.set())
        names = ("chat.message", *(f"sockudo:message.{action}" for action in MUTATIONS))
        for name in names:
            room.bind(name, lambda data, _, name=name: seen.append((name, data)))
        room.bind("marker", lambda *_: done.set())
        async with asyncio.timeout(10):
            await subscribed.wait()
            ack = await api.publish(channel, "Hel")
            serial = ack["message_serial"]
            await api.mutate("append", channel, serial, data="lo")
            await api.mutate("append", channel, serial, data=" you")
            await api.mutate("update", channel, serial, data="one")
            await api.mutate("update", channel, serial, data="two")
            await api.mutate("delete", channel, serial)
            frames = [await v2.receive() for _ in range(6)]
            await nothing_else(api, channel, v2)
            await done.wait()
    ids = [frame["message_id"] for frame in frames]
    assert len(set(ids)) == 6
    assert all(UUID4.fullmatch(message_id) for message_id in ids)
    assert seen == [
        ("chat.message", "Hel"),
        ("sockudo:message.append", "lo"),
        ("sockudo:message.append", " you"),
        ("sockudo:message.update", "one"),
        ("sockudo:message.update", "two"),
        ("sockudo:message.delete", "two"),
    ]


async def test_check_29_stream_id_and_serials(node: ChannelsNode, api: Api) -> None:
    """One stream id per channel; serials go up by one per committed operation, by none else."""
    channel, other = unique(), unique()
    async with node.v2() as v2:
        head = await v2.subscribe(channel)
        elsewhere = await v2.subscribe(other)
        assert head["stream_id"] != elsewhere["stream_id"]
        first = await api.publish(channel, "a")
        serial = first["message_serial"]
        await api.publish(other, "x")
        acks = [first, await api.mutate("append", channel, serial, data="b")]
        refused(await api.try_mutate("append", channel, serial, data=""), 400, "invalid_input")
        acks.append(await api.mutate("update", channel, serial, data="c", op_id="o"))
        again = await api.mutate("update", channel, serial, data="c", op_id="o")
        assert again["status"] == "duplicate"
        await api.events(channel, data="gone", extras={"ephemeral": True})
        second = await api.publish(channel, "d")
        acks += [second, await api.mutate("delete", channel, serial)]
        assert [ack["delivery_serial"] for ack in acks] == [1, 2, 3, 4, 5]
        assert [ack["history_serial"] for ack in acks] == [1, 1, 1, 2, 1]
        frames = [await v2.receive() for _ in range(7)]
        own = [frame for frame in frames if frame["channel"] == channel and "serial" in frame]
        assert [frame["serial"] for frame in own] == [1, 2, 3, 4, 5]
        assert {frame["stream_id"] for frame in own} == {head["stream_id"]}
        versions = [frame["extras"]["headers"]["sockudo_version_serial"] for frame in own]
        assert versions == [ack["version_serial"] for ack in acks]
        assert versions == sorted(set(versions)), "compared as text they go up"
        [foreign] = [frame for frame in frames if frame["channel"] == other]
        assert (foreign["serial"], foreign["stream_id"]) == (1, elsewhere["stream_id"])


# Beyond the numbered checks.


async def test_every_mutation_frame_in_full(node: ChannelsNode, api: Api) -> None:
    """5.9: kept extras, name, data, `user_id` of the version, five headers of that version."""
    channel = unique()
    async with node.v2() as v2:
        head = await v2.subscribe(channel)
        ack = await api.publish(channel, "Hel", extras={"headers": {"tenant": "acme"}})
        serial = ack["message_serial"]
        create = await v2.receive()
        for action, body, data in (
            ("append", {"data": "lo", "client_id": "ana"}, "lo"),
            ("update", {"data": {"n": 1}, "description": "edited"}, {"n": 1}),
            ("update", {"name": "renamed", "client_id": "bo"}, {"n": 1}),
            ("delete", {}, {"n": 1}),
        ):
            answer = await api.mutate(action, channel, serial, **body)
            assert answer == {
                "channel": channel,
                "message_serial": serial,
                "action": action,
                "accepted": True,
                "version_serial": answer["version_serial"],
                "history_serial": 1,
                "delivery_serial": answer["delivery_serial"],
                "status": "applied",
            }
            item = await api.item(channel, serial)
            frame = await v2.receive()
            assert frame.pop("message_id") != create["message_id"]
            expected = {
                "event": f"sockudo:message.{action}",
                "channel": channel,
                "name": item["name"],
                "data": data,
                "stream_id": head["stream_id"],
                "serial": answer["delivery_serial"],
                "extras": {
                    "headers": headers_of(
                        action, answer, item["version"]["timestamp_ms"], tenant="acme"
                    )
                },
            }
            if "client_id" in body:
                expected["user_id"] = body["client_id"]
            assert frame == expected
            assert item["extras"] == frame["extras"], "reads show the same headers (channels D11)"


async def test_runtime_headers_cannot_be_given(node: ChannelsNode, api: Api) -> None:
    """What a publisher writes under their names is replaced, in frames and in answers."""
    channel = unique()
    forged = {
        "sockudo_action": "message.delete",
        "sockudo_message_serial": "x",
        "sockudo_version_serial": "x",
        "sockudo_version_timestamp_ms": 1,
        "sockudo_history_serial": 99,
        "own": "kept",
    }
    async with node.v2() as v2:
        await v2.subscribe(channel)
        ack = await api.publish(channel, "x", extras={"headers": forged})
        update = {"extras": {"headers": forged}}
        answer = await api.mutate("update", channel, ack["message_serial"], **update)
        item = await api.item(channel, ack["message_serial"])
        shown = [(await v2.receive())["extras"], (await v2.receive())["extras"], item["extras"]]
        results = (("create", ack), ("update", answer), ("update", answer))
        for extras, (action, result) in zip(shown, results, strict=True):
            stamp = extras["headers"]["sockudo_version_timestamp_ms"]
            assert stamp > 1
            assert extras == {"headers": headers_of(action, result, stamp, own="kept")}


async def test_all_sockets_get_the_same_frame(node: ChannelsNode, api: Api) -> None:
    """Frames of two sockets of one channel are the same frame, id included."""
    channel = unique()
    async with node.v2() as one, node.v2(append_mode="full") as two:
        for peer in (one, two):
            await peer.subscribe(channel)
        ack = await api.publish(channel, "x")
        await api.mutate("update", channel, ack["message_serial"], data="y")
        for _ in range(2):
            first, second = await one.receive(), await two.receive()
            assert first == second
            assert plain_frame(first)["data"] in ("x", "y")


async def test_order_under_load(node: ChannelsNode, api: Api) -> None:
    """Publishes of many requests at once: every subscriber sees 1, 2, 3 ... without a gap."""
    channel = unique()
    async with node.v2() as one, node.v2() as two, node.v1() as old:
        for peer in (one, two, old):
            await peer.subscribe(channel)
        acks = await asyncio.gather(*(api.publish(channel, str(n)) for n in range(40)))
        assert sorted(ack["delivery_serial"] for ack in acks) == list(range(1, 41))
        by_serial = {ack["delivery_serial"]: str(n) for n, ack in enumerate(acks)}
        for peer in (one, two):
            frames = [await peer.receive() for _ in range(40)]
            assert [frame["serial"] for frame in frames] == list(range(1, 41))
            assert [frame["data"] for frame in frames] == [by_serial[n] for n in range(1, 41)]
        seen = [(await old.receive())["data"] for _ in range(40)]
        assert seen == [by_serial[n] for n in range(1, 41)]
