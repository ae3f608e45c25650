"""Checks 16-25 of the channels contract: signatures, publishing, limits, idempotency."""

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from sockudo_http_python import (
    AsyncSockudo,
    Config,
    Event,
    MessageMutation,
    MessageVersionsParams,
    Status,
    TriggerOptions,
)

from support.channels.peer import (
    APP,
    PLAIN,
    UUID4,
    VERSION_SERIAL,
    Api,
    ChannelsNode,
    channel_path,
    message_path,
    nothing_else,
    ok,
    refused,
    unique,
)
from tidelog.channels.settings import App

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFLICT = "idempotency key was already used with a different payload"


def sdk(node: ChannelsNode) -> AsyncSockudo:
    """The server SDK, as its users configure it."""
    config = Config(app_id=APP.id, key=APP.key, secret=APP.secret, port=node.port)
    return AsyncSockudo(config)


async def rows(api: Api, channel: str) -> list[dict[str, Any]]:
    """The history of a channel, oldest first."""
    items: list[dict[str, Any]] = (await api.history(channel, direction="oldest_first"))["items"]
    return items


@pytest.mark.one_node
async def test_check_16_sdk_and_unusual_names(node: ChannelsNode) -> None:
    """The SDK's signature over the raw path holds for each call on such a channel (channels D7)."""
    channel = unique("room:a;b,c=d@e.f_g")
    async with sdk(node) as server, node.v2() as v2:
        await v2.subscribe(channel)
        result = await server.trigger(
            channel, "chat.message", "Hel", TriggerOptions(info=["subscription_count"])
        )
        assert result.ok, result
        serial = result.json()["channels"][channel]["message_serial"]
        assert (await server.append_message(channel, serial, "lo")).ok
        assert (await server.update_message(channel, serial, MessageMutation(name="n"))).ok
        assert (await server.delete_message(channel, serial)).ok
        got = await server.get_message(channel, serial)
        assert got.json()["item"]["data"] == "Hello"
        params = MessageVersionsParams(limit=2, direction="oldest_first")
        page = (await server.get_message_versions(channel, serial, params)).json()
        params.cursor = page["next_cursor"]
        rest = (await server.get_message_versions(channel, serial, params)).json()
        actions = [item["action"] for item in page["items"] + rest["items"]]
        assert actions == ["create", "append", "update", "delete"]
        history = await server.get_channel_history(channel)
        assert [item["serial"] for item in history.json()["items"]] == [1]
        state = (await server.get_channel_history_state(channel)).json()
        assert state["channel"] == channel
        assert (await server.get_channel(channel)).json()["occupied"] is True
        result = await server.trigger_batch([Event(channel, "a", {"n": 1}), Event(channel, "b", 2)])
        assert (result.ok, result.json()) == (True, {})
        wrong = Config(app_id=APP.id, key=APP.key, secret="wrong", port=node.port)
        async with AsyncSockudo(wrong) as stranger:
            assert (await stranger.get_message(channel, serial)).status is (
                Status.AUTHENTICATION_ERROR
            )


