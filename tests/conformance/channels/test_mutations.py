"""Checks 30-48 of the channels contract: update, delete, append, and reading versions."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.channels.peer import (
    Api,
    ChannelsNode,
    channels_server,
    headers_of,
    message_path,
    nothing_else,
    ok,
    refused,
    unique,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SpareStore = Callable[[], Awaitable[str]]
Stores = Callable[[str], Awaitable[str]]
ACME = {"headers": {"tenant": "acme"}}
MUTATIONS = ("update", "delete", "append")


def status(value: str, part: str = "transport") -> dict[str, Any]:
    """Extras with a stream's status."""
    return {"ai": {part: {"status": value}}}


async def snapshot(api: Api, channel: str, serial: str) -> tuple[Any, ...]:
    """Everything that a refused request must leave as it is."""
    page = await api.history(channel)
    return (
        await api.item(channel, serial),
        await api.versions(channel, serial),
        page["items"],
        page["continuity"],
    )


async def test_check_30_update_data_only(node: ChannelsNode, api: Api) -> None:
    """Name and extras stay; the item has the new action, the old place and a new serial."""
    channel = unique()
    ack = await api.publish(channel, "old", extras=ACME)
    await api.publish(channel)
    answer = await api.mutate("update", channel, ack["message_serial"], data="new")
    item = await api.item(channel, ack["message_serial"])
    stamp = item["version"].pop("timestamp_ms")
    assert isinstance(stamp, int)
    assert item == {
        "event": "sockudo:message.update",
        "channel": channel,
        "data": "new",
        "name": "chat.message",
        "serial": 3,
        "extras": {"headers": headers_of("update", answer, stamp, tenant="acme")},
        "action": "update",
        "message_serial": ack["message_serial"],
        "history_serial": 1,
        "delivery_serial": 3,
        "version": {"serial": answer["version_serial"]},
    }
    assert (ack["history_serial"], ack["delivery_serial"]) == (1, 1)
    assert answer["version_serial"] > ack["version_serial"]


async def test_check_31_null_keeps(api: Api) -> None:
    """JSON null means keep, and a description alone is enough for an update."""
    channel = unique()
    ack = await api.publish(channel, "kept", extras=ACME)
    body = {"data": None, "name": None, "extras": None, "description": "why", "metadata": {"n": 1}}
    await api.mutate("update", channel, ack["message_serial"], **body)
    item = await api.item(channel, ack["message_serial"])
    assert (item["data"], item["name"], item["action"]) == ("kept", "chat.message", "update")
    assert item["extras"]["headers"]["tenant"] == "acme"
    assert (item["version"]["description"], item["version"]["metadata"]) == ("why", {"n": 1})
    await api.mutate("update", channel, ack["message_serial"], data="")  # a value like any other
    item = await api.item(channel, ack["message_serial"])
    assert item["data"] == ""
    assert "description" not in item["version"], "that was the version before"


async def test_check_32_clear_fields(node: ChannelsNode, api: Api) -> None:
    """A cleared field has no key, in the item nor in the frame; the five headers are there."""
    channel = unique()
    async with node.v2() as v2:
        await v2.subscribe(channel)
        ack = await api.publish(channel, "x", extras=ACME)
        serial = ack["message_serial"]
        await v2.receive()
        for action, field in (("update", "data"), ("update", "extras"), ("delete", "name")):
            answer = await api.mutate(action, channel, serial, clear_fields=[field])
            item, frame = await api.item(channel, serial), await v2.receive()
            assert "data" not in item
            assert "data" not in frame
            assert ("name" in item, "name" in frame) == ((field != "name"),) * 2
            own = {"tenant": "acme"} if field == "data" else {}
            stamp = item["version"]["timestamp_ms"]
            expected = {"headers": headers_of(action, answer, stamp, **own)}
            assert frame["extras"] == item["extras"] == expected
        everything = ["name", "data", "extras"]
        second = await api.publish(channel, "x", extras=ACME)
        await api.mutate("delete", channel, second["message_serial"], clear_fields=everything)
        item = await api.item(channel, second["message_serial"])
        assert {"name", "data"}.isdisjoint(item)
        assert item["action"] == "delete"


