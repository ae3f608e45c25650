"""Both publishers, the one that awaits and the one that blocks: one API, the same results."""

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from support.channels.peer import APP, unique
from support.web.relay import Relay
from tidelog.client import (
    Authorization,
    BlockingChannelPublisher,
    ChannelClient,
    ChannelPublisher,
    PublishFailed,
    PublishRefused,
    StreamEnded,
    SubscriptionRefused,
)
from tidelog.client.backoff import Backoff
from tidelog.client.channels import calls, token_buffer
from tidelog.testing.process import ServerProcess

QUICK = Backoff(first=0.01, most=0.05)
WAIT_SECONDS = 60.0

Call = Callable[..., Awaitable[Any]]


def blocking(address: str, **options: Any) -> BlockingChannelPublisher:
    """A publisher of the app."""
    options = {"backoff": QUICK, "attempts": 1000, **options}
    return BlockingChannelPublisher(f"http://{address}", APP.id, APP.key, APP.secret, **options)


@asynccontextmanager
async def asking(kind: str, server: ServerProcess) -> AsyncIterator[Call]:
    """A function that calls a method of a publisher by its name, whichever kind it is."""
    if kind == "blocking":
        with blocking(f"127.0.0.1:{server.port}") as publisher:
            yield lambda name, *args, **more: asyncio.to_thread(
                getattr(publisher, name), *args, **more
            )
    else:
        async with ChannelPublisher(server.url, APP.id, APP.key, APP.secret) as publisher_:
            yield lambda name, *args, **more: getattr(publisher_, name)(*args, **more)


@pytest.fixture(params=("awaiting", "blocking"))
def kind(request: pytest.FixtureRequest) -> str:
    """Which publisher."""
    name: str = request.param
    return name


def test_the_two_have_the_same_methods() -> None:
    """With the same arguments, and those of the calls they make."""

    def methods(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(method).parameters)
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_") and name != "close"
        }

    assert methods(ChannelPublisher) == methods(BlockingChannelPublisher)
    for name in ("publish", "history", "users"):
        made = getattr(calls, name)
        assert methods(ChannelPublisher)[name] == ["self", *inspect.signature(made).parameters]
        assert getattr(BlockingChannelPublisher, name).__doc__ == made.__doc__


async def test_writing_and_reading(server: ServerProcess, kind: str) -> None:
    """Every change is in what is read: the message, its versions, the history page by page."""
    room = unique()
    async with asking(kind, server) as ask:
        first = await ask("publish", room, "said", "a", message_id="one")
        serial = first.message_serial
        assert (await ask("publish", room, "said", "a", message_id="one")) == first
        await ask("append", room, serial, "b", description="more")
        await ask("update", room, serial, extras={"headers": {"k": 1}}, metadata={"by": "ana"})
        for number in range(4):
            await ask("publish", room, "said", {"number": number})
        await ask("delete", room, (await ask("publish", room, "said", "z")).message_serial)

        message = await ask("message", room, serial)
        assert (message.channel, message.serial, message.data) == (room, serial, "ab")
        assert (message.name, message.action, message.extras) == (
            "said",
            "update",
            {"headers": {"k": 1}},
        )
        assert (message.history_serial, message.delivery_serial) == (1, 3)

        page = await ask("versions", room, serial, limit=2, direction="oldest_first")
        assert [(each.action, each.data) for each in page.items] == [
            ("create", "a"),
            ("append", "b"),
        ]
        assert page.items[1].description == "more"
        rest = await ask(
            "versions", room, serial, limit=2, direction="oldest_first", cursor=page.next_cursor
        )
        [last] = rest.items
        assert (last.action, last.metadata, last.delivery_serial) == ("update", {"by": "ana"}, 3)
        assert rest.next_cursor is None

        page = await ask("history", room, limit=4, direction="oldest_first")
        assert [each.history_serial for each in page.items] == [1, 2, 3, 4]
        assert (page.items[0].serial, page.items[0].data) == (serial, "ab")
        assert page.items[1].json() == {"number": 0}
        assert page.items[0].published_at_ms <= page.items[0].version_timestamp_ms
        rest = await ask(
            "history", room, limit=4, direction="oldest_first", cursor=page.next_cursor
        )
        assert [each.is_deleted for each in rest.items] == [False, True]
        assert rest.next_cursor is None
        some = await ask("history", room, start_serial=2, end_serial=3)
        assert [each.history_serial for each in some.items] == [3, 2]


