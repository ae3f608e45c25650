"""Channels on several nodes of one PostgreSQL: what is not in the log reaches across as well."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from support.channels.peer import (
    Api,
    ChannelsNode,
    Peer,
    channel_path,
    channels_server,
    message_path,
    ok,
    refused,
    token,
    unique,
    until,
)
from support.link.listening_front import ListeningFront
from support.log.nodes import Witness
from tidelog.base.errors import QueueFull, StoreUnavailable
from tidelog.channels.decide.registry import Registry
from tidelog.channels.front.sockets.standing import Standing
from tidelog.channels.messages import VOCABULARY, Admitted, Hello, Join, Welcome
from tidelog.channels.upkeep import other_nodes
from tidelog.channels.upkeep import registrar as module
from tidelog.channels.upkeep.node_messages import Counted
from tidelog.channels.upkeep.registrar import Registrar
from tidelog.link.ends import OwnerEnd
from tidelog.store.rows import Announcement
from tidelog.testing.postgresql import create_database

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_MEMBERS = 3
EPHEMERAL = {"extras": {"ephemeral": True}}


class Pair(NamedTuple):
    """Two nodes of one log."""

    a: ChannelsNode
    b: ChannelsNode
    store: str


@pytest.fixture(scope="module", autouse=True)
def quick_heartbeat() -> Iterator[None]:
    """A node that is gone is missed after a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "HEARTBEAT_SECONDS", 0.1)
        patch.setattr(module, "SILENCE_SECONDS", 1.0)
        patch.setattr(module, "SETTLING_SECONDS", 0.2)
        patch.setattr(other_nodes, "HEARTBEAT_SECONDS", 0.1)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(
    postgresql_server: str, postgresql_template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pair]:
    """The tests share them and use channels of their own."""
    store = await create_database(postgresql_server, template=postgresql_template)
    async with AsyncExitStack() as stack:
        a, b = [
            await stack.enter_async_context(
                channels_server(
                    tmp_path_factory.mktemp(name),
                    store,
                    max_presence_members=MAX_MEMBERS,
                    versioned_messages={"retention_window_seconds": 1},
                )
            )
            for name in "ab"
        ]
        await until(lambda: known(a).nodes and known(b).nodes)
        yield Pair(a, b, store)


def known(node: ChannelsNode) -> Registry[OwnerEnd]:
    """What a node knows of itself and the others."""
    return node.surface.owner.registrar.registry


def registrar(node: ChannelsNode) -> Registrar:
    """A node's mouth and ear."""
    return node.surface.owner.registrar


def standing(node: ChannelsNode, channel: str) -> Standing:
    """Where a channel is, as the front of a node knows that has subscribers of it."""
    found = node.surface.service.hub.channel(stream(channel))
    assert found is not None
    assert found.state is not None
    return found.state


def stream(channel: str) -> str:
    """Where a channel of the first app is."""
    return f"channels/tide/{channel}"


async def heard(speaker: ChannelsNode, listener: ChannelsNode) -> None:
    """The listener has heard all that the speaker has told up to now."""
    number = registrar(speaker)._number
    name = registrar(speaker).name
    await until(
        lambda: name in known(listener)._nodes and (known(listener)._nodes[name].number >= number)
    )


def presence(frame: dict[str, Any]) -> dict[str, Any]:
    """The snapshot in an answer to a subscribe."""
    found: dict[str, Any] = json.loads(frame["data"])["presence"]
    return found


def member(frame: dict[str, Any]) -> tuple[str, Any]:
    """User and info in a member frame."""
    data = json.loads(frame["data"])
    return data["user_id"], data.get("user_info")


# 1. Frames that no entry carries.


async def test_live_events_reach_other_nodes_behind_what_was_committed_before(pair: Pair) -> None:
    """In both protocols, and not the socket that published."""
    channel = unique()
    a, b, _ = pair
    async with a.v2() as here, b.v2() as there, b.v1() as old, b.v2() as publisher:
        for peer in (here, there, old, publisher):
            await peer.subscribe(channel)
        for number in range(20):
            ok(await a.api.events(channel, data=f"{number}"))
        ok(
            await a.api.events(
                channel, data="live", socket_id=publisher.socket_id, tags={"t": "1"}, **EPHEMERAL
            )
        )
        frames = []
        for peer in (here, there, old):
            got = [(await peer.receive()) for _ in range(21)]
            assert [frame["data"] for frame in got] == [*map(str, range(20)), "live"]
            frames.append(got[-1])
        assert frames[0] == frames[1], "the same frame, with the same message_id"
        assert frames[1]["tags"] == {"t": "1"}
        assert "serial" not in frames[1]
        assert [(await publisher.receive())["data"] for _ in range(20)] == [*map(str, range(20))]
        await publisher.quiet()