async def test_check_17_signature_failures(node: ChannelsNode, api: Api) -> None:
    """Anything that was not signed by this app's secret just now is refused, and does nothing."""
    channel = unique()
    body = json.dumps({"name": "n", "channel": channel, "data": "x"}).encode()
    tampered = body.replace(b'"x"', b'"y"')

    async def post(**options: Any) -> Any:
        return await api.request("POST", "/events", body, **options)

    refused(await post(sent=tampered), 401, "auth_failed")
    now = int(time.time())
    for timestamp in (now - 700, now + 700, "", "x", "1.5e9", -now):
        refused(await post(timestamp=timestamp), 401, "auth_failed")
    refused(await post(key=PLAIN.key), 401, "auth_failed")
    foreign = Api(node.api.url, node.client, App(id=APP.id, key=PLAIN.key, secret=PLAIN.secret))
    refused(await foreign.request("POST", "/events", body), 401, "auth_failed")
    refused(await post(key="no-such-key"), 404, "app_not_found")
    response = await node.client.post(f"{node.api.url}/apps/{APP.id}/events", content=body)
    refused(response, 400, "invalid_input")
    good = await post(timestamp=now - 590)
    assert good.status_code == 200
    url = str(good.request.url)
    signature = url.partition("auth_signature=")[2][:64]
    flipped = ("0" if signature[0] != "0" else "1") + signature[1:]
    response = await node.client.post(url.replace(signature, flipped), content=body)
    refused(response, 401, "auth_failed")
    response = await node.client.post(url.replace("auth_version=1.0", "auth_v=1"), content=body)
    refused(response, 401, "auth_failed")
    response = await node.client.post(url + "&info=user_count", content=body)
    refused(response, 401, "auth_failed")
    response = await api.get(f"{channel_path(channel)}/history", cursor="abc+/= &ä%2B;")
    refused(response, 400, "invalid_input")  # signed over the decoded value: not a 401
    assert len(await rows(api, channel)) == 1, "of all these only the good one was published"


async def test_check_18_body_md5(api: Api) -> None:
    """Required for POST, and of the body as sent; of a GET absent, or that of an empty body."""
    channel = unique()
    body = json.dumps({"name": "n", "channel": channel}).encode()
    refused(await api.request("POST", "/events", body, md5=None), 401, "auth_failed")
    refused(await api.request("POST", "/events", body, md5="0" * 32), 401, "auth_failed")
    empty = "d41d8cd98f00b204e9800998ecf8427e"
    assert "channels" in ok(await api.request("GET", "/channels", md5=empty))
    refused(await api.request("GET", "/channels", md5="0" * 32), 401, "auth_failed")
    assert "channels" in ok(await api.get("/channels"))
    assert await rows(api, channel) == []


@pytest.mark.one_node
async def test_check_19_answers_of_a_publish(node: ChannelsNode, api: Api) -> None:
    """`{"ok":true}` to the byte, or the serials of every channel if something asks for them."""
    channel = unique()
    async with sdk(node) as server, node.v1() as subscriber:
        await subscriber.subscribe(channel)
        assert (await server.trigger(channel, "chat.message", {"a": 1})).message == '{"ok":true}'
        result = await server.trigger(
            channel, "chat.message", "x", TriggerOptions(info="subscription_count")
        )
        ack = result.json()["channels"].pop(channel)
        assert result.json()["channels"].keys() == {channel}
        serial = ack["message_serial"]
        assert VERSION_SERIAL.fullmatch(serial)
        expected = {
            "acknowledgement_id": serial,
            "message_serial": serial,
            "version_serial": serial,
            "history_serial": 2,
            "delivery_serial": 2,
            "subscription_count": 1,
        }
        assert ack == expected
        other = unique()
        result = await server.trigger(
            [channel, other], "chat.message", "y", TriggerOptions(info="subscription_count")
        )
        both = result.json()["channels"]
        assert [both[name]["delivery_serial"] for name in (channel, other)] == [3, 1]
        assert [both[name]["subscription_count"] for name in (channel, other)] == [1, 0]
    presence = unique("presence-lab")
    async with node.v1() as one, node.v1() as two:
        for peer in (one, two):
            await peer.subscribe(presence, {"user_id": "ana"})
        info = "subscription_count,user_count"
        answer = ok(await api.events(presence, data="x", info=info))["channels"][presence]
        assert (answer["subscription_count"], answer["user_count"]) == (2, 1)
        answer = ok(await api.events(channel, data="x", info=info))["channels"][channel]
        assert answer["subscription_count"] == 0
        assert "user_count" not in answer


