"""`ChannelClient` and `ChannelPublisher` against a real server, through a network that fails."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.channels.peer import (
    APP,
    Api,
    ChannelsNode,
    Peer,
    channels_server,
    ok,
    token,
    unique,
    until,
)
from support.serve import workers
from support.web.relay import Relay
from tidelog.channels.upkeep import streams
from tidelog.client import (
    Authorization,
    Channel,
    ChannelClient,
    ChannelOffline,
    ChannelPublisher,
    Message,
    PublishFailed,
    PublishRefused,
    Reset,
    StreamEnded,
    SubscriptionRefused,
)
from tidelog.client.backoff import Backoff
from tidelog.client.channels import token_buffer
from tidelog.testing.clock import FakeClock
from tidelog.testing.postgresql import create_database

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUICK = Backoff(first=0.01, most=0.05)
WAIT_SECONDS = 60.0
WORDS = [f"w{number} " for number in range(60)]


WINDOWS: tuple[dict[str, Any], ...] = (
    {},
    {"append_rollup_window": 40},
    {"append_rollup_window": 100, "append_mode": "full"},
)
"""How clients may want appends."""


@pytest.fixture(scope="module", params=("sqlite", "postgresql"))
def engine(request: pytest.FixtureRequest) -> str:
    """Name of the engine; every test runs on both."""
    name: str = request.param
    return name


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(
    engine: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> str:
    """One store for all tests of an engine; they use channels of their own."""
    if engine == "postgresql":
        return await create_database(request.getfixturevalue("postgresql_server"))
    return str(tmp_path_factory.mktemp("store") / "tidelog.db")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(store: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ChannelsNode]:
    """A server with a small window for resuming."""
    async with channels_server(
        tmp_path_factory.mktemp("data"), store, connection_recovery={"max_buffer_size": 100}
    ) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def relay(node: ChannelsNode) -> AsyncIterator[Relay]:
    """The network in front of it."""
    async with Relay(node.port) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def publisher(node: ChannelsNode) -> AsyncIterator[ChannelPublisher]:
    """The app's server, with a good network."""
    async with publish_to(f"127.0.0.1:{node.port}") as made:
        yield made


def publish_to(address: str, **options: Any) -> ChannelPublisher:
    """A publisher of the first app."""
    options = {"backoff": QUICK, "attempts": 1000, **options}
    return ChannelPublisher(f"http://{address}", APP.id, APP.key, APP.secret, **options)


def connect_to(address: str, **options: Any) -> ChannelClient:
    """A client of the first app."""
    return ChannelClient(f"ws://{address}", APP.key, backoff=QUICK, **options)


async def read_until(channel: Channel, is_enough: Callable[[Message], bool]) -> list[Message]:
    """The messages up to the first that is enough."""
    seen = []
    async with asyncio.timeout(WAIT_SECONDS):
        async for message in channel:
            seen.append(message)
            if is_enough(message):
                return seen
    raise AssertionError("the channel ended")


def is_done(message: Message) -> bool:
    """Whether a stream has ended."""
    return message.status == "complete"


async def test_the_last_event_of_a_cache_channel_is_given(
    node: ChannelsNode, publisher: ChannelPublisher
) -> None:
    """To who comes without a rewind; one with a rewind is given the state, once."""
    room = unique("cache-room")
    receipt = await publisher.publish(room, "price", "1")
    assert receipt.message_serial is not None
    async with connect_to(f"127.0.0.1:{node.port}") as client:
        async with client.subscribe(room) as channel:
            [seen] = await read_until(channel, lambda _: True)
            assert (seen.name, seen.data) == ("price", "1")
        await publisher.append(room, receipt.message_serial, "2")
        async with client.subscribe(room, rewind=5) as channel:
            assert [message.data for message in channel.messages] == ["12"]