async def test_check_33_patches_that_make_no_sense(api: Api) -> None:
    """Contradictory, duplicate, unknown and empty patches are refused and change nothing."""
    channel = unique()
    ack = await api.publish(channel, "x")
    serial = ack["message_serial"]
    before = await snapshot(api, channel, serial)

    async def text(action: str, **body: Any) -> str:
        response = await api.try_mutate(action, channel, serial, **body)
        return refused(response, 400, "invalid_input")

    for action in ("update", "delete"):
        both = f"{action} request cannot both replace and clear the same field"
        assert both in await text(action, data="y", clear_fields=["data"])
        assert both in await text(action, extras={}, clear_fields=["extras"])
        doubled = await text(action, clear_fields=["data", "data"])
        assert "clear_fields must not contain duplicates" in doubled
        for wrong in (["message_id"], ["Data"], "data", [7], {"data": True}):
            await text(action, clear_fields=wrong)
        for field, value in (("extras", []), ("extras", "x"), ("client_id", 7), ("name", 7)):
            if (action, field) != ("delete", "name"):
                await text(action, **{field: value, "description": "d"})
        await text(action, description=7)
    nothing = "update request must include at least one patch field or operation metadata"
    assert nothing in await text("update")
    assert nothing in await text("update", socket_id="1.1")
    assert nothing in await text("update", data=None, clear_fields=[], description=None)
    assert nothing in await text("update", unknown=1)
    await text("update", name="y", clear_fields=["name"])
    assert await snapshot(api, channel, serial) == before
    for body in ({"client_id": "a"}, {"metadata": 1}, {"op_id": "o"}, {"name": "n"}):
        await api.mutate("update", channel, serial, **body)


async def test_check_34_extras_are_replaced_whole(api: Api) -> None:
    """No merge: an old header is gone."""
    channel = unique()
    ack = await api.publish(channel, "x", extras={"headers": {"tenant": "acme", "n": 1}})
    new = {"headers": {"other": "y"}, "echo": False}
    answer = await api.mutate("update", channel, ack["message_serial"], extras=new)
    item = await api.item(channel, ack["message_serial"])
    headers = headers_of("update", answer, item["version"]["timestamp_ms"], other="y")
    assert item["extras"] == {"headers": headers, "echo": False}
    assert item["data"] == "x"


async def test_check_35_delete(node: ChannelsNode, api: Api) -> None:
    """A delete with `{}` clears nothing; the message is still read and can be changed."""
    channel = unique()
    async with node.v2() as v2:
        await v2.subscribe(channel)
        ack = await api.publish(channel, "kept", extras=ACME)
        serial = ack["message_serial"]
        answer = await api.mutate("delete", channel, serial)
        assert (answer["action"], answer["delivery_serial"]) == ("delete", 2)
        item = await api.item(channel, serial)
        assert (item["action"], item["event"]) == ("delete", "sockudo:message.delete")
        assert (item["data"], item["name"]) == ("kept", "chat.message")
        await api.mutate("update", channel, serial, data="again")
        item = await api.item(channel, serial)
        assert (item["action"], item["data"]) == ("update", "again")
        await api.mutate("delete", channel, serial, data="gone", name="ignored", extras={})
        item = await api.item(channel, serial)  # channels D17: a name in a delete is not read
        assert (item["data"], item["name"]) == ("gone", "chat.message")
        assert "tenant" not in item["extras"]["headers"]
        await api.mutate("append", channel, serial, data="!")
        assert (await api.item(channel, serial))["data"] == "gone!"
        frames = [await v2.receive() for _ in range(5)]
        assert [frame["data"] for frame in frames] == ["kept", "kept", "again", "gone", "!"]