async def test_check_20_data_as_a_string(node: ChannelsNode, api: Api) -> None:
    """V1 and V2 get the same string, whatever was published."""
    channel = unique()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"data": {"b": 1, "a": [True, None, "x"]}}, '{"b":1,"a":[true,null,"x"]}'),
        ({"data": [1, 2]}, "[1,2]"),
        ({"data": 5}, "5"),
        ({"data": False}, "false"),
        ({"data": None}, "null"),
        ({}, "null"),
        ({"data": "as it is "}, "as it is "),
        ({"data": '{ "a":  1 }'}, '{ "a":  1 }'),
        ({"data": ""}, ""),
        ({"data": "ä\u2028\x00\U0001f30a"}, "ä\u2028\x00\U0001f30a"),
    ]
    async with node.v1() as v1, node.v2() as v2:
        for peer in (v1, v2):
            await peer.subscribe(channel)
        for fields, expected in cases:
            assert ok(await api.events(channel, **fields)) == {"ok": True}
            for peer in (v1, v2):
                assert (await peer.expect("chat.message", channel))["data"] == expected
    stored = [row["message"]["data"] for row in await rows(api, channel)]
    assert stored == [expected for _, expected in cases]


async def test_check_21_excluded_socket(node: ChannelsNode, api: Api) -> None:
    """The socket named by the publisher gets nothing, all others do."""
    channel = unique()
    async with node.v1() as v1, node.v2() as v2, node.v1() as other:
        peers = (v1, v2, other)
        for peer in peers:
            await peer.subscribe(channel)
        for excluded in (v1, v2):
            await api.publish(channel, excluded.socket_id, socket_id=excluded.socket_id)
            for peer in peers:
                if peer is not excluded:
                    frame = await peer.expect("chat.message", channel)
                    assert frame["data"] == excluded.socket_id
        await nothing_else(api, channel, *peers)
        batch = [{"name": "b", "channel": channel, "data": "x", "socket_id": v1.socket_id}]
        assert ok(await api.post("/batch_events", {"batch": batch})) == {}
        await v2.expect("b", channel)
        await other.expect("b", channel)
        await nothing_else(api, channel, *peers)


async def test_check_22_limits(api: Api) -> None:
    """Each limit has its own code; at the limit is accepted, what is refused is not kept."""
    channel = unique()
    good = {"name": "n", "channel": channel, "data": "x"}

    async def post(body: object, path: str = "/events") -> Any:
        return await api.post(path, body)

    refused(await post({**good, "name": "n" * 201}), 400, "limit_exceeded")
    refused(await post({**good, "name": "ä" * 101}), 400, "limit_exceeded")
    many = [unique("many") for _ in range(101)]
    refused(await post({"name": "n", "channels": many}), 400, "limit_exceeded")
    refused(await post({"batch": [good] * 11}, "/batch_events"), 400, "limit_exceeded")
    refused(await post({"name": "n", "data": "x"}), 400, "missing_channel_info")
    refused(await post({"name": "n", "channels": []}), 400, "missing_channel_info")
    refused(await post({**good, "data": "x" * 102_401}), 413, "payload_too_large")
    refused(await post({**good, "data": ["x" * 102_400]}), 413, "payload_too_large")
    refused(await post({**good, "channel": "c" * 201}), 400, "invalid_input")
    for name in ("a b", "ä", "a/b", ""):
        refused(await post({**good, "channel": name}), 400, "invalid_input")
    refused(await post({"name": "n", "channels": [channel, "a b"]}), 400, "invalid_input")
    for wrong in (
        {"channel": channel},
        {**good, "name": 7},
        {**good, "channel": 7},
        {**good, "info": 7},
        {**good, "socket_id": "x"},
        {**good, "socket_id": 1.2},
        {**good, "extras": []},
        {**good, "extras": {"headers": {"nested": {}}}},
        [good],
        "x",
    ):
        refused(await post(wrong), 400, "invalid_input")
    for text in (b"", b"{", b'{"name":"n","name":"m","channel":"c"}', b'{"name":NaN}', b"\xff"):
        refused(await api.request("POST", "/events", text), 400, "invalid_input")
    assert await rows(api, channel) == []
    assert all(await asyncio.gather(*(history_is_empty(api, name) for name in many[:3])))
    assert ok(await post({**good, "name": "n" * 200})) == {"ok": True}
    assert ok(await post({**good, "data": "x" * 102_400})) == {"ok": True}
    assert ok(await post({"batch": [good] * 10}, "/batch_events")) == {}
    assert ok(await post({"name": "n", "channels": many[:100]})) == {"ok": True}
    assert len(await rows(api, channel)) == 12