async def test_messages_are_folded_alike_from_deltas_and_whole_texts(
    node: ChannelsNode, publisher: ChannelPublisher
) -> None:
    """Create, append, update, delete: both modes end with the server's own state."""
    channel = unique()
    address = f"127.0.0.1:{node.port}"
    async with (
        connect_to(address) as first,
        connect_to(address, append_mode="full") as second,
        first.subscribe(channel) as deltas,
        second.subscribe(channel) as wholes,
    ):
        one = await publisher.publish(channel, "chat", "one", extras={"headers": {"a": 1}})
        two = await publisher.publish(channel, "chat", {"n": 2})
        assert one.message_serial is not None
        assert two.message_serial is not None
        await publisher.append(channel, one.message_serial, " and more")
        await publisher.update(channel, one.message_serial, name="edited", clear=["extras"])
        await publisher.append(channel, one.message_serial, "!")
        await publisher.delete(channel, two.message_serial, clear=["data"])
        last = await publisher.publish(channel, "end", "")
        for subscriber in (deltas, wholes):
            await read_until(subscriber, lambda message: message.name == "end")
        assert deltas.messages == wholes.messages
        assert [message.serial for message in deltas.messages] == [
            one.message_serial,
            two.message_serial,
            last.message_serial,
        ]
        edited, deleted, _ = deltas.messages
        assert (edited.name, edited.data, edited.extras) == ("edited", "one and more!", {})
        assert edited.action == "append"
        assert (deleted.is_deleted, deleted.data) == (True, None)
        stored = await node.api.item(channel, one.message_serial)
        assert stored["data"] == edited.data
        assert stored["version"]["serial"] == edited.version_serial
        assert stored["delivery_serial"] == edited.delivery_serial
        assert deltas.get(two.message_serial) == deleted


async def test_a_late_joiner_sees_the_whole_text(
    node: ChannelsNode, publisher: ChannelPublisher
) -> None:
    """By rewind at once; without one as soon as the history has been asked."""
    channel = unique()
    address = f"127.0.0.1:{node.port}"
    async with publisher.stream(channel, "answer") as stream:
        await stream.write("Once upon ")
        await until_text(node.api, channel, stream.message_serial, "Once upon ")
        async with (
            connect_to(address) as client,
            client.subscribe(channel, rewind=10) as rewound,
            connect_to(address) as other,
            other.subscribe(channel) as plain,
        ):
            assert [message.data for message in rewound.messages] == ["Once upon "]
            assert not plain.messages
            await stream.write("a time")
            await read_until(rewound, lambda message: message.data == "Once upon a time")
            seen = await read_until(plain, lambda message: not message.is_partial)
            assert seen[-1].data == "Once upon a time"
            assert all(message.data == "a time" for message in seen[:-1])


async def until_text(api: Api, channel: str, serial: str, text: str) -> None:
    """Wait until the server has a text."""
    async with asyncio.timeout(WAIT_SECONDS):
        while (await api.item(channel, serial))["data"] != text:  # noqa: ASYNC110 - a server's
            await asyncio.sleep(0.01)


async def test_a_cut_network_costs_nothing_while_tokens_stream(
    node: ChannelsNode, relay: Relay
) -> None:
    """Subscribers and publisher lose their connections again and again; the text is exact.

    Also if tokens come together, and some are held back for a subscriber when it is cut off.
    """
    channel = unique()
    resets: list[Reset] = []
    async with AsyncExitStack() as stack:
        publisher = await stack.enter_async_context(publish_to(relay.address))
        followed = []
        for options in WINDOWS:
            client = await stack.enter_async_context(connect_to(relay.address, **options))
            made = client.subscribe(channel, on_reset=resets.append)
            followed.append((client, await stack.enter_async_context(made)))
        reading = [
            asyncio.create_task(read_until(subscriber, is_done)) for _, subscriber in followed
        ]
        async with publisher.stream(channel, "answer") as stream:
            for number, word in enumerate(WORDS):
                await stream.write(word)
                await asyncio.sleep(0.002)
                if number % 15 == 7:
                    relay.cut()
        for (client, subscriber), read in zip(followed, reading, strict=True):
            seen = await read
            assert seen[-1].data == "".join(WORDS)
            assert all(seen[-1].data.startswith(message.data) for message in seen)
            assert [message.data for message in subscriber.messages] == ["".join(WORDS)]
            assert client.connections > 2
        assert not resets
        versions = await node.api.versions(channel, stream.message_serial, limit=100)
        texts = [version.get("data", "") for version in reversed(versions["items"])]
        assert "".join(texts) == "".join(WORDS)


async def test_a_window_that_is_none_is_refused_here() -> None:
    """Before anything is connected."""
    with pytest.raises(ValueError, match="append_rollup_window must be"):
        connect_to("127.0.0.1:1", append_rollup_window=30)


