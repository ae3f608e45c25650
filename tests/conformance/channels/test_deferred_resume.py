"""What needs authorization is resumed before the subscribe, and replayed after it (channels D6)."""

import json
from typing import Any

import pytest

from support.channels.peer import (
    Api,
    ChannelsNode,
    Peer,
    channel_path,
    nothing_else,
    ok,
    token,
    unique,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

ANA = {"user_id": "ana"}
KINDS = ("private-room", "presence-lab", "private-encrypted-room", "private-cache-room")


def user_of(channel: str) -> dict[str, Any] | None:
    """Who subscribes, where the channel asks for it."""
    return ANA if channel.startswith("presence-") else None


def position(serial: int, head: dict[str, Any]) -> dict[str, Any]:
    """A position in the stream of that frame."""
    return {"serial": serial, "stream_id": head["stream_id"]}


async def accepted(peer: Peer, channel: str) -> None:
    """The next frame says that a channel is resumed, and nothing of what is in it."""
    assert await peer.resumed() == {
        "recovered": [{"channel": channel, "source": "cold", "replayed": 0, "position": None}],
        "failed": [],
    }


async def failed_after(peer: Peer, channel: str) -> dict[str, Any]:
    """The data of the `resume_failed` that is the next frame."""
    data: dict[str, Any] = json.loads((await peer.expect(":resume_failed", channel))["data"])
    return data


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_id_alone_reads_nothing(node: ChannelsNode, api: Api, kind: str) -> None:
    """Whoever holds it without being let in is told that the position is good, and no more."""
    channel = unique(kind)
    async with node.v2() as member:
        head = await member.subscribe(channel, user_of(channel))
        ack = await api.publish(channel, "secret")
        await api.mutate("append", channel, ack["message_serial"], data=" secret")
    async with node.v2() as stranger:
        for serial in (0, 1, 2):
            await stranger.resume(**{channel: position(serial, head)})
            await accepted(stranger, channel)
        await stranger.attach(channel, user_of(channel), auth="tide-key:0000")
        await stranger.expect_denied(channel)
        await api.publish(channel, "secret")
        await stranger.quiet()


@pytest.mark.parametrize("mode", ["delta", "full"])
async def test_versions_follow_the_subscribe(node: ChannelsNode, api: Api, mode: str) -> None:
    """Its serial is the resumed position; each operation comes once, as it was sent live."""
    channel = unique("private-room")
    async with node.v2(append_mode=mode) as control:
        head = await control.subscribe(channel)
        ack = await api.publish(channel, "Hel")
        await api.mutate("append", channel, ack["message_serial"], data="lo")
        await api.mutate("update", channel, ack["message_serial"], data="new")
        async with node.v2(append_mode=mode) as again:
            await again.resume(**{channel: position(1, head)})
            await accepted(again, channel)
            await api.publish(channel, "between")
            live = [await control.receive() for _ in range(4)]
            told = await again.subscribe(channel)
            assert (told["serial"], told["stream_id"]) == (1, head["stream_id"])
            assert [await again.receive() for _ in range(3)] == live[1:]
            await nothing_else(api, channel, control, again)
            await again.resume(**{channel: position(3, head)})
            assert (await again.receive())["data"] == "between", "a subscriber is sent it at once"
            assert (await again.receive())["event"] == "marker"
            assert (await again.resumed())["recovered"][0]["replayed"] == 2


async def test_a_refused_subscribe_keeps_the_position(node: ChannelsNode, api: Api) -> None:
    """The next one, which is signed, goes on from it."""
    channel = unique("private-room")
    async with node.v2() as member, node.v2() as again:
        head = await member.subscribe(channel)
        await again.resume(**{channel: position(0, head)})
        await accepted(again, channel)
        await api.publish(channel, "missed")
        await again.attach(channel, auth="tide-key:0000")
        await again.expect_denied(channel)
        assert (await again.subscribe(channel))["serial"] == 0
        assert (await again.receive())["data"] == "missed"


async def test_what_is_lost_meanwhile_is_told_after_the_subscribe(
    node: ChannelsNode, api: Api
) -> None:
    """Another epoch: the subscription stands at the head, and `resume_failed` follows it."""
    channel = unique("private-room")
    async with node.v2() as member, node.v2() as again:
        head = await member.subscribe(channel)
        await api.publish(channel, "missed")
        await again.resume(**{channel: position(0, head)})
        await accepted(again, channel)
        body = {"confirm_channel": channel, "confirm_operation": "reset", "reason": "test"}
        ok(await api.post(f"{channel_path(channel)}/history/reset", body))
        told = await again.subscribe(channel)
        assert told["serial"] == 1
        failed = await failed_after(again, channel)
        assert (failed["code"], failed["expected_stream_id"]) == ("stream_reset", head["stream_id"])
        assert failed["current_stream_id"] == told["stream_id"] != head["stream_id"]
        await nothing_else(api, channel, again)


async def test_what_cannot_be_resumed_is_told_at_once_and_without_serials(
    node: ChannelsNode, api: Api
) -> None:
    """Judged as ever; but where a channel stands is for its subscribers."""
    channel = unique("private-room")
    async with node.v2() as member:
        head = await member.subscribe(channel)
        for n in range(3):
            await api.publish(channel, str(n))
    async with node.v2() as stranger:
        for wanted, code in (
            (position(4, head), "continuity_unverifiable"),
            ({"serial": 1, "stream_id": "other"}, "stream_reset"),
            ({"serial": 1}, "continuity_unverifiable"),
        ):
            await stranger.resume(**{channel: wanted})
            data = await failed_after(stranger, channel)
            assert data.pop("code") == code
            assert data.pop("expected_stream_id") == wanted.get("stream_id")
            assert isinstance(data.pop("reason"), str)
            unknown = ("current_stream_id", "oldest_available_serial", "newest_available_serial")
            assert data == {"channel": channel, **dict.fromkeys(unknown)}
            assert (await stranger.resumed())["recovered"] == []


async def test_the_last_resume_counts(node: ChannelsNode, api: Api) -> None:
    """A later position replaces an earlier one; a later failure forgets it."""
    channel = unique("private-room")
    async with node.v2() as member, node.v2() as again:
        head = await member.subscribe(channel)
        for n in range(3):
            await api.publish(channel, str(n))
        for serial in (0, 2):
            await again.resume(**{channel: position(serial, head)})
            await accepted(again, channel)
        assert (await again.subscribe(channel))["serial"] == 2
        assert (await again.receive())["data"] == "2"
        await again.send("unsubscribe", {"channel": channel})
        for wrong in (position(4, head), {"serial": 0}):
            await again.resume(**{channel: position(0, head)})
            await accepted(again, channel)
            await again.resume(**{channel: wrong})
            await failed_after(again, channel)
            await again.resumed()
            assert (await again.subscribe(channel))["serial"] == 3
            await again.quiet()
            await again.send("unsubscribe", {"channel": channel})


async def test_an_unsubscribe_forgets_the_position(node: ChannelsNode, api: Api) -> None:
    """Whoever does not want a channel any longer begins anew when it does."""
    for channel in (unique("private-room"), unique()):
        async with node.v2() as member, node.v2() as again:
            head = await member.subscribe(channel)
            await again.resume(**{channel: position(0, head)})
            await again.resumed()
            await api.publish(channel, "missed")
            await again.send("unsubscribe", {"channel": channel})
            assert (await again.subscribe(channel))["serial"] == 1
            await again.quiet()


async def test_a_token_is_asked_again_at_the_subscribe(node: ChannelsNode, api: Api) -> None:
    """One that does not allow the channel resumes nothing; one that loses it is sent nothing."""
    channel = unique("private-room")
    async with node.v2() as member:
        head = await member.subscribe(channel)
        await api.publish(channel, "secret")
    other, both = {"other": ["subscribe"]}, {"*": ["subscribe"]}
    async with node.v2(token=token(capability=other)) as peer:
        await peer.resume(**{channel: position(0, head)})
        assert (await failed_after(peer, channel))["reason"] == "not_authorized"
        assert (await peer.resumed())["recovered"] == []
    async with node.v2(token=token(capability=both)) as peer:
        await peer.resume(**{channel: position(0, head)})
        await accepted(peer, channel)
        await peer.send("auth", {"token": token(capability=other)})
        await peer.expect(":auth_success")
        await peer.attach(channel)
        await peer.expect_denied(channel)
        await peer.quiet()


async def test_a_cache_channel_is_resumed_in_order(node: ChannelsNode, api: Api) -> None:
    """The last event is one of those that follow: it is not sent ahead of them."""
    channel = unique("private-cache-room")
    async with node.v2() as member, node.v2() as again:
        head = await member.subscribe(channel)
        for n in range(3):
            await api.publish(channel, str(n))
        await again.resume(**{channel: position(1, head)})
        await accepted(again, channel)
        assert (await again.subscribe(channel))["serial"] == 1
        assert [(await again.receive())["serial"] for _ in range(2)] == [2, 3]
        await nothing_else(api, channel, again)


async def test_positions_beyond_the_bound_are_refused(node: ChannelsNode, api: Api) -> None:
    """As many channels as can be subscribed to are remembered; one more is told, not forgotten."""
    channel = unique("private-room")
    async with node.v2() as member, node.v2() as peer:
        head = await member.subscribe(channel)
        await api.publish(channel, "missed")
        await peer.resume(**{channel: position(0, head)})
        await accepted(peer, channel)
        await peer.send("resume", {"channel_serials": {unique(): 0 for _ in range(999)}})
        assert len((await peer.resumed())["recovered"]) == 999
        late = unique()
        await peer.send("resume", {"channel_serials": {late: 0}})
        assert (await failed_after(peer, late))["reason"] == "too_many_positions"
        assert (await peer.resumed())["recovered"] == []
        assert (await peer.subscribe(channel))["serial"] == 0
        assert (await peer.receive())["data"] == "missed"
        await peer.send("resume", {"channel_serials": {late: 0}})
        assert len((await peer.resumed())["recovered"]) == 1