async def history_is_empty(api: Api, channel: str) -> bool:
    """Whether a channel has no history."""
    return await rows(api, channel) == []


async def test_check_22_http_body_of_more_than_10_mib(api: Api) -> None:
    """It is refused in the same envelope, whatever it holds."""
    body = b"x" * (10 * 1024 * 1024 + 1)
    refused(await api.request("POST", "/events", body), 413, "payload_too_large")


@pytest.mark.one_node
async def test_check_23_idempotency_key(node: ChannelsNode, api: Api) -> None:
    """The same key answers the same bytes and publishes once, wherever the key stands."""
    channel = unique()
    async with node.v1() as v1, node.v2() as v2:
        for peer in (v1, v2):
            await peer.subscribe(channel)
        key = unique("key")
        body: dict[str, Any] = {"name": "n", "channel": channel, "data": "x"}
        body["info"] = "subscription_count"
        keyed = {**body, "idempotency_key": key}
        first = await api.post("/events", keyed)
        second = await api.post("/events", keyed)
        by_header = await api.post("/events", body, headers={"X-Idempotency-Key": key})
        other_payload = await api.post("/events", {**keyed, "data": "other"})
        assert ok(first)["channels"][channel]["subscription_count"] == 2
        for again in (second, by_header, other_payload):
            assert (again.status_code, again.content) == (200, first.content)
        for peer in (v1, v2):
            assert (await peer.expect("n", channel))["data"] == "x"
        await nothing_else(api, channel, v1, v2)
        assert len(await rows(api, channel)) == 2
        headers = {"X-Idempotency-Key": unique("key")}  # the body's key wins
        assert (await api.post("/events", keyed, headers=headers)).content == first.content
        assert ok(await api.post("/events", body, headers=headers)) != first.json()
        assert len(await rows(api, channel)) == 3
        plain = {"name": "n", "channel": channel, "idempotency_key": unique("key")}
        both = [ok(await api.post("/events", plain)) for _ in range(2)]
        assert both == [{"ok": True}] * 2
        assert len(await rows(api, channel)) == 4
    for wrong in ("", "k" * 129, 7):
        body["idempotency_key"] = wrong
        refused(await api.post("/events", body), 400, "invalid_input")
    assert len(await rows(api, channel)) == 4


async def test_check_24_message_id(node: ChannelsNode, api: Api) -> None:
    """A repeated create returns the first serials; with other data it conflicts (channels D9)."""
    channel = unique()
    async with node.v1() as v1, node.v2() as v2:
        for peer in (v1, v2):
            await peer.subscribe(channel)
        chosen = unique("id")
        first = ok(await api.events(channel, data="x", message_id=chosen))["channels"][channel]
        assert first == {
            "acknowledgement_id": first["message_serial"],
            "message_serial": first["message_serial"],
            "version_serial": first["message_serial"],
            "history_serial": 1,
            "delivery_serial": 1,
        }
        again = ok(await api.events(channel, data="x", message_id=chosen))["channels"][channel]
        assert again == first
        for changed in ({"data": "y"}, {"data": "x", "name": "other"}):
            response = await api.events(channel, message_id=chosen, **changed)
            assert CONFLICT in refused(response, 400, "invalid_input")
        await v1.expect("chat.message", channel)
        assert (await v2.expect("chat.message", channel))["message_id"] == chosen
        ack = await nothing_else(api, channel, v1, v2)
        assert (ack["delivery_serial"], ack["history_serial"]) == (2, 2)
        elsewhere = unique()  # the key is the channel's
        ack = ok(await api.events(elsewhere, data="y", message_id=chosen))["channels"][elsewhere]
        assert ack["delivery_serial"] == 1
    for wrong in ("", "m" * 129, 7):
        response = await api.events(channel, data="x", message_id=wrong)
        refused(response, 400, "invalid_input")