async def test_a_restart_of_the_server_is_no_gap(engine: str, store: str, tmp_path: Path) -> None:
    """A stream goes on over the restart, and what came before it is not seen twice."""
    location = store if engine == "postgresql" else str(tmp_path / "tidelog.db")
    channel = unique()
    seen: list[Message] = []

    async def follow(subscriber: Channel) -> None:
        seen.extend(await read_until(subscriber, is_done))

    async with (
        Relay() as relay,
        connect_to(relay.address) as client,
        publish_to(relay.address) as publisher,
    ):
        async with channels_server(tmp_path / "data", location) as first:
            relay.target = first.port
            subscriber = await client.subscribe(channel).__aenter__()
            reading = asyncio.create_task(follow(subscriber))
            stream = await publisher.stream(channel, "answer").__aenter__()
            await stream.write("before ")
            await until(lambda: subscriber.messages and subscriber.messages[0].data == "before ")
        await stream.write("meanwhile ")
        async with channels_server(tmp_path / "data", location) as second:
            relay.target = second.port
            await stream.write("after")
            await stream.__aexit__(None, None, None)
            await reading
            await subscriber.__aexit__(None, None, None)
    assert seen[-1].data == "before meanwhile after"
    assert len({message.delivery_serial for message in seen}) == len(seen)
    # While fronts end, one that is not told yet may take who has left another.
    assert 2 <= client.connections <= 2 + workers.count()
    assert subscriber.resets == 0


async def test_a_lost_answer_publishes_nothing_twice(
    node: ChannelsNode, relay: Relay, publisher: ChannelPublisher
) -> None:
    """Publish, append and update reach the server, their answers are lost, and are repeated."""
    channel = unique()
    async with publish_to(relay.address) as unlucky:
        relay.lost_answers = 1
        receipt = await unlucky.publish(channel, "chat", "a")
        assert receipt.message_serial is not None
        relay.lost_answers = 2
        appended = await unlucky.append(channel, receipt.message_serial, "b")
        assert appended.is_duplicate
        relay.lost_answers = 1
        assert (await unlucky.update(channel, receipt.message_serial, name="n")).is_duplicate
    assert relay.lost_answers == 0
    page = await node.api.history(channel)
    assert [row["message"]["data"] for row in page["items"]] == ["ab"]
    versions = await node.api.versions(channel, receipt.message_serial)
    assert [version["action"] for version in versions["items"]] == ["update", "append", "create"]
    again = await publisher.publish(channel, "chat", "a", message_id=receipt.key)
    assert again.message_serial == receipt.message_serial


async def test_what_cannot_be_resumed_is_reset_and_rewound(
    node: ChannelsNode, relay: Relay, publisher: ChannelPublisher
) -> None:
    """More is missed than is sent again: the caller is told, and sees what there is now."""
    channel = unique()
    resets: list[Reset] = []
    async with (
        connect_to(relay.address) as client,
        client.subscribe(channel, rewind=5, on_reset=resets.append) as subscriber,
    ):
        first = await publisher.publish(channel, "chat", "first")
        assert first.message_serial is not None
        await read_until(subscriber, lambda message: message.data == "first")
        relay.target, target = 1, relay.target  # nobody listens there
        relay.cut()
        await until(lambda: client.socket_id is None)
        await asyncio.gather(*(publisher.publish(channel, "chat", str(n)) for n in range(101)))
        last = await publisher.publish(channel, "end", "end")
        relay.target = target
        seen = await read_until(subscriber, lambda message: message.name == "end")
        assert len(seen) == len(subscriber.messages) == 5
        assert subscriber.messages[-1].serial == last.message_serial
        assert subscriber.get(first.message_serial) is None
    assert [reset.code for reset in resets] == ["position_expired"]
    assert subscriber.resets == 1


async def test_a_new_history_is_told_of(node: ChannelsNode, publisher: ChannelPublisher) -> None:
    """A frame of another stream means a reset, even without any interruption."""
    channel = unique()
    async with (
        connect_to(f"127.0.0.1:{node.port}") as client,
        client.subscribe(channel, rewind=10) as subscriber,
    ):
        await publisher.publish(channel, "chat", "old")
        await read_until(subscriber, lambda message: message.data == "old")
        confirmed = {"confirm_channel": channel, "confirm_operation": "reset", "reason": "test"}
        ok(await node.api.post(f"/channels/{channel}/history/reset", confirmed))
        await publisher.publish(channel, "chat", "new")
        await read_until(subscriber, lambda message: message.data == "new")
        assert [message.data for message in subscriber.messages] == ["new"]
        assert subscriber.resets == 1


async def test_what_the_server_keeps_from_its_sender_is_fetched(
    node: ChannelsNode, publisher: ChannelPublisher
) -> None:
    """A publish that excludes this socket leaves a gap in what it is sent; a resume fills it."""
    channel = unique()
    async with (
        connect_to(f"127.0.0.1:{node.port}") as client,
        client.subscribe(channel) as subscriber,
    ):
        await publisher.publish(channel, "chat", "mine", socket_id=client.socket_id)
        await publisher.publish(channel, "chat", "yours")
        await read_until(subscriber, lambda message: message.data == "yours")
        assert [message.data for message in subscriber.messages] == ["mine", "yours"]
        assert (client.connections, subscriber.resets) == (1, 0)