async def test_the_last_live_event_of_a_cache_channel_is_known_everywhere(pair: Pair) -> None:
    """A subscriber of another node is given it."""
    channel = unique("cache-x")
    ok(await pair.a.api.events(channel, data="kept", **EPHEMERAL))
    await heard(pair.a, pair.b)
    async with pair.b.v2() as peer:
        await peer.subscribe(channel)
        assert (await peer.expect("chat.message", channel))["data"] == "kept"


async def test_summaries_reach_other_nodes(pair: Pair) -> None:
    """Their V2 subscribers."""
    channel = unique("private-room")
    async with pair.a.v2() as here, pair.b.v2() as there, pair.b.v1() as old:
        for peer in (here, there, old):
            await peer.subscribe(channel)
        ack = await pair.a.api.publish(channel)
        for peer in (here, there, old):
            await peer.expect("chat.message", channel)
        path = f"{message_path(channel, ack['message_serial'])}/summary"
        summary = ok(await pair.a.api.post(path, {}))
        for peer in (here, there):
            frame = await peer.expect("sockudo:message.summary", channel)
            assert frame["data"] == summary
        await old.quiet()


# 2. Presence.


async def test_a_member_is_there_from_its_first_socket_to_its_last(pair: Pair) -> None:
    """Over all nodes: `member_added` and `member_removed` once each, and one snapshot."""
    channel = unique("presence-room")
    a, b, _ = pair
    async with a.v2() as ana, b.v1() as bo, a.v2() as bo_again:
        await ana.subscribe(channel, {"user_id": "ana", "user_info": {"n": 1}})
        await heard(a, b)
        snapshot = presence(await bo.subscribe(channel, {"user_id": "bo", "user_info": {"n": 2}}))
        assert sorted(snapshot.pop("ids")) == ["ana", "bo"]
        assert snapshot == {"hash": {"ana": {"n": 1}, "bo": {"n": 2}}, "count": 2}
        assert member(await ana.expect("_member_added", channel)) == ("bo", {"n": 2})
        snapshot = presence(await bo_again.subscribe(channel, {"user_id": "bo"}))
        assert snapshot["hash"] == {"ana": {"n": 1}, "bo": {"n": 2}}
        await heard(a, b)
        await ana.send("presence_update", {"user_info": {"n": 3}}, channel=channel)
        for peer in (ana, bo_again):
            assert member(await peer.expect("_presence_update", channel)) == ("ana", {"n": 3})
        await bo_again.send("presence_update", {"user_info": {"n": 4}}, channel=channel)
        for peer in (ana, bo_again):
            assert member(await peer.expect("_presence_update", channel)) == ("bo", {"n": 4})
        await heard(a, b)
        await bo.quiet()
        await bo_again.send("unsubscribe", {"channel": channel})
        await bo_again.quiet()
        await ana.quiet()
        async with b.v2() as late:
            infos = presence(await late.subscribe(channel, {"user_id": "late"}))["hash"]
            assert infos == {"ana": {"n": 3}, "bo": {"n": 4}, "late": None}
            for peer in (ana, bo):
                assert member(await peer.expect("_member_added", channel)) == ("late", None)
            await late.send("presence_update", {"user_info": 5}, channel=channel)
            for peer in (ana, late):
                assert member(await peer.expect("_presence_update", channel)) == ("late", 5)
        for peer in (ana, bo):
            assert member(await peer.expect("_member_removed", channel)) == ("late", None)
        await bo.send("unsubscribe", {"channel": channel})
        assert member(await ana.expect("_member_removed", channel)) == ("bo", None)
        await ana.quiet()


