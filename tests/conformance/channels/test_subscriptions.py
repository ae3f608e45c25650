"""Checks 8-15 of the channels contract: subscriptions, presence, client events, sign-in."""

import json
from pathlib import Path

import pytest

from support.channels.peer import (
    PLAIN,
    UUID4,
    Api,
    ChannelsNode,
    Peer,
    channel_auth,
    channel_path,
    channels_server,
    ok,
    plain_frame,
    signin_auth,
    unique,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


def changed(auth: str) -> str:
    """An auth string with another last digit."""
    return auth[:-1] + ("1" if auth[-1] == "0" else "0")


def members(frame: dict[str, object]) -> object:
    """The presence part of a success frame; its ids may come in any order."""
    assert isinstance(frame["data"], str)
    presence = json.loads(frame["data"])["presence"]
    return presence | {"ids": sorted(presence["ids"])}


async def test_check_08_public_subscribe(node: ChannelsNode, api: Api) -> None:
    """V1 gets `{}`; V2 the history serial at attach, and the delivery head (channels D13)."""
    channel = unique()
    async with node.v1() as v1, node.v2() as v2:
        succeeded = {"event": "pusher_internal:subscription_succeeded", "channel": channel}
        assert await v1.subscribe(channel) == {**succeeded, "data": "{}"}
        frame = await v2.subscribe(channel)
        del frame["message_id"]
        stream_id = frame.pop("stream_id")
        assert UUID4.fullmatch(stream_id)
        assert frame == {
            "event": "sockudo_internal:subscription_succeeded",
            "channel": channel,
            "data": '{"attach_serial":0}',
            "serial": 0,
        }
        first = await api.publish(channel)
        await api.publish(channel)
        await api.mutate("append", channel, first["message_serial"], data="!")
        async with node.v2() as late:
            frame = await late.subscribe(channel)
            assert frame["data"] == '{"attach_serial":2}'
            assert (frame["serial"], frame["stream_id"]) == (3, stream_id)
            again = await late.subscribe(channel)  # while subscribed: succeeded again
            assert (again["data"], again["serial"]) == ('{"attach_serial":2}', 3)
            await late.quiet()
        assert await v1.receive() == {"event": "chat.message", "channel": channel, "data": "hi"}


@pytest.mark.one_node
async def test_check_09_private_subscribe(node: ChannelsNode, api: Api) -> None:
    """The right HMAC subscribes; any other is refused, delivers nothing and keeps the socket."""
    channel = unique("private-room")
    async with node.v1() as good, node.v2() as good2, node.v1() as bad, node.v2() as bad2:
        frame = await good.subscribe(channel, auth=channel_auth(good.socket_id, channel))
        assert frame["data"] == "{}"
        assert (await good2.subscribe(channel))["serial"] == 0
        for peer in (bad, bad2):
            right = channel_auth(peer.socket_id, channel)
            for auth in (
                changed(right),
                right.upper(),
                right.partition(":")[2],
                channel_auth(good.socket_id, channel),
                channel_auth(peer.socket_id, channel + "x"),
                channel_auth(peer.socket_id, channel, app=PLAIN),
                "",
                7,
                None,
            ):
                await peer.attach(channel, auth=auth)
                await peer.expect_denied(channel)
            await peer.send("subscribe", {"channel": channel})
            await peer.expect_denied(channel)
        ack = await api.publish(channel, "secret")
        assert ack["subscription_count"] == 2
        for peer in (good, good2):
            assert (await peer.receive())["data"] == "secret"
        for peer in (bad, bad2):
            await peer.quiet()
            await peer.subscribe(channel)


@pytest.mark.one_node
async def test_check_10_presence(node: ChannelsNode) -> None:
    """A snapshot for who joins; others hear of a user's first socket and of its last."""
    channel = unique("presence-lab")
    ana = {"user_id": "ana", "user_info": {"n": 1}}
    bo = {"user_id": "bo", "user_info": {"n": 2}}
    async with node.v1() as first, node.v2() as watch:
        alone = {"ids": ["ana"], "hash": {"ana": {"n": 1}}, "count": 1}
        assert members(await first.subscribe(channel, ana)) == alone
        carl = await watch.subscribe(channel, {"user_id": "carl", "user_info": {}})
        assert isinstance(carl["data"], str)
        assert json.loads(carl["data"])["attach_serial"] == 0
        both = {"ids": ["ana", "carl"], "hash": {"ana": {"n": 1}, "carl": {}}, "count": 2}
        assert members(carl) == both
        frame = await first.expect("_member_added", channel)
        assert set(frame) == {"event", "channel", "data"}
        assert json.loads(frame["data"]) == {"user_id": "carl", "user_info": {}}
        async with node.v1() as bo1:
            snapshot = members(await bo1.subscribe(channel, bo))
            assert isinstance(snapshot, dict)
            assert snapshot["count"] == 3
            assert snapshot["ids"] == ["ana", "bo", "carl"]
            assert snapshot["hash"] == {"ana": {"n": 1}, "bo": {"n": 2}, "carl": {}}
            async with node.v2() as bo2:
                assert members(await bo2.subscribe(channel, bo)) == snapshot
                for peer in (first, watch):
                    frame = await peer.expect("_member_added", channel)
                    assert isinstance(frame["data"], str)
                    assert json.loads(frame["data"]) == bo
                    await peer.quiet()
                await bo1.quiet()
                await bo2.send("unsubscribe", {"channel": channel})
                await bo2.quiet()
                for peer in (first, watch, bo1):
                    await peer.quiet()
        for peer in (first, watch):  # the last socket of bo has gone with its connection
            frame = await peer.expect("_member_removed", channel)
            assert json.loads(frame["data"]) == {"user_id": "bo"}
            await peer.quiet()


async def test_check_11_exact_channel_data(node: ChannelsNode) -> None:
    """What is signed is the text as received, not its meaning."""
    channel = unique("presence-lab")
    odd = '{ "user_info" : {"z":1, "a":2},  "user_id":"an\\u0061" }'
    tidy = json.dumps(json.loads(odd), separators=(",", ":"), sort_keys=True)
    for connected in (node.v1, node.v2):
        async with connected() as peer:
            await peer.attach(channel, odd, auth=channel_auth(peer.socket_id, channel, tidy))
            await peer.expect_denied(channel)
            await peer.attach(channel, tidy, auth=channel_auth(peer.socket_id, channel, odd))
            await peer.expect_denied(channel)
            await peer.attach(channel, odd, auth=channel_auth(peer.socket_id, channel))
            await peer.expect_denied(channel)
            snapshot = members(await peer.subscribe(channel, odd))
            expected = {"ids": ["ana"], "hash": {"ana": {"z": 1, "a": 2}}, "count": 1}
            assert snapshot == expected


async def test_check_12_client_events(node: ChannelsNode, api: Api) -> None:
    """They reach others as they were sent, not the V1 sender; the wrong ones are answered 4301."""
    channel = unique("private-room")
    async with node.v1() as sender, node.v1() as other, node.v2() as other2:
        for peer in (sender, other, other2):
            await peer.subscribe(channel)
        for data in ({"x": [1]}, "text", 7):
            await sender.send("client-typing", data, channel=channel)
            expected = {"event": "client-typing", "channel": channel, "data": data}
            assert await other.receive() == expected
            assert plain_frame(await other2.receive()) == {**expected, "action": "message.create"}
        await sender.quiet()
        public = unique()
        await sender.subscribe(public)
        await other.subscribe(public)
        await sender.send("client-typing", {}, channel=public)
        await sender.expect_error(4301)
        await sender.send("client-typing", {}, channel=unique("private-unsubscribed"))
        await sender.expect_error(4301)
        await other.quiet()
        state = ok(await api.get(f"{channel_path(public)}/history"))
        assert state["items"] == []
    async with node.v1(PLAIN) as forbidden:  # the app does not allow them
        await forbidden.subscribe(channel)
        await forbidden.send("client-typing", {}, channel=channel)
        await forbidden.expect_error(4301)


async def test_check_13_echo(node: ChannelsNode) -> None:
    """A V2 sender gets its own client event unless it asked not to."""
    channel = unique("private-room")
    async with node.v2(echo_messages="true") as loud, node.v2(echo_messages="false") as still:
        await loud.subscribe(channel)
        await still.subscribe(channel)
        await still.send("client-a", "1", channel=channel)
        assert (await loud.expect("client-a", channel))["serial"] == 1
        await loud.send("client-b", "2", channel=channel)
        assert (await loud.expect("client-b", channel))["serial"] == 2
        assert (await still.expect("client-b", channel))["serial"] == 2
        await still.quiet()
        await loud.quiet()


async def test_check_14_signin(node: ChannelsNode) -> None:
    """`user_data` comes back as it was sent; a wrong signature is refused, the socket stays."""
    for connected in (node.v1, node.v2):
        async with connected() as peer:
            user_data = '{ "capabilities":{"message_update_any":["*"]}, "id":"ana" }'
            auth = signin_auth(peer.socket_id, user_data)
            for wrong in (
                {"auth": changed(auth), "user_data": user_data},
                {"auth": auth, "user_data": user_data.replace(" ", "")},
                {"auth": channel_auth(peer.socket_id, user_data), "user_data": user_data},
                {"user_data": user_data},
            ):
                await peer.send("signin", wrong)
                await peer.expect_error(4009)
            await peer.send("signin", {"auth": auth, "user_data": user_data})
            frame = await peer.expect(":signin_success")
            frame.pop("message_id", None)
            assert frame == {
                "event": f"{peer.prefix}:signin_success",
                "data": {"user_data": user_data},
            }
            await peer.quiet()


async def test_check_15_data_as_a_string(node: ChannelsNode, api: Api) -> None:
    """Every system event may carry its data as an object or as the text of one."""
    channel, private = unique(), unique("private-room")
    for connected in (node.v1, node.v2):
        async with connected() as peer, node.v1() as control:
            await control.subscribe(channel)
            for name in (channel, private):
                data = {"channel": name, "auth": channel_auth(peer.socket_id, name)}
                await peer.send("subscribe", json.dumps(data))
                await peer.expect("_subscription_succeeded", name)
                await peer.send("unsubscribe", json.dumps({"channel": name}))
            user_data = '{"id":"ana"}'
            auth = signin_auth(peer.socket_id, user_data)
            await peer.send("signin", json.dumps({"auth": auth, "user_data": user_data}))
            await peer.expect(":signin_success")
            await api.publish(channel)
            await control.expect("chat.message", channel)
            await peer.quiet()


# Beyond the numbered checks.


async def test_names(node: ChannelsNode) -> None:
    """All allowed characters and 200 bytes are a name; anything else is refused with 4300."""
    async with node.v1() as v1, node.v2() as v2:
        for peer in (v1, v2):
            await peer.subscribe(unique("aZ09_-=@,.;:"))
            await peer.subscribe("n" * 200)
            for wrong in ("n" * 201, "a b", "a/b", "ä", "", "a*", "a\n"):
                await peer.attach(wrong)
                await peer.expect_denied(wrong, 4300)
            await peer.quiet()


async def test_presence_needs_a_user_id(node: ChannelsNode) -> None:
    """Channel data that is not an object with a string `user_id` does not subscribe."""
    channel = unique("presence-lab")
    async with node.v1() as peer, node.v2() as watch:
        await watch.subscribe(channel, {"user_id": "w"})
        for wrong in ("{", "[]", "{}", '{"user_id":7}', '{"user_id":null}', '"ana"'):
            await peer.attach(channel, wrong)
            frame = await peer.receive()
            assert frame["event"] == "pusher:error"
            assert frame["data"]["code"] in (4300, 4000)
            await peer.expect(":subscription_error", channel)
        await peer.send(
            "subscribe", {"channel": channel, "auth": channel_auth(peer.socket_id, channel)}
        )
        assert (await peer.receive())["event"] == "pusher:error"
        await peer.expect(":subscription_error", channel)
        await peer.quiet()
        await watch.quiet()


@pytest.mark.one_node
async def test_presence_update_is_for_v2(node: ChannelsNode) -> None:
    """The new info goes to V2 subscribers and into the next snapshot, never to V1."""
    channel = unique("presence-lab")
    async with node.v2() as ana, node.v2() as bo, node.v1() as old:
        await ana.subscribe(channel, {"user_id": "ana", "user_info": {"n": 1}})
        await bo.subscribe(channel, {"user_id": "bo", "user_info": {}})
        await old.subscribe(channel, {"user_id": "old", "user_info": {}})
        for _ in range(2):
            await ana.expect("_member_added", channel)
        await bo.expect("_member_added", channel)
        await ana.send("presence_update", {"user_info": {"n": 2}}, channel=channel)
        frame = await bo.expect("_presence_update", channel)
        data = frame["data"] if isinstance(frame["data"], dict) else json.loads(frame["data"])
        assert data == {"user_id": "ana", "user_info": {"n": 2}}
        await old.quiet()
        async with node.v1() as late:
            frame = await late.subscribe(channel, {"user_id": "late", "user_info": {}})
            snapshot = members(frame)
            assert isinstance(snapshot, dict)
            assert snapshot["hash"]["ana"] == {"n": 2}


async def test_client_events_on_a_presence_channel_name_their_sender(node: ChannelsNode) -> None:
    """`user_id` stands beside the data, in V1 as well."""
    channel = unique("presence-lab")
    async with node.v1() as ana, node.v1() as old, node.v2() as new:
        await ana.subscribe(channel, {"user_id": "ana"})
        await old.subscribe(channel, {"user_id": "old"})
        await new.subscribe(channel, {"user_id": "new"})
        await old.expect("_member_added", channel)
        await ana.send("client-wave", "hey", channel=channel)
        expected = {"event": "client-wave", "channel": channel, "data": "hey", "user_id": "ana"}
        assert await old.receive() == expected
        assert plain_frame(await new.receive()) == {**expected, "action": "message.create"}


async def test_a_client_event_is_a_create_of_its_sender(node: ChannelsNode, api: Api) -> None:
    """It is in the history, can be mutated, and belongs to who is signed in."""
    channel = unique("private-room")
    async with node.v2() as ana, node.v2() as watch:
        await ana.signin("ana", {"message_append_own": ["private-*"]})
        await ana.subscribe(channel)
        await watch.subscribe(channel)
        await ana.send("client-note", "Hel", channel=channel)
        frame = await watch.expect("client-note", channel)
        assert frame["user_id"] == "ana"
        serial = frame["extras"]["headers"]["sockudo_message_serial"]
        answer = await api.mutate("append", channel, serial, data="lo", socket_id=ana.socket_id)
        assert (answer["delivery_serial"], answer["history_serial"]) == (2, 1)
        item = await api.item(channel, serial)
        assert (item["name"], item["data"]) == ("client-note", "Hello")


async def test_client_events_have_limits(node: ChannelsNode) -> None:
    """Ten in a second are delivered, what comes at once beyond them is answered 4301."""
    channel = unique("private-room")
    async with node.v1() as sender, node.v1() as other:
        await sender.subscribe(channel)
        await other.subscribe(channel)
        for number in range(40):
            await sender.send("client-n", number, channel=channel)
        await sender.send("ping", {})
        errors = 0
        while (frame := await sender.receive())["event"] != "pusher:pong":
            assert frame["data"]["code"] == 4301
            errors += 1
        assert 1 <= errors <= 30
        assert [(await other.receive())["data"] for _ in range(40 - errors)]
        await other.quiet()


async def test_user_channels(node: ChannelsNode, api: Api) -> None:
    """`#server-to-user-ana` is for the sockets signed in as ana, and needs no auth."""
    name = unique("user")
    channel = f"#server-to-user-{name}"
    async with node.v1() as one, node.v2() as two, node.v2() as stranger:
        for peer in (one, two):
            await peer.attach(channel)
            await peer.expect_denied(channel)
            await peer.signin(name)
            await peer.subscribe(channel, auth="")
        await stranger.signin("somebody-else")
        await stranger.attach(channel)
        await stranger.expect_denied(channel)
        assert ok(await api.events(channel, data="for you")) == {"ok": True}
        expected = {"event": "chat.message", "channel": channel, "data": "for you"}
        assert await one.receive() == expected
        assert (await two.receive())["data"] == "for you"
        await stranger.quiet()


@pytest.mark.parametrize("kind", ["cache-", "private-cache-", "presence-cache-"])
async def test_cache_channels(node: ChannelsNode, api: Api, kind: str) -> None:
    """After the success comes the last event published over HTTP, or a miss."""
    channel = unique(f"{kind}room")

    async def join(peer: Peer, name: str) -> None:
        user = {"user_id": name} if kind == "presence-cache-" else None
        await peer.subscribe(channel, user)

    async with node.v1() as v1, node.v2() as v2:
        for peer in (v1, v2):
            await join(peer, "same")
            miss = await peer.expect(":cache_miss", channel)
            assert miss["data"] == "{}"
            await peer.quiet()
        await api.publish(channel, "old")
        await api.publish(channel, "last", name="chat.last")
        for peer in (v1, v2):
            for _ in range(2):
                await peer.receive()
        if kind != "cache-":
            await v1.send("client-x", "not cached", channel=channel)
            await v2.expect("client-x", channel)
    async with node.v1() as v1, node.v2() as v2:
        for peer in (v1, v2):
            await join(peer, "same")
            frame = await peer.expect("chat.last", channel)
            assert frame["data"] == "last"
            await peer.quiet()


async def test_malformed_signins(node: ChannelsNode) -> None:
    """Correctly signed nonsense is refused with 4009 and leaves the socket nobody."""
    async with node.v2() as peer:
        for user in (
            "{",
            "[]",
            "{}",
            '{"id":7}',
            '{"id":""}',
            '{"id":"ana","capabilities":[]}',
            '{"id":"ana","capabilities":{"message_update_any":"*"}}',
            '{"id":"ana","capabilities":{"message_update_any":[7]}}',
        ):
            auth = signin_auth(peer.socket_id, user)
            await peer.send("signin", {"auth": auth, "user_data": user})
            await peer.expect_error(4009)
        await peer.attach("#server-to-user-ana")
        await peer.expect_denied("#server-to-user-ana")
    async with node.v2(PLAIN) as off:
        auth = signin_auth(off.socket_id, '{"id":"ana"}', PLAIN)
        await off.send("signin", {"auth": auth, "user_data": '{"id":"ana"}'})
        await off.expect_error(4009)


async def test_signin_capabilities_bound_what_a_socket_may_do(node: ChannelsNode) -> None:
    """Present lists restrict; an empty list denies; absent ones allow."""
    yes, no = unique("private-yes"), unique("private-no")
    async with node.v2() as peer:
        await peer.signin("ana", {"subscribe": ["private-yes*"], "publish": []})
        await peer.subscribe(yes)
        await peer.attach(no)
        await peer.expect_denied(no)
        await peer.send("client-x", "1", channel=yes)
        await peer.expect_error(4301)
        await peer.quiet()


async def test_signin_denies_presence_and_history(node: ChannelsNode, api: Api) -> None:
    """Empty lists of `presence` and `history` deny what is allowed without them."""
    lab, room = unique("presence-lab"), unique("private-room")
    await api.publish(room)
    nothing: dict[str, list[str]] = {"presence": [], "history": []}
    for capabilities, is_denied in ((nothing, True), ({}, False)):
        async with node.v2() as peer:
            await peer.signin("ana", capabilities)
            await peer.attach(lab, {"user_id": "ana"})
            if is_denied:
                await peer.expect_denied(lab)
            else:
                await peer.expect("_subscription_succeeded", lab)
            await peer.subscribe(room)
            await peer.send("channel_history", {"channel": room})
            expected = ":error" if is_denied else ":channel_history"
            await peer.expect(expected, None if is_denied else room)


async def test_presence_has_a_most(tmp_path: Path) -> None:
    """One user more than allowed is refused; another socket of a member is not."""
    async with (
        channels_server(tmp_path, max_presence_members=1) as node,
        node.v1() as one,
        node.v2() as two,
        node.v1() as three,
    ):
        channel = unique("presence-lab")
        await one.subscribe(channel, {"user_id": "ana"})
        await two.attach(channel, {"user_id": "bo"})
        assert (await two.receive())["event"] == "sockudo:error"
        await two.expect(":subscription_error", channel)
        await three.subscribe(channel, {"user_id": "ana"})
        await one.quiet()


@pytest.mark.one_node
async def test_unsubscribed_sockets_get_nothing(node: ChannelsNode, api: Api) -> None:
    """An unsubscribe has no reply; the channel is vacated with the last subscriber."""
    channel = unique()
    async with node.v1() as v1, node.v2() as v2:
        for peer in (v1, v2):
            await peer.subscribe(channel)
        await v1.send("unsubscribe", {"channel": channel})
        await v1.quiet()
        assert (await api.publish(channel))["subscription_count"] == 1
        await v2.expect("chat.message", channel)
        await v1.quiet()
        await v2.send("unsubscribe", {"channel": channel})
        await v2.quiet()
        answer = ok(await api.get(channel_path(channel), info="subscription_count"))
        assert answer["occupied"] is False