async def test_a_cancelled_writer_says_so(node: ChannelsNode, publisher: ChannelPublisher) -> None:
    """What was written before the cancellation is there, and the stream is marked."""
    channel = unique()
    streams = []

    async def write() -> None:
        async with publisher.stream(channel, "answer", extras={"headers": {"m": 1}}) as stream:
            await stream.write("half an ")
            await stream.write("answer")
            streams.append(stream)
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await until(lambda: streams)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    found = await node.api.item(channel, streams[0].message_serial)
    assert found["data"] == "half an answer"
    assert found["extras"]["ai"] == {"transport": {"status": "cancelled"}}
    assert found["extras"]["headers"]["m"] == 1
    with pytest.raises(StreamEnded):
        await streams[0].write("more")


async def test_a_stream_that_fails_leaves_no_empty_message(
    node: ChannelsNode, publisher: ChannelPublisher, tmp_path: Path
) -> None:
    """Neither where the model fails at once, nor where messages cannot change: that is told."""
    channel = unique()

    async def ask_model(writer: ChannelPublisher, *tokens: str) -> None:
        async with writer.stream(channel, "answer") as stream:
            for token in tokens:
                await stream.write(token)
            raise ZeroDivisionError("the model is away")

    with pytest.raises(ZeroDivisionError):
        await ask_model(publisher)
    assert (await node.api.history(channel))["items"] == []
    for off, setting in (
        ({"versioned_messages": {"enabled": False}}, "channels.versioned_messages.enabled"),
        ({"history": {"channels": ["other"]}}, "channels.history.channels"),
    ):
        async with (
            channels_server(tmp_path / setting, **off) as without,
            publish_to(f"127.0.0.1:{without.port}") as writer,
            without.v1() as v1,
        ):
            await v1.subscribe(channel)
            with pytest.raises(PublishRefused, match=setting):
                await ask_model(writer, "a", "b")
            await nothing_else_live(without, channel, v1)