@pytest.mark.one_node
async def test_check_25_ephemeral(node: ChannelsNode, api: Api) -> None:
    """Delivered to everybody, kept nowhere, without a serial."""
    channel = unique()
    async with node.v1() as v1, node.v2() as v2:
        for peer in (v1, v2):
            await peer.subscribe(channel)
        await api.publish(channel, "kept")
        extras = {"ephemeral": True, "headers": {"a": 1}}
        answer = ok(
            await api.events(channel, data="gone", extras=extras, info="subscription_count")
        )
        for peer in (v1, v2):
            assert (await peer.receive())["data"] == "kept"
        assert await v1.receive() == {"event": "chat.message", "channel": channel, "data": "gone"}
        frame = await v2.receive()
        message_id = frame.pop("message_id")
        assert UUID4.fullmatch(message_id)
        assert "serial" not in frame
        assert frame["extras"]["headers"] == {"a": 1}, "no runtime headers"
        assert answer == {
            "channels": {channel: {"acknowledgement_id": message_id, "subscription_count": 2}}
        }
        ack = await nothing_else(api, channel, v1, v2)
        assert (ack["delivery_serial"], ack["history_serial"]) == (2, 2)
    assert [row["message"]["data"] for row in await rows(api, channel)] == ["kept", "m"]


# Beyond the numbered checks.


async def test_batches(node: ChannelsNode, api: Api) -> None:
    """Items are decided in order and one by one (channels D19); a refusal names its place."""
    channel, other = unique(), unique()
    async with node.v1() as v1:
        await v1.subscribe(channel)
        plain = {"name": "a", "channel": channel, "data": "1"}
        asking = {"name": "b", "channel": other, "data": "2", "info": "subscription_count"}
        answer = ok(await api.post("/batch_events", {"batch": [plain, asking]}))["batch"]
        ack = answer[1]["channels"][other]
        assert (answer[0], ack["delivery_serial"], ack["subscription_count"]) == ({}, 1, 0)
        taken = {"name": "c", "channel": channel, "data": "3", "message_id": unique("id")}
        ok(await api.post("/events", taken))
        batch = [plain, {**taken, "data": "conflict"}, plain]
        response = await api.post("/batch_events", {"batch": batch})
        assert CONFLICT in refused(response, 400, "invalid_input", index=1)
        assert [(await v1.receive())["event"] for _ in range(3)] == ["a", "c", "a"]
        await nothing_else(api, channel, v1)
    refused(await api.post("/batch_events", {}), 400, "invalid_input")
    refused(await api.post("/batch_events", {"batch": {}}), 400, "invalid_input")


async def test_a_batch_that_is_repeated_publishes_what_it_published_once(
    node: ChannelsNode, api: Api
) -> None:
    """Accepted items have their first result again, others are decided again (channels 4.3)."""
    channel, live = unique(), unique()
    taken = unique("id")
    ok(await api.events(channel, name="taken", message_id=taken))
    pay = {"name": "pay", "channel": channel, "data": "5", "info": "subscription_count"}
    fleeting = {"name": "typing", "channel": live, "extras": {"ephemeral": True}}
    bad = {"name": "bad", "channel": channel, "data": "x", "message_id": taken}
    last = {"name": "last", "channel": channel, "data": "6"}
    headers = {"X-Idempotency-Key": unique("batch")}

    async def post(*batch: dict[str, Any]) -> httpx.Response:
        return await api.post("/batch_events", {"batch": batch}, headers=headers)

    async def names() -> list[str]:
        rows = (await api.history(channel, direction="oldest_first"))["items"]
        return [row["message"]["name"] for row in rows]

    async with node.v2() as v2:
        await v2.subscribe(live)
        for _ in range(3):
            response = await post(pay, fleeting, bad, last)
            assert CONFLICT in refused(response, 400, "invalid_input", index=2)
        assert await names() == ["taken", "pay"], "three tries, one payment"
        mended = {**bad, "message_id": unique("id")}
        whole = await post(
            {**pay, "data": "other data, which is not compared"}, fleeting, mended, last
        )
        answers = ok(whole)["batch"]
        assert [bool(answer) for answer in answers] == [True, False, True, False]
        assert answers[0]["channels"][channel]["delivery_serial"] == 2, (
            "the payment of the first try"
        )
        assert await names() == ["taken", "pay", "bad", "last"]
        again = await post(pay, fleeting, mended, last, last)
        assert again.content == whole.content
        assert await names() == ["taken", "pay", "bad", "last"]
        await v2.expect("typing", live)
        await nothing_else(api, live, v2)