async def test_check_36_append(node: ChannelsNode, api: Api) -> None:
    """The data grows; a delta socket is sent the fragment, a full one the whole."""
    channel = unique()
    async with node.v2(append_mode="delta") as delta, node.v2(append_mode="full") as full:
        for peer in (delta, full):
            await peer.subscribe(channel)
        ack = await api.publish(channel, "Hel", extras=ACME)
        serial = ack["message_serial"]
        for peer in (delta, full):
            assert (await peer.receive())["data"] == "Hel"
        whole = "Hel"
        for fragment in ("lo", " ", "wörld", "\U0001f30a", '"{\\'):
            whole += fragment
            answer = await api.mutate("append", channel, serial, data=fragment)
            assert answer["action"] == "append"
            one = await delta.expect("sockudo:message.append", channel)
            two = await full.expect("sockudo:message.append", channel)
            assert (one.pop("data"), two.pop("data")) == (fragment, whole)
            assert one == two
            assert one["extras"]["headers"]["tenant"] == "acme"
            item = await api.item(channel, serial)
            assert (item["data"], item["action"]) == (whole, "append")
        await api.mutate("append", channel, serial, data=".", extras={"headers": {"end": True}})
        item = await api.item(channel, serial)
        assert item["data"] == whole + "."
        assert "tenant" not in item["extras"]["headers"]
        assert item["extras"]["headers"]["end"] is True


async def test_check_37_appends_that_cannot_be(api: Api) -> None:
    """Empty, missing and non-string fragments, and data that is no string; nothing changes."""
    channel = unique()
    ack = await api.publish(channel, "x")
    serial = ack["message_serial"]
    before = await snapshot(api, channel, serial)
    text = refused(await api.try_mutate("append", channel, serial, data=""), 400, "invalid_input")
    assert "append request data must not be empty" in text
    refused(await api.try_mutate("append", channel, serial), 400, "invalid_input")
    wrong: Any
    for wrong in (5, None, {}, ["x"], True):
        response = await api.try_mutate("append", channel, serial, data=wrong)
        refused(response, 400, "invalid_input")
    assert await snapshot(api, channel, serial) == before
    await api.mutate("update", channel, serial, data={"a": 1})
    before = await snapshot(api, channel, serial)
    text = refused(await api.try_mutate("append", channel, serial, data="y"), 400, "invalid_input")
    assert "append requires string message data" in text
    assert await snapshot(api, channel, serial) == before


async def test_check_38_append_to_cleared_data(api: Api) -> None:
    """Without data the fragment becomes the data, after a delete as well."""
    channel = unique()
    ack = await api.publish(channel, "x")
    serial = ack["message_serial"]
    for action in ("update", "delete"):
        await api.mutate(action, channel, serial, clear_fields=["data"])
        await api.mutate("append", channel, serial, data="frag")
        assert (await api.item(channel, serial))["data"] == "frag"


async def test_check_39_terminal(api: Api) -> None:
    """An ended stream takes no append, but an update, which may open it again."""
    for ending in ("complete", "cancelled"):
        channel = unique()
        ack = await api.publish(channel, "a", extras=status("streaming"))
        serial = ack["message_serial"]
        last = {"data": "b", "extras": status(ending), "op_id": "last"}
        await api.mutate("append", channel, serial, **last)
        before = await snapshot(api, channel, serial)
        for body in ({"data": "c"}, {"data": "c", "extras": status("streaming")}, {"data": ""}):
            response = await api.try_mutate("append", channel, serial, **body)
            refused(response, 400, "invalid_input")
        response = await api.try_mutate("append", channel, serial, data="c")
        assert "cannot append to a terminal message" in refused(response, 400, "invalid_input")
        again = await api.mutate("append", channel, serial, **last)
        assert again["status"] == "duplicate", "a retry of the last one is not refused"
        assert await snapshot(api, channel, serial) == before
        await api.mutate("update", channel, serial, data="new")
        response = await api.try_mutate("append", channel, serial, data="c")
        refused(response, 400, "invalid_input")
        await api.mutate("update", channel, serial, extras=status("streaming"))
        await api.mutate("append", channel, serial, data="!")
        assert (await api.item(channel, serial))["data"] == "new!"
        born = await api.publish(channel, "whole", extras=status(ending))
        response = await api.try_mutate("append", channel, born["message_serial"], data="c")
        refused(response, 400, "invalid_input")
        codec = await api.publish(channel, "a", extras=status(ending, "codec"))
        await api.mutate("append", channel, codec["message_serial"], data="b")