async def test_the_whole_history_is_read_page_by_page(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`messages` goes on where the page before it ended, in both directions."""
    room = unique()
    made = calls.history
    monkeypatch.setattr(calls, "history", lambda *args, **more: made(*args, limit=2, **more))
    async with ChannelPublisher(server.url, APP.id, APP.key, APP.secret) as publisher:
        for number in range(5):
            await publisher.publish(room, "said", number)
        found = [each.data async for each in publisher.messages(room, direction="oldest_first")]
    assert found == ["0", "1", "2", "3", "4"]

    def read() -> list[Any]:
        with blocking(f"127.0.0.1:{server.port}") as app:
            return [each.data for each in app.messages(room)]

    assert await asyncio.to_thread(read) == ["4", "3", "2", "1", "0"]


async def test_who_is_there(server: ServerProcess, kind: str) -> None:
    """Channels with their counts, one channel, the users of a presence channel."""
    lab, room = unique("presence-lab"), unique()
    signer = blocking(f"127.0.0.1:{server.port}")

    async def authorize(channel: str, socket_id: str) -> Authorization:
        return signer.authorization(channel, socket_id, user_id="ana")

    client = ChannelClient(f"ws://127.0.0.1:{server.port}", APP.key, authorize=authorize)
    async with (
        asking(kind, server) as ask,
        client,
        client.subscribe(lab),
        client.subscribe(room),
    ):
        found = await ask("channels", "presence-", info=["user_count", "subscription_count"])
        assert (found[lab].user_count, found[lab].subscription_count) == (1, 1)
        assert room not in found
        plain = await ask("channels")
        assert plain[room].is_occupied
        assert plain[room].subscription_count is None
        one = await ask("channel", room)
        assert (one.is_occupied, one.subscription_count, one.user_count) == (True, 1, None)
        assert not (await ask("channel", unique())).is_occupied
        assert await ask("users", lab) == ["ana"]
        with pytest.raises(PublishRefused, match="presence") as refused:
            await ask("users", room)
        assert (refused.value.status, refused.value.code) == (400, "invalid_input")


async def test_a_token_opens_what_it_says(server: ServerProcess) -> None:
    """And nothing else."""
    signer = blocking(f"127.0.0.1:{server.port}")
    room = unique()

    async def token() -> str:
        return signer.token("ana", {f"{room}*": ["subscribe", "history"]}, lifetime_s=60)

    async with ChannelClient(f"ws://127.0.0.1:{server.port}", APP.key, token=token) as client:
        async with client.subscribe(room, rewind=1):
            pass
        with pytest.raises(SubscriptionRefused, match="Not allowed"):
            async with client.subscribe("another"):
                pass
    with pytest.raises(ValueError, match="lifetime_s"):
        signer.token("ana", {}, lifetime_s=86_401)


async def test_a_lost_answer_publishes_nothing_twice(server: ServerProcess) -> None:
    """A request whose response is lost is repeated under its key."""
    room = unique()
    async with Relay(server.port) as relay:
        publisher = blocking(relay.address)

        def write() -> str:
            relay.lost_answers = 2
            serial = publisher.publish(room, "said", "a").message_serial
            assert serial is not None
            relay.lost_answers = 1
            assert publisher.append(room, serial, "b").is_duplicate
            return serial

        serial = await asyncio.to_thread(write)
        page = await asyncio.to_thread(publisher.history, room)
        assert [each.data for each in page.items] == ["ab"]
        versions = await asyncio.to_thread(publisher.versions, room, serial)
        assert [each.action for each in versions.items] == ["append", "create"]


async def test_threads_share_few_connections(server: ServerProcess) -> None:
    """Requests one after the other use one connection, many at a time no more than threads."""
    room = unique()
    async with Relay(server.port) as relay:
        publisher = blocking(relay.address)

        def publish(number: int) -> int | None:
            return publisher.publish(room, "said", str(number)).history_serial

        for number in range(5):
            await asyncio.to_thread(publish, number)
        assert relay.accepted == 1
        async with ChannelPublisher(f"http://{relay.address}", APP.id, APP.key, APP.secret) as app:
            for _ in range(3):
                await app.users("presence-lab")
        assert relay.accepted == 2

        def at_once() -> list[int | None]:
            with ThreadPoolExecutor(8) as threads:
                return list(threads.map(publish, range(5, 85)))

        serials = await asyncio.to_thread(at_once)
        assert sorted(serial or 0 for serial in serials) == list(range(6, 86))
        assert relay.accepted <= 9
        relay.cut()
        await asyncio.to_thread(publish, 85)  # what the network has ended is opened again


def test_a_forked_process_opens_its_own_connection(server: ServerProcess) -> None:
    """As under gunicorn: parent and child publish in turn, and neither reads the other's reply."""
    room = unique()
    publisher = blocking(f"127.0.0.1:{server.port}")
    publisher.publish(room, "said", "parent")
    child = os.fork()
    if child == 0:  # pragma: no cover - runs in the child
        code = 1
        try:
            publisher.publish(room, "said", "child")
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    publisher.publish(room, "said", "parent again")
    found = [each.data for each in publisher.messages(room, direction="oldest_first")]
    assert found == ["parent", "child", "parent again"]


def test_refusals_and_failures(server: ServerProcess) -> None:
    """The errors are those of the other publisher."""
    address = f"127.0.0.1:{server.port}"
    with pytest.raises(PublishRefused) as refused:
        blocking(address).message("room", "00000000000000000001:none:00000000000000000001")
    assert (refused.value.status, refused.value.code) == (404, "not_found")
    stranger = BlockingChannelPublisher(f"http://{address}", APP.id, APP.key, "wrong")
    with pytest.raises(PublishRefused) as refused:
        stranger.publish("room", "said", "x")
    assert refused.value.code == "auth_failed"
    with pytest.raises(PublishFailed, match="no response in 2 attempts"):
        blocking("127.0.0.1:1", attempts=2).publish("room", "said", "x")
    with pytest.raises(ValueError, match="without a path"):
        blocking(f"{address}/app")


def test_a_stream_grows_and_ends(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text in order, complete at its end; cancelled by an exception; kept open while silent."""
    room = unique()
    publisher = blocking(f"127.0.0.1:{server.port}")
    words = [f"w{number} " for number in range(40)]
    with publisher.stream(room, "answer", extras={"headers": {"k": 1}}, max_buffered=50) as answer:
        with pytest.raises(StreamEnded, match="first `write`"):
            _ = answer.message_serial
        for word in words:
            answer.write(word)
    message = publisher.message(room, answer.message_serial)
    assert (message.data, message.status) == ("".join(words), "complete")
    assert message.extras["headers"] == {"k": 1}
    with pytest.raises(StreamEnded, match="not open"):
        answer.write("late")

    answer = publisher.stream(room, "answer")
    with suppress(ZeroDivisionError), answer:
        answer.write("half")
        answer.write(str(1 // 0))  # the model fails
    message = publisher.message(room, answer.message_serial)
    assert (message.data, message.status) == ("half", "cancelled")

    monkeypatch.setattr(token_buffer, "KEEP_OPEN_S", 0.02)
    kept = threading.Event()
    update = publisher.update

    def note(*args: Any, **more: Any) -> Any:
        kept.set()
        return update(*args, **more)

    monkeypatch.setattr(publisher, "update", note)
    with publisher.stream(room, "answer") as answer:
        answer.write("thinking")
        assert kept.wait(WAIT_SECONDS)
    versions = publisher.versions(room, answer.message_serial, direction="oldest_first").items
    assert [each.action for each in versions][:2] == ["create", "update"]


def test_a_refused_stream_raises_where_it_is_written(server: ServerProcess) -> None:
    """At the first write, or at the next one after the refusal of an append."""
    publisher = blocking(f"127.0.0.1:{server.port}")
    with (
        pytest.raises(PublishRefused, match="channel"),
        publisher.stream("no spaces", "answer") as answer,
    ):
        answer.write("x")

    def write_on() -> None:
        with publisher.stream(unique(), "answer") as answer:
            while True:
                answer.write("x" * 65_536)

    with pytest.raises(PublishRefused) as refused:
        write_on()
    assert refused.value.ai_code == 40009