async def test_batch_keys(api: Api) -> None:
    """The header's key is the whole batch's; an item's own key that was used skips that item."""
    channel, key = unique(), unique("key")
    item = {"name": "a", "channel": channel, "data": "1"}
    headers = {"X-Idempotency-Key": key}
    first = await api.post("/batch_events", {"batch": [item, item]}, headers=headers)
    again = await api.post("/batch_events", {"batch": [item, item]}, headers=headers)
    assert (first.status_code, first.content) == (again.status_code, again.content) == (200, b"{}")
    assert len(await rows(api, channel)) == 2
    ok(await api.post("/events", {**item, "idempotency_key": key}))  # another key-space
    assert len(await rows(api, channel)) == 3
    keyed = {**item, "idempotency_key": key, "info": "subscription_count"}
    fresh = {**item, "info": "subscription_count"}
    answer = ok(await api.post("/batch_events", {"batch": [keyed, fresh]}))["batch"]
    assert answer[0] == {}
    assert answer[1]["channels"][channel]["delivery_serial"] == 4
    wrong = {"batch": [item, {**item, "idempotency_key": "k" * 129}]}
    refused(await api.post("/batch_events", wrong), 400, "invalid_input", index=1)
    assert len(await rows(api, channel)) == 4


async def test_several_channels_are_one_decision(node: ChannelsNode, api: Api) -> None:
    """Either every channel of `/events` commits or none does (channels D19)."""
    one, two, chosen = unique(), unique(), unique("id")
    ok(await api.events(two, data="first", message_id=chosen))
    async with node.v1() as v1:
        await v1.subscribe(one)
        body = {"name": "n", "channels": [one, two], "data": "second", "message_id": chosen}
        assert CONFLICT in refused(await api.post("/events", body), 400, "invalid_input")
        ack = await nothing_else(api, one, v1)
        assert ack["delivery_serial"] == 1
    assert len(await rows(api, two)) == 1


async def test_a_failed_publish_releases_its_key(api: Api) -> None:
    """A key whose request was refused can be used by a request that is right (channels D10)."""
    channel, chosen, key = unique(), unique("id"), unique("key")
    ok(await api.events(channel, data="first", message_id=chosen))
    for _ in range(2):
        response = await api.events(channel, data="second", message_id=chosen, idempotency_key=key)
        refused(response, 400, "invalid_input")
    ok(await api.events(channel, data="third", idempotency_key=key))
    assert [row["message"]["data"] for row in await rows(api, channel)] == ["first", "third"]


async def test_the_extras_key_dedupes_a_publish(api: Api) -> None:
    """`extras.idempotencyKey`, also as the Python SDK spells it, is the create's identity."""
    channel, key = unique(), unique("key")
    for spelling in ("idempotencyKey", "idempotency_key"):
        ack = await api.publish(channel, "x", extras={spelling: key})
        assert ack["delivery_serial"] == 1
    response = await api.events(channel, data="y", extras={"idempotencyKey": key})
    assert CONFLICT in refused(response, 400, "invalid_input")
    assert len(await rows(api, channel)) == 1