async def test_the_member_limit_holds_over_all_nodes(pair: Pair) -> None:
    """A further socket of a member is always taken."""
    channel = unique("presence-full")
    async with AsyncExitStack() as stack:
        for number in range(MAX_MEMBERS):
            peer = await stack.enter_async_context(pair.a.v2())
            await peer.subscribe(channel, {"user_id": f"u{number}"})
        await heard(pair.a, pair.b)
        peer = await stack.enter_async_context(pair.b.v2())
        await peer.attach(channel, {"user_id": "one too many"})
        await peer.expect_denied(channel, 4300)
        await peer.subscribe(channel, {"user_id": "u0"})


# 3. Counts.


async def test_counts_are_those_of_all_nodes(pair: Pair) -> None:
    """In answers to publishes, and in what is asked of channels; empty ones vanish."""
    prefix = unique("presence-count")
    channel = f"{prefix}-x"
    a, b, _ = pair
    info = "subscription_count,user_count"
    counts = {"subscription_count": 3, "user_count": 2}

    async def of(api: Api) -> list[Any]:
        users = ok(await api.get(f"{channel_path(channel)}/users"))["users"]
        return [
            ok(await api.get("/channels", filter_by_prefix=prefix, info=info)),
            ok(await api.get(channel_path(channel), info=info)),
            sorted(user["id"] for user in users),
        ]

    async with a.v2() as one, b.v1() as two:
        async with b.v2() as three:
            for peer, user in ((one, "ana"), (two, "ana"), (three, "bo")):
                await peer.subscribe(channel, {"user_id": user})
            await until(lambda: known(a).count(stream(channel)) == 3)
            await until(lambda: known(b).count(stream(channel)) == 3)
            for node in (a, b):
                assert await of(node.api) == [
                    {"channels": {channel: counts}},
                    {"occupied": True, **counts},
                    ["ana", "bo"],
                ]
                answer = ok(await node.api.events(channel, info=info, **EPHEMERAL))
                assert answer["channels"][channel].items() >= counts.items()
        await two.send("unsubscribe", {"channel": channel})
        await until(lambda: known(a).count(stream(channel)) == 1)
        assert (await of(a.api))[1:] == [
            {"occupied": True, "subscription_count": 1, "user_count": 1},
            ["ana"],
        ]
    await until(lambda: known(b).count(stream(channel)) == 0)
    assert await of(b.api) == [
        {"channels": {}},
        {"occupied": False, "subscription_count": 0, "user_count": 0},
        [],
    ]