async def test_check_40_op_id(node: ChannelsNode, api: Api) -> None:
    """A repeated operation answers its first result; another payload under its id is refused."""
    channel = unique()
    bodies: dict[str, dict[str, Any]] = {
        "append": {"data": "b"},
        "update": {"data": "new", "description": "d"},
        "delete": {"extras": {"headers": {"n": 1}}},
    }
    async with node.v2() as v2:
        await v2.subscribe(channel)
        ack = await api.publish(channel, "a")
        serial = ack["message_serial"]
        await v2.receive()
        for action, body in bodies.items():
            first = await api.mutate(action, channel, serial, op_id="op", **body)
            assert first["status"] == "applied", "another action is another operation"
            before = await snapshot(api, channel, serial)
            again = await api.mutate(action, channel, serial, op_id="op", **body)
            assert again == {**first, "status": "duplicate"}
            for other in (
                {**body, "data": "other"},
                {**body, "client_id": "x"},
                {**body, "description": "x"},
                {**body, "metadata": 1},
            ):
                response = await api.try_mutate(action, channel, serial, op_id="op", **other)
                text = refused(response, 400, "invalid_input")
                assert "idempotency key was already used with a different payload" in text
            assert await snapshot(api, channel, serial) == before
            await v2.expect(f"sockudo:message.{action}", channel)
        await nothing_else(api, channel, v2)
        other_message = await api.publish(channel, "a")
        answer = await api.mutate(
            "append", channel, other_message["message_serial"], op_id="op", data="x"
        )
        assert answer["status"] == "applied"
        again = await api.mutate("append", channel, serial, op_id="op", data="b")
        assert (again["status"], again["delivery_serial"]) == ("duplicate", 2)


async def test_check_41_op_id_length(api: Api) -> None:
    """1 to 64 bytes."""
    channel = unique()
    ack = await api.publish(channel, "a")
    wrong: Any
    for wrong in ("", "o" * 65, "ä" * 33):
        for action in MUTATIONS:
            response = await api.try_mutate(
                action, channel, ack["message_serial"], op_id=wrong, data="x"
            )
            assert "op_id must be 1..=64 bytes" in refused(response, 400, "invalid_input")
    for wrong in (7, [], {}):
        response = await api.try_mutate(
            "update", channel, ack["message_serial"], op_id=wrong, data="x"
        )
        refused(response, 400, "invalid_input")
    for right in ("o", "ä" * 32):
        await api.mutate("append", channel, ack["message_serial"], op_id=right, data="x")
    assert (await api.item(channel, ack["message_serial"]))["data"] == "axx"