async def test_what_makes_a_publish_the_same(node: ChannelsNode, api: Api) -> None:
    """4.5: name, data, extras and who publishes; not the socket it came through."""
    channel, chosen = unique(), unique("id")
    async with node.v2() as one, node.v2() as two, node.v2() as bo, node.v2() as nobody:
        await one.signin("ana")
        await two.signin("ana")
        await bo.signin("bo")
        fields = {"data": "x", "message_id": chosen, "extras": {"headers": {"n": 1}}}
        first = ok(await api.events(channel, socket_id=one.socket_id, **fields))
        assert ok(await api.events(channel, socket_id=two.socket_id, **fields)) == first
        for changed in (
            {"socket_id": bo.socket_id},
            {"socket_id": nobody.socket_id},
            {},
            {"socket_id": one.socket_id, "extras": {"headers": {"n": 2}}},
        ):
            response = await api.events(channel, **{**fields, **changed})
            assert CONFLICT in refused(response, 400, "invalid_input")
    assert len(await rows(api, channel)) == 1


async def test_parallel_requests_with_one_key(node: ChannelsNode, api: Api) -> None:
    """However many arrive at once, one is published and no other answer is given."""
    channel, key = unique(), unique("key")
    async with node.v1() as v1:
        await v1.subscribe(channel)
        fields = {"data": "x", "idempotency_key": key, "info": "subscription_count"}
        answers = await asyncio.gather(*(api.events(channel, **fields) for _ in range(8)))
        bodies = {answer.content for answer in answers if answer.status_code == 200}
        assert len(bodies) == 1
        for answer in answers:
            if answer.status_code != 200:
                refused(answer, 503, "backpressure")
                assert answer.headers["retry-after"] == "1"
        await v1.expect("chat.message", channel)
        await nothing_else(api, channel, v1)


@pytest.mark.one_node
async def test_channel_queries(node: ChannelsNode, api: Api) -> None:
    """Occupied channels, their counts and the users of presence channels (channels 4.6)."""
    room, lab = unique("query"), unique("presence-query")
    async with node.v1() as one, node.v2() as two:
        await one.subscribe(room)
        await one.subscribe(lab, {"user_id": "ana"})
        await two.subscribe(lab, {"user_id": "ana"})
        listed = ok(await api.get("/channels"))["channels"]
        assert listed[room] == listed[lab] == {}
        listed = ok(await api.get("/channels", filter_by_prefix="query"))
        assert listed == {"channels": {room: {}}}
        listed = ok(
            await api.get("/channels", filter_by_prefix="presence-query", info="user_count")
        )
        assert listed == {"channels": {lab: {"user_count": 1}}}
        refused(await api.get("/channels", info="user_count"), 400, "invalid_input")
        answer = ok(await api.get(channel_path(lab), info="subscription_count,user_count"))
        assert answer == {"occupied": True, "subscription_count": 2, "user_count": 1}
        refused(await api.get(channel_path(room), info="user_count"), 400, "invalid_input")
        answer = ok(await api.get(channel_path(unique()), info="subscription_count"))
        assert answer["occupied"] is False
        users = ok(await api.get(f"{channel_path(lab)}/users"))
        assert users == {"users": [{"id": "ana"}]}
        refused(await api.get(f"{channel_path(room)}/users"), 400, "invalid_input")


async def test_what_is_out_of_scope_says_so(api: Api) -> None:
    """Annotations, presence history and push are answered 422 `feature_disabled`."""
    channel = unique("presence-lab")
    ack = await api.publish(channel)
    annotations = f"{message_path(channel, ack['message_serial'])}/annotations"
    refused(await api.get(annotations), 422, "feature_disabled")
    refused(await api.post(annotations, {"type": "t"}), 422, "feature_disabled")
    path = f"{channel_path(channel)}/presence/history"
    refused(await api.get(path), 422, "feature_disabled")
    refused(await api.post("/push/publish", {}), 422, "feature_disabled")