async def test_counts_are_told_together(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many subscriptions change in a moment."""
    announced: list[Any] = []
    announce = registrar(pair.a)._announce

    def noted(message: Any) -> Any:
        announced.append(message)
        return announce(message)

    monkeypatch.setattr(registrar(pair.a), "_announce", noted)
    async with pair.a.v2() as peer:
        names = [unique() for _ in range(50)]
        for name in names:
            await peer.attach(name)
        for name in names:
            await peer.expect("_subscription_succeeded", name)
        await until(lambda: all(known(pair.b).count(stream(name)) == 1 for name in names))
        assert sum(isinstance(each, Counted) for each in announced) < 25


# 4. Sockets of other nodes.


async def test_an_actor_may_be_connected_to_another_node(pair: Pair) -> None:
    """Its protocol, client id and capabilities count at once; so does that it has left."""
    channel = unique()
    a, b, _ = pair
    grants = {"message_append_own": ["*"]}
    async with b.v2() as ana, b.v2() as bo, b.v1() as old, b.v2() as nobody:
        await ana.signin("ana", grants)
        await bo.signin("bo", grants)
        ack = await a.api.publish(channel, "x", socket_id=ana.socket_id)
        serial = ack["message_serial"]

        async def append(peer: Peer, **body: Any) -> Any:
            return await a.api.try_mutate(
                "append", channel, serial, data="y", socket_id=peer.socket_id, **body
            )

        ok(await append(ana))
        ok(await append(ana, client_id="ana"))
        not_hers = "Connection client 'bo' is not allowed to append message owned by 'ana'"
        assert refused(await append(bo), 401, "auth_failed") == not_hers
        assert "protocol V2" in refused(await append(old), 401, "auth_failed")
        assert "not allowed to append" in refused(await append(nobody), 401, "auth_failed")
        assert (await b.api.item(channel, serial))["version"]["client_id"] == "ana"
    await until(lambda: b.surface.service.hub.facts("tide", ana.socket_id) is None)
    gone = f"Mutation actor socket '{ana.socket_id}' is not connected"
    assert refused(await append(ana), 401, "auth_failed") == gone
    ack = await a.api.publish(channel, "x", socket_id=ana.socket_id)
    assert "client_id" not in (await a.api.item(channel, ack["message_serial"]))["version"]


async def test_when_a_node_does_not_answer_nobody_knows_whose_socket_it_is(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is refused for now; a socket that is connected here needs no answer."""
    monkeypatch.setattr(module, "QUESTION_SECONDS", 0.1)
    name = registrar(pair.b).name
    monkeypatch.setattr(pair.b.surface.service.hub, "facts", lambda *_: 1 / 0)
    with pytest.raises(QueueFull):
        await pair.a.surface.service.socket("tide", "1.1")
    assert name in known(pair.a).nodes
    async with pair.a.v2() as peer:
        assert await pair.a.surface.service.socket("tide", peer.socket_id) is not None
    assert not registrar(pair.a)._questions


async def test_a_user_is_disconnected_on_every_node(pair: Pair) -> None:
    """Terminated with 4009, sent to reconnect with 4200; others stay."""
    a, b, _ = pair
    for operation, code in (("terminate_connections", 4009), ("force_reconnect", 4200)):
        async with a.v2() as here, b.v1() as there, b.v2() as other:
            await here.signin("ana")
            await there.signin("ana")
            await other.signin("bo")
            assert ok(await a.api.post(f"/users/ana/{operation}", {})) == {"ok": True}
            await here.expect_close(code)
            await there.expect_close(code)
            await other.quiet()


async def test_a_revoked_token_opens_nothing_on_any_node(pair: Pair, tmp_path: Path) -> None:
    """Connections end, new ones are refused, also by a node that started afterwards."""
    by_id, by_client = token("ana", jti="t-ana"), token("bo")
    async with pair.b.v2(token=by_id) as ana, pair.b.v2(token=by_client) as bo:
        answer = ok(await pair.a.api.post("/revocations", {"jti": "t-ana"}))
        assert answer == {
            "revoked_jti": "t-ana",
            "revoked_client_id": None,
            "closed_connections": 0,
        }
        ok(await pair.a.api.post("/revocations", {"client_id": "bo"}))
        for peer in (ana, bo):
            assert (await peer.expect(":token_expired"))["data"]["code"] == 40160
            assert await peer.closed() == 4009
    async with channels_server(tmp_path, pair.store) as c:
        for node in (*pair[:2], c):
            for each in (by_id, by_client):
                async with node.open(f"protocol=2&token={each}", protocol=2) as peer:
                    await peer.expect_close(4009)


async def test_a_revocation_that_nobody_was_told_of_is_found_in_the_store(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is done when it is stored, whoever hears of it; the others look for themselves."""
    announce = pair.a.server.store.announce

    async def unable(messages: Any) -> list[int]:
        if any(b'"Revoked"' in payload for _, payload in messages):
            raise StoreUnavailable("injected")
        return await announce(messages)

    monkeypatch.setattr(pair.a.server.store, "announce", unable)
    async with pair.b.v2(token=token("cy", jti="t-cy")) as peer:
        ok(await pair.a.api.post("/revocations", {"jti": "t-cy"}))
        await peer.expect(":token_expired")


async def test_a_node_that_was_cut_off_learns_what_was_revoked_meanwhile(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when no announcement of it is left."""
    a, b, _ = pair
    store, text = b.server.store, token("di", jti="t-di")
    async with b.v2(token=text) as peer:
        with monkeypatch.context() as cut:

            async def unable(*_: Any) -> Any:
                raise StoreUnavailable("injected")

            for name in ("rows", "announcements", "announce"):
                cut.setattr(store, name, unable)
            ok(await a.api.post("/revocations", {"jti": "t-di"}))
            with closing(Witness(pair.store)) as witness:
                witness.rows("DELETE FROM announcement")
            await peer.quiet()
        await peer.expect(":token_expired")
    async with b.open(f"protocol=2&token={text}", protocol=2) as peer:
        await peer.expect_close(4009)


async def test_a_revocation_that_is_not_stored_is_not_acknowledged(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503, and the token is as good as before."""
    text = token("ed", jti="t-ed")
    with monkeypatch.context() as cut:

        async def unable(*_: Any) -> Any:
            raise StoreUnavailable("injected")

        cut.setattr(pair.a.server.store.writer, "commit", unable)
        response = await pair.a.api.post("/revocations", {"jti": "t-ed"})
        refused(response, 503, "service_unavailable")
    async with pair.a.v2(token=text) as here, pair.b.v2(token=text) as there:
        await here.quiet()
        await there.quiet()


async def test_what_could_not_be_told_is_not_answered_as_done(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is stored of a user's end, so whoever asked must ask again."""
    announce, fails = pair.a.server.store.announce, 1

    async def unsteady(messages: Any) -> list[int]:
        nonlocal fails
        if fails and any(b'"EndUser"' in payload for _, payload in messages):
            fails -= 1
            raise StoreUnavailable("injected")
        return await announce(messages)

    monkeypatch.setattr(pair.a.server.store, "announce", unsteady)
    async with pair.b.v2() as peer:
        await peer.signin("cy")
        path = "/users/cy/terminate_connections"
        refused(await pair.a.api.post(path, {}), 503, "service_unavailable")
        ok(await pair.a.api.post(path, {}))
        await peer.expect_close(4009)


async def test_a_live_event_that_other_nodes_were_not_told_is_not_acknowledged(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a summary: its publisher is the only one who can send it again."""
    announce = pair.a.server.store.announce

    async def unable(messages: Any) -> list[int]:
        if any(b"Live" in payload or b"Summary" in payload for _, payload in messages):
            raise StoreUnavailable("injected")
        return await announce(messages)

    channel = unique("private-room")
    ack = await pair.a.api.publish(channel)
    monkeypatch.setattr(pair.a.server.store, "announce", unable)
    refused(await pair.a.api.events(channel, data="live", **EPHEMERAL), 503, "service_unavailable")
    summary = f"{message_path(channel, ack['message_serial'])}/summary"
    refused(await pair.a.api.post(summary, {}), 503, "service_unavailable")


async def test_a_busy_node_carries_out_what_it_was_told_meanwhile(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of live events, and the command that came after them."""
    channel, batches, per_batch = unique(), 250, 10
    gate, read = asyncio.Event(), pair.b.server.store.announcements

    async def busy(after: int) -> list[Announcement]:
        await gate.wait()
        return await read(after)

    async with pair.b.v2() as there, pair.b.v2() as user:
        await there.subscribe(channel)
        await user.signin("crowded")
        monkeypatch.setattr(pair.b.server.store, "announcements", busy)
        batch = [
            {"name": "n", "channel": channel, "data": "x", **EPHEMERAL} for _ in range(per_batch)
        ]
        try:
            for _ in range(batches):
                ok(await pair.a.api.post("/batch_events", {"batch": batch}))
            ok(await pair.a.api.post("/users/crowded/terminate_connections", {}))
        finally:
            gate.set()
        for _ in range(batches * per_batch):
            assert (await there.receive())["data"] == "x"
        await user.expect_close(4009)


# 5. Histories.


async def test_a_reset_or_purge_counts_on_every_node(pair: Pair) -> None:
    """New frames carry the new `stream_id`, positions of before fail, hidden messages are hidden.

    One node holds the channel's state for a subscriber, and both have it in their memory.
    """
    channel = unique()
    a, b, _ = pair
    async with b.v2() as peer, b.v2() as late:
        first = await peer.subscribe(channel)
        for _ in range(3):
            await a.api.publish(channel)
            await peer.expect("chat.message", channel)
        confirm = {"confirm_channel": channel, "reason": "test"}
        path = f"{channel_path(channel)}/history"
        purge = {**confirm, "confirm_operation": "purge", "mode": "before_serial"}
        ok(await a.api.post(f"{path}/purge", {**purge, "before_serial": 3}))
        state = standing(b, channel)
        await until(lambda: state.history_floor == 2)
        assert [row["serial"] for row in (await b.api.history(channel))["items"]] == [3]
        reset = {**confirm, "confirm_operation": "reset"}
        answer = ok(await a.api.post(f"{path}/reset", reset))
        assert answer["previous_stream_id"] == first["stream_id"]
        await until(lambda: state.epoch == 1)
        await b.api.publish(channel)
        frame = await peer.expect("chat.message", channel)
        assert (frame["stream_id"], frame["serial"]) == (answer["new_stream_id"], 4)
        assert (await late.subscribe(channel))["stream_id"] == answer["new_stream_id"]
        await late.resume(**{channel: {"serial": 1, "stream_id": first["stream_id"]}})
        await late.expect(":resume_failed", channel)
        [failed] = (await late.resumed())["failed"]
        assert failed["code"] == "stream_reset"
        assert failed["current_stream_id"] == answer["new_stream_id"]
        again = ok(await b.api.post(f"{path}/reset", reset))
        assert again["previous_stream_id"] == answer["new_stream_id"]


async def test_resets_on_two_nodes_at_once_are_two_resets(pair: Pair) -> None:
    """The second one sees the first, heard of or not."""
    channel = unique()
    for node in pair[:2]:
        await node.api.publish(channel)
    reset = {"confirm_channel": channel, "confirm_operation": "reset", "reason": "test"}
    path = f"{channel_path(channel)}/history/reset"
    answers = await asyncio.gather(*(node.api.post(path, reset) for node in pair[:2] * 3))
    assert len({ok(answer)["new_stream_id"] for answer in answers}) == 6


async def test_retention_on_one_node_counts_on_the_registrar(pair: Pair) -> None:
    """They replay nothing from before its floor, and do not change a message that is gone."""
    channel, filler = unique(), unique()
    a, b, _ = pair
    async with b.v2() as peer:
        first = await peer.subscribe(channel)
        streaming = {"extras": {"ai": {"transport": {"status": "streaming"}}}}
        serial = (await b.api.publish(channel, "x", **streaming))["message_serial"]
        await b.api.mutate("append", channel, serial, data="y")
        state = b.surface.owner.states._channels[stream(channel)]
        assert (state.replay_floor, state.open_streams) == (0, 1)
        await asyncio.sleep(1.05)
        await a.api.publish(filler)
        assert await a.surface.owner.retention.tick() >= 2
        await until(lambda: (state.replay_floor, state.open_streams) == (2, 0))
        response = await b.api.try_mutate("append", channel, serial, data="z")
        assert response.status_code == 404, response.text
        async with b.v2() as late:
            await late.resume(**{channel: {"serial": 1, "stream_id": first["stream_id"]}})
            await late.expect(":resume_failed", channel)
            [failed] = (await late.resumed())["failed"]
            assert failed["code"] == "position_expired"


# 6. Nodes that come and go.


async def test_a_node_that_starts_learns_and_one_that_ends_is_forgotten(
    pair: Pair, tmp_path: Path
) -> None:
    """With its counts; its members are told to have left, unless they are elsewhere too."""
    channel = unique("presence-third")
    a, b, _ = pair
    async with a.v2() as ana, b.v2() as both:
        await ana.subscribe(channel, {"user_id": "ana", "user_info": 1})
        await heard(a, b)
        await both.subscribe(channel, {"user_id": "both"})
        await ana.expect("_member_added", channel)
        async with channels_server(tmp_path, pair.store) as c:
            name = registrar(c).name
            await until(lambda: len(known(c).members(stream(channel))) == 2)
            await until(lambda: known(c).count(stream(channel)) == 2)
            async with c.v2() as cy, c.v2() as both_too:
                snapshot = presence(await cy.subscribe(channel, {"user_id": "cy"}))
                assert snapshot["hash"] == {"ana": 1, "both": None, "cy": None}
                await both_too.subscribe(channel, {"user_id": "both"})
                for peer in (ana, both):
                    assert member(await peer.expect("_member_added", channel)) == ("cy", None)
                await until(lambda: known(a).count(stream(channel)) == 4)
                c.server.stop()
                assert await cy.closed() >= 1000
        for peer in (ana, both):
            assert member(await peer.expect("_member_removed", channel)) == ("cy", None)
            await peer.quiet()
        assert name not in known(a).nodes | known(b).nodes
        assert known(a).count(stream(channel)) == 2


async def test_the_members_of_a_lost_front_leave_on_every_node(pair: Pair) -> None:
    """Without waiting until anybody is silent; those who are on another front of it stay."""
    channel = unique("presence-front")
    a, b, _ = pair
    front = ListeningFront(a.surface.owner, VOCABULARY)
    await front.end.reply(Hello(follows_all=False), Welcome)
    async with a.v2() as here, b.v2() as there:
        await there.subscribe(channel, {"user_id": "ana"})
        await heard(b, a)
        await here.subscribe(channel, {"user_id": "bo"})
        for user in ("bo", "cy"):
            await front.end.reply(Join(stream(channel), user, None), Admitted)
        assert [member(await there.expect("_member_added", channel))[0] for _ in "bc"] == [
            "bo",
            "cy",
        ]
        await until(lambda: known(b).count(stream(channel)) == 4)
        front.at_owner.lost()
        for peer in (there, here):
            while (frame := await peer.receive())["event"].endswith(":member_added"):
                pass
            assert frame["event"].endswith(":member_removed")
            assert member(frame)[0] == "cy"
            await peer.quiet()
        await until(lambda: known(b).count(stream(channel)) == 2)


async def test_a_node_that_missed_announcements_asks_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether another one failed to tell, or it could not listen itself."""
    channel = unique("presence-missed")
    a, b, _ = pair
    announce = a.server.store.announce
    lost: list[Any] = []

    async def unsteady(messages: Any) -> list[int]:
        if not lost and any(b'"Joined"' in payload for _, payload in messages):
            lost.append(messages)
            raise StoreUnavailable("injected")
        return await announce(messages)

    monkeypatch.setattr(a.server.store, "announce", unsteady)
    async with a.v2() as ana, b.v2() as bo:
        await bo.subscribe(channel, {"user_id": "bo"})
        await heard(b, a)
        await ana.subscribe(channel, {"user_id": "ana"})
        assert member(await bo.expect("_member_added", channel)) == ("ana", None)
        assert lost

        known(b).left(registrar(a).name, stream(channel), "ana")
        there = b.surface.service.hub.channel(stream(channel))
        assert there is not None
        del there.members["ana"]
        known(b).counted(registrar(a).name, [(stream(channel), 7)])
        state = b.surface.owner.states._channels[stream(channel)]
        state.epoch = -1
        for missed in b.server.committer.announcements._missed:
            missed()
        assert member(await bo.expect("_member_added", channel)) == ("ana", None)
        assert known(b).count(stream(channel)) == 2
        await until(lambda: state.epoch == 0)


async def test_a_node_that_was_not_told_of_a_changed_history_notices_soon(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the number of what it is told next; then it reads what it holds again."""
    channel = unique()
    a, b, _ = pair
    announce = a.server.store.announce
    lost: list[Any] = []

    async def unsteady(messages: Any) -> list[int]:
        if not lost and any(b"HistoryChanged" in payload for _, payload in messages):
            lost.append(messages)
            raise StoreUnavailable("injected")
        return await announce(messages)

    async with b.v2() as peer:
        await peer.subscribe(channel)
        state = b.surface.owner.states._channels[stream(channel)]
        state.epoch = standing(b, channel).epoch = -1
        monkeypatch.setattr(a.server.store, "announce", unsteady)
        with pytest.raises(StoreUnavailable):
            await a.surface.owner.others.tell(other_nodes.HistoryChanged((stream(channel),)))
        await until(lambda: (state.epoch, standing(b, channel).epoch) == (0, 0))


async def test_alone_on_sqlite_nothing_is_told_and_nothing_ticks(tmp_path: Path) -> None:
    """No announcement, no task, no timer."""
    async with channels_server(tmp_path) as node, node.v2() as peer:
        await peer.subscribe("presence-x", {"user_id": "ana"})
        ok(await node.api.events("presence-x", **EPHEMERAL))
        assert await node.surface.service.socket("tide", "1.1") is None
        alone = registrar(node)
        assert (alone._number, alone._tick, alone._beating) == (0, None, None)
        assert (alone.is_provisional, alone._provisional_until) == (False, None)
        assert not node.server.committer.announcements._sinks