TOO_LARGE = (
    "accumulated message content exceeds 100 bytes "
    "(setting channels.ai_transport.max_accumulated_message_bytes)"
)
SMALL = {
    "max_accumulated_message_bytes": 100,
    "max_appends_per_message": 3,
    "max_open_streaming_messages_per_channel": 2,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small_node(
    stores: Stores, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ChannelsNode]:
    """A server with those limits."""
    folder = tmp_path_factory.mktemp("small")
    async with channels_server(folder, await stores("small"), ai_transport=SMALL) as node:
        yield node


async def test_check_42_accumulated_bytes(small_node: ChannelsNode) -> None:
    """The limit holds for append, update and create, in bytes, to the byte."""
    api, channel = small_node.api, unique()
    ack = await api.publish(channel, "x" * 90)
    serial = ack["message_serial"]
    await api.mutate("append", channel, serial, data="é" * 5, op_id="fits")
    before = await snapshot(api, channel, serial)
    for action, body in (
        ("append", {"data": "y"}),
        ("update", {"data": "z" * 101}),
        ("update", {"data": {"n": "z" * 93}}),
    ):
        response = await api.try_mutate(action, channel, serial, **body)
        text = refused(response, 413, "payload_too_large", ai_code=40009)
        assert text == TOO_LARGE
    response = await api.events(channel, data="x" * 101)
    text = refused(response, 413, "payload_too_large", ai_code=40009)
    assert text == TOO_LARGE
    assert await snapshot(api, channel, serial) == before
    again = await api.mutate("append", channel, serial, data="é" * 5, op_id="fits")
    assert again["status"] == "duplicate", "found before any limit is looked at"
    answer = await api.mutate("update", channel, serial, data={"n": "z" * 92})
    assert answer["delivery_serial"] == 3, "what was refused took no serial"
    assert (await api.publish(channel, "x" * 100))["delivery_serial"] == 4


async def test_check_43_append_count(small_node: ChannelsNode) -> None:
    """The fourth append of three is refused; so is the third open stream of two."""
    api, channel = small_node.api, unique()
    ack = await api.publish(channel, "")
    serial = ack["message_serial"]
    for number in range(3):
        await api.mutate("append", channel, serial, data=str(number), op_id=str(number))
    before = await snapshot(api, channel, serial)
    response = await api.try_mutate("append", channel, serial, data="x")
    text = refused(response, 413, "payload_too_large", ai_code=40009)
    setting = "channels.ai_transport.max_appends_per_message"
    assert text == f"message append count exceeds 3 (setting {setting})"
    assert await snapshot(api, channel, serial) == before
    again = await api.mutate("append", channel, serial, data="2", op_id="2")
    assert again["status"] == "duplicate"
    await api.mutate("update", channel, serial, data="other")
    response = await api.try_mutate("append", channel, serial, data="x")
    refused(response, 413, "payload_too_large", ai_code=40009)

    streams = [await api.publish(channel, "s", extras=status("streaming")) for _ in range(2)]
    setting = "channels.ai_transport.max_open_streaming_messages_per_channel"
    full = f"open streaming message count exceeds 2 (setting {setting})"
    response = await api.events(channel, data="s", extras=status("streaming"))
    assert refused(response, 413, "payload_too_large", ai_code=40009) == full
    response = await api.try_mutate("update", channel, serial, extras=status("streaming"))
    assert refused(response, 413, "payload_too_large", ai_code=40009) == full
    first = streams[0]["message_serial"]
    await api.mutate("append", channel, first, data="", extras=status("complete"))
    await api.mutate("update", channel, serial, extras=status("streaming"))
    response = await api.events(channel, data="s", extras=status("streaming"))
    assert refused(response, 413, "payload_too_large", ai_code=40009) == full


async def test_check_44_serials_in_the_path(api: Api) -> None:
    """What cannot be a serial is 400, what could be one and is none is 404."""
    channel = unique()
    await api.publish(channel, "x")
    long, spaced = "s" * 129, "a b"
    for serial, text in (
        (long, "message_serial must be at most 128 bytes"),
        (spaced, "must not contain whitespace"),
        ("a\tb", "must not contain whitespace"),
    ):
        for action in MUTATIONS:
            response = await api.try_mutate(action, channel, serial, data="x")
            assert text in refused(response, 400, "invalid_input")
        for suffix in ("", "/versions"):
            response = await api.get(message_path(channel, serial) + suffix)
            assert text in refused(response, 400, "invalid_input")
    for serial in ("s" * 128, "0", "00000001760000000123:n:00000000000000000001"):
        missing = f"Message '{serial}' was not found in channel '{channel}'"
        for action in MUTATIONS:
            response = await api.try_mutate(action, channel, serial, data="x")
            assert refused(response, 404, "not_found") == missing
        for suffix in ("", "/versions"):
            response = await api.get(message_path(channel, serial) + suffix)
            assert refused(response, 404, "not_found") == missing
    for wrong in ("a b", "c" * 201):
        response = await api.try_mutate("update", wrong, "0", data="x")
        refused(response, 400, "invalid_input")
        refused(await api.get(message_path(wrong, "0")), 400, "invalid_input")


async def test_check_44_a_message_of_another_channel_or_app(node: ChannelsNode, api: Api) -> None:
    """It is 404 there, also while its state is in memory; nothing has changed, in neither place."""
    channel, other = unique(), unique()
    serial = (await api.publish(channel, "mine"))["message_serial"]
    await api.mutate("append", channel, serial, data=" alone")
    await api.publish(other, "x")
    plain = node.plain
    await plain.publish(channel, "x")
    before = await snapshot(api, channel, serial)
    beside = await plain.history(channel), await api.history(other)
    for asked, where in ((api, other), (plain, channel), (plain, other), (api, unique())):
        missing = f"Message '{serial}' was not found in channel '{where}'"
        for action in MUTATIONS:
            response = await asked.try_mutate(action, where, serial, data="x", op_id=unique())
            assert refused(response, 404, "not_found") == missing
        for suffix in ("", "/versions"):
            response = await asked.get(message_path(where, serial) + suffix)
            assert refused(response, 404, "not_found") == missing
    assert await snapshot(api, channel, serial) == before
    assert (await plain.history(channel), await api.history(other)) == beside


async def test_check_45_pages_of_versions(api: Api) -> None:
    """Newest first by default; pages in both directions cover all versions without overlap."""
    channel = unique()
    ack = await api.publish(channel, "0")
    serial = ack["message_serial"]
    serials = [ack["version_serial"]]
    for number in range(1, 5):
        answer = await api.mutate("update", channel, serial, data=str(number))
        serials.append(answer["version_serial"])
    page = await api.versions(channel, serial)
    assert page | {"items": 0} == {
        "channel": channel,
        "direction": "newest_first",
        "limit": 100,
        "has_more": False,
        "items": 0,
    }
    assert [item["version"]["serial"] for item in page["items"]] == serials[::-1]
    for direction, expected in (("newest_first", serials[::-1]), ("oldest_first", serials)):
        seen: list[str] = []
        params: dict[str, Any] = {"limit": 2, "direction": direction}
        for size, has_more in ((2, True), (2, True), (1, False)):
            page = await api.versions(channel, serial, **params)
            assert (page["direction"], page["limit"]) == (direction, 2)
            assert (len(page["items"]), page["has_more"]) == (size, has_more)
            seen += [item["version"]["serial"] for item in page["items"]]
            assert ("next_cursor" in page) is has_more
            if has_more:
                assert page["next_cursor"] == seen[-1]
                params["cursor"] = page["next_cursor"]
        assert seen == expected
    assert (await api.versions(channel, serial, limit=1000))["limit"] == 100
    exact = await api.versions(channel, serial, limit=5)
    assert (exact["has_more"], "next_cursor" in exact) == (False, False)
    path = f"{message_path(channel, serial)}/versions"
    for limit in ("0", "-1", "x", "1.5", ""):
        response = await api.get(path, limit=limit)
        text = refused(response, 400, "invalid_input")
        if limit == "0":
            assert text == "versions limit must be greater than 0"
    for direction in ("backwards", "forwards", "NEWEST_FIRST", ""):
        refused(await api.get(path, direction=direction), 400, "invalid_input")
    for cursor in ("a b", "c" * 129):
        refused(await api.get(path, cursor=cursor), 400, "invalid_input")


async def test_check_46_fragments_and_aggregates(api: Api) -> None:
    """Versions show what each append added, the message and the history what came of it."""
    channel = unique()
    ack = await api.publish(channel, "a")
    serial = ack["message_serial"]
    for fragment in ("b", "c"):
        await api.mutate("append", channel, serial, data=fragment)
    await api.mutate("update", channel, serial, data="new")
    await api.mutate("append", channel, serial, data="!")
    page = await api.versions(channel, serial, direction="oldest_first")
    assert [(item["action"], item["data"]) for item in page["items"]] == [
        ("create", "a"),
        ("append", "b"),
        ("append", "c"),
        ("update", "new"),
        ("append", "!"),
    ]
    assert [item["serial"] for item in page["items"]] == [1, 2, 3, 4, 5]
    assert {item["history_serial"] for item in page["items"]} == {1}
    item = await api.item(channel, serial)
    assert item["data"] == "new!"
    [row] = (await api.history(channel))["items"]
    assert row["message"] == item
    for item in page["items"]:
        headers = item["extras"]["headers"]
        assert headers["sockudo_action"] == f"message.{item['action']}"
        assert headers["sockudo_version_serial"] == item["version"]["serial"]
        assert headers["sockudo_version_timestamp_ms"] == item["version"]["timestamp_ms"]


async def test_check_47_versioned_messages_off(tmp_path: Path, spare_store: SpareStore) -> None:
    """All five routes say so; publishes are ordinary events with a place in the history."""
    off = {"enabled": False}
    async with channels_server(tmp_path, await spare_store(), versioned_messages=off) as node:
        await assert_not_versioned(node, has_history=True)


async def test_check_47_without_history(tmp_path: Path, spare_store: SpareStore) -> None:
    """Versions need the channel's history: without it the same answers."""
    some = {"channels": ["kept-*"]}
    async with channels_server(tmp_path, await spare_store(), history=some) as node:
        await assert_not_versioned(node, has_history=False)
        assert "message_serial" in await node.api.publish(unique("kept"))


async def assert_not_versioned(node: ChannelsNode, *, has_history: bool) -> None:
    """Every message route answers 422, and events are delivered without versions."""
    api, channel = node.api, unique()
    serial = "00000001760000000123:n:00000000000000000001"
    disabled = f"Versioned messages are disabled for channel '{channel}'"
    if has_history:
        disabled += " (setting channels.versioned_messages.enabled)"
    responses = [
        await api.get(message_path(channel, serial)),
        await api.get(f"{message_path(channel, serial)}/versions"),
        *[await api.try_mutate(action, channel, serial, data="x") for action in MUTATIONS],
    ]
    for response in responses:
        text = refused(response, 422, "feature_disabled")
        assert text.startswith(disabled)
    response = await api.try_mutate("append", channel, serial, data="")  # the body comes first
    refused(response, 400, "invalid_input")
    async with node.v1() as v1, node.v2() as v2:
        await v1.subscribe(channel)
        head = await v2.subscribe(channel)
        assert ("attach_serial" in head["data"]) is has_history
        response = await api.events(channel, data="", extras=status("streaming"))
        text = refused(response, 422, "feature_disabled")
        assert text.startswith(disabled), "nothing could be appended, so it is not begun"
        answer = await api.publish(channel, "x")
        assert set(answer) == {"acknowledgement_id", "subscription_count"}
        assert await v1.receive() == {"event": "chat.message", "channel": channel, "data": "x"}
        frame = await v2.receive()
        assert frame["message_id"] == answer["acknowledgement_id"]
        assert "sockudo_action" not in frame.get("extras", {}).get("headers", {})
        if has_history:
            assert frame["serial"] == 1
            [row] = (await api.history(channel))["items"]
            assert (row["serial"], row["operation_kind"]) == (1, "append")
            assert row["message"] == frame
            assert (row["event_name"], row["message_id"]) == ("chat.message", frame["message_id"])
        else:
            response = await api.get(f"/channels/{channel}/history")
            text = refused(response, 422, "feature_disabled")
            assert text.startswith(
                f"Durable history is disabled by policy for channel '{channel}' (setting channels."
            )


async def test_check_48_parallel_appends(node: ChannelsNode, api: Api) -> None:
    """All are applied, once each, and the serials have no gap."""
    channel = unique()
    async with node.v2() as delta, node.v2(append_mode="full") as full:
        for peer in (delta, full):
            await peer.subscribe(channel)
        ack = await api.publish(channel, "")
        serial = ack["message_serial"]
        fragments = [f"<{number}>" for number in range(20)]
        answers = await asyncio.gather(
            *(api.mutate("append", channel, serial, data=fragment) for fragment in fragments)
        )
        assert {answer["status"] for answer in answers} == {"applied"}
        assert sorted(answer["delivery_serial"] for answer in answers) == list(range(2, 22))
        assert len({answer["version_serial"] for answer in answers}) == 20
        order = sorted(range(20), key=lambda n: answers[n]["delivery_serial"])
        whole = "".join(fragments[n] for n in order)
        assert (await api.item(channel, serial))["data"] == whole
        assert all(whole.count(fragment) == 1 for fragment in fragments)
        for peer in (delta, full):
            frames = [await peer.receive() for _ in range(21)]
            assert [frame["serial"] for frame in frames] == list(range(1, 22))
            data = [frame["data"] for frame in frames]
            assert (data[-1] if peer is full else "".join(data)) == whole
    assert ok(await api.get(f"{message_path(channel, serial)}/versions", limit=100))["items"]