async def test_a_writer_that_pauses_keeps_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the model thinks, the server does not take the writer for dead."""
    monkeypatch.setattr(token_buffer, "KEEP_OPEN_S", 0.02)
    monkeypatch.setattr(streams, "SWEEP_SECONDS", 0.02)
    channel, clock = unique(), FakeClock(int(time.time() * 1000))
    async with (
        channels_server(tmp_path, clock=clock) as server,
        publish_to(f"127.0.0.1:{server.port}") as writer,
    ):
        async with writer.stream(channel, "answer") as stream:
            await stream.write("Let me think. ")
            for _ in range(4):
                clock.advance(30_000)
                async with asyncio.timeout(WAIT_SECONDS):
                    while (  # noqa: ASYNC110 - a server's
                        await last_written(server.api, channel, stream.message_serial)
                        < clock.now_ms()
                    ):
                        await asyncio.sleep(0.01)
            await stream.write("42")
        found = await server.api.item(channel, stream.message_serial)
        assert found["data"] == "Let me think. 42"
        assert found["extras"]["ai"] == {"transport": {"status": "complete"}}


async def last_written(api: Api, channel: str, serial: str) -> int:
    """When the latest version of a message was written, in milliseconds."""
    version: str = (await api.item(channel, serial))["version"]["serial"]
    return int(version.partition(":")[0])


async def nothing_else_live(node: ChannelsNode, channel: str, peer: Peer) -> None:
    """A subscriber was sent nothing: what is published now comes next."""
    ok(await node.api.events(channel, name="marker"))
    await peer.expect("marker", channel)


async def test_a_slow_reader_gets_the_latest_state(
    node: ChannelsNode, publisher: ChannelPublisher
) -> None:
    """However many appends there were, one message waits; and the oldest are let go."""
    channel = unique()
    async with (
        connect_to(f"127.0.0.1:{node.port}") as client,
        client.subscribe(channel, limit=2) as subscriber,
    ):
        for name in ("a", "b"):
            async with publisher.stream(channel, name) as stream:
                for word in WORDS:
                    await stream.write(word)
        await publisher.publish(channel, "c", "")
        await until(lambda: subscriber.messages[-1:] and subscriber.messages[-1].name == "c")
        seen = await read_until(subscriber, lambda message: message.name == "c")
        assert [message.name for message in seen] == ["b", "c"]
        assert seen[0].data == "".join(WORDS)
        assert subscriber.missed == 1


async def test_private_presence_and_client_events(
    node: ChannelsNode, publisher: ChannelPublisher
) -> None:
    """Both are let in by the application; members and events are seen by the other."""
    channel = unique("presence-lab")
    address = f"127.0.0.1:{node.port}"

    def authorize(user: str) -> Callable[[str, str], Any]:
        async def sign(name: str, socket_id: str) -> Authorization:
            if "forbidden" in name:
                raise PermissionError(name)
            return publisher.authorization(name, socket_id, user_id=user, user_info={"of": user})

        return sign

    async with (
        connect_to(address, authorize=authorize("ana")) as ana,
        connect_to(address, authorize=authorize("bo")) as bo,
        ana.subscribe(channel) as hers,
        bo.subscribe(channel) as his,
    ):
        assert dict(his.members) == {"ana": {"of": "ana"}, "bo": {"of": "bo"}}
        await until(lambda: len(hers.members) == 2)
        await hers.trigger("client-typing", {"now": True})
        [seen] = await read_until(his, lambda message: True)
        assert (seen.name, seen.data, seen.client_id) == ("client-typing", {"now": True}, "ana")
        with pytest.raises(SubscriptionRefused, match="PermissionError"):
            async with ana.subscribe("private-forbidden"):
                pass
    async with connect_to(address) as nobody:
        with pytest.raises(SubscriptionRefused, match="authorize"):
            async with nobody.subscribe("private-x"):
                pass
        with pytest.raises(SubscriptionRefused, match="channel name"):
            async with nobody.subscribe("no spaces"):
                pass


async def test_ephemeral_events_pass_by(node: ChannelsNode, publisher: ChannelPublisher) -> None:
    """They are given and not kept."""
    channel = unique()
    async with (
        connect_to(f"127.0.0.1:{node.port}") as client,
        client.subscribe(channel) as subscriber,
    ):
        receipt = await publisher.publish(channel, "ping", "1", extras={"ephemeral": True})
        assert receipt.message_serial is None
        [seen] = await read_until(subscriber, lambda message: True)
        assert (seen.action, seen.data, seen.history_serial) == ("event", "1", None)
        assert not subscriber.messages


async def test_a_connection_that_is_refused_is_not_repeated(node: ChannelsNode) -> None:
    """An unknown app and a bad token end it, with the server's reason."""
    address = f"ws://127.0.0.1:{node.port}"
    async with ChannelClient(address, "nobody", backoff=QUICK) as client:
        with pytest.raises(ChannelOffline, match="4001"):
            async with client.subscribe("room"):
                pass
        with pytest.raises(ChannelOffline, match="4001"):
            async with client.subscribe("room"):
                pass
    async with ChannelClient(address, APP.key, token="x", backoff=QUICK) as client:
        with pytest.raises(ChannelOffline, match="4009"):
            async with client.subscribe("room"):
                pass


async def test_tokens_are_fetched_for_each_connection(node: ChannelsNode, relay: Relay) -> None:
    """Also for the one after a cut."""
    fetched = []

    async def fetch() -> str:
        fetched.append(token(capability={"*": ["subscribe"]}))
        return fetched[-1]

    async with (
        connect_to(relay.address, token=fetch) as client,
        client.subscribe(unique()),
    ):
        relay.cut()
        await until(lambda: client.connections == 2)
    assert len(fetched) >= 2


async def test_refusals_and_failures_of_publishing(
    node: ChannelsNode, publisher: ChannelPublisher
) -> None:
    """A refusal is told at once with its code; no answer at all after the last attempt."""
    channel = unique()
    with pytest.raises(PublishRefused) as refused:
        await publisher.append(channel, "nothing", "x")
    assert (refused.value.status, refused.value.code) == (404, "not_found")

    async def write_to_what_has_ended() -> None:
        async with publisher.stream(channel, "answer") as stream:
            ended = {"ai": {"transport": {"status": "complete"}}}
            await stream.write("x")
            await publisher.append(channel, stream.message_serial, "", extras=ended)
            for _ in range(1000):
                await stream.write("x")
                await asyncio.sleep(0.01)

    with pytest.raises(PublishRefused, match="terminal"):
        await write_to_what_has_ended()
    async with publish_to("127.0.0.1:1", attempts=2) as nobody:
        with pytest.raises(PublishFailed, match="2 attempts"):
            await nobody.publish(channel, "chat", "x")
