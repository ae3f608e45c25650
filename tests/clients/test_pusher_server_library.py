"""The unmodified `pusher` library for Python, as an application's server uses it."""

import asyncio
import json
from collections.abc import Iterator

import pusher
import pytest

from support.channels.peer import unique
from tidelog.client import Authorization, BlockingChannelPublisher, ChannelClient, Message
from tidelog.testing.process import ServerProcess

WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def development(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`tidelog serve --dev`, whose app the library reaches by a number."""
    with ServerProcess(data_dir=tmp_path_factory.mktemp("dev"), arguments=("--dev",)) as server:
        server.start()
        yield server


@pytest.fixture
def library(development: ServerProcess) -> pusher.Pusher:
    """The library with nothing but another address: it takes ids of digits only."""
    return pusher.Pusher(
        app_id="1",
        key="app-key",
        secret="app-secret",
        host="127.0.0.1",
        port=development.port,
        ssl=False,
    )


async def test_events_reach_subscribers(development: ServerProcess, library: pusher.Pusher) -> None:
    """One, one on several channels, and a batch: those who follow the channels get them."""
    one, other = unique(), unique()
    url = f"ws://127.0.0.1:{development.port}"
    async with (
        ChannelClient(url, "app-key") as client,
        client.subscribe(one) as first,
        client.subscribe(other) as second,
        asyncio.timeout(WAIT_SECONDS),
    ):
        assert await asyncio.to_thread(library.trigger, one, "level", {"metres": 3.4}) == {
            "ok": True
        }
        await asyncio.to_thread(library.trigger, [one, other], "both", "text")
        batch = [
            {"channel": one, "name": "batched", "data": {"n": 1}},
            {"channel": other, "name": "batched", "data": "2"},
        ]
        assert await asyncio.to_thread(library.trigger_batch, batch) == {}
        seen: list[Message] = []
        async for message in first:
            seen.append(message)
            if message.name == "batched":
                break
        assert [(each.name, each.data) for each in seen] == [
            ("level", '{"metres": 3.4}'),
            ("both", "text"),
            ("batched", '{"n": 1}'),
        ]
        async for message in second:
            if message.name == "batched":
                break
        assert message.data == "2"


async def test_who_is_there_is_told(development: ServerProcess, library: pusher.Pusher) -> None:
    """Reads carry the MD5 of an empty body; what `authenticate` signs lets a member in."""
    lab = unique("presence-lab")

    async def authorize(channel: str, socket_id: str) -> Authorization:
        ana = {"user_id": "ana", "user_info": {"a": 1}} if channel == lab else None
        return Authorization(**library.authenticate(channel, socket_id, ana))

    client = ChannelClient(f"ws://127.0.0.1:{development.port}", "app-key", authorize=authorize)
    async with client, client.subscribe(lab) as channel, client.subscribe(unique("private-x")):
        assert dict(channel.members) == {"ana": {"a": 1}}
        found = await asyncio.to_thread(library.channels_info, "presence-", ["user_count"])
        assert found["channels"][lab] == {"user_count": 1}
        one = await asyncio.to_thread(library.channel_info, lab, ["subscription_count"])
        assert one == {"occupied": True, "subscription_count": 1}
        users = await asyncio.to_thread(library.users_info, lab)
        assert users == {"users": [{"id": "ana"}]}


def test_its_signatures_are_ours(development: ServerProcess, library: pusher.Pusher) -> None:
    """For a private channel, a member and a user who signs in."""
    ours = BlockingChannelPublisher(development.url, "app-id", "app-key", "app-secret")
    assert library.authenticate("private-x", "1.2") == ours.authorization("private-x", "1.2").body
    theirs = library.authenticate_user("1.2", {"id": "ana"})
    mine = ours.user_authorization("1.2", "ana").body
    assert json.loads(theirs["user_data"]) == json.loads(mine["user_data"])


def test_errors_are_those_the_library_knows(
    development: ServerProcess, library: pusher.Pusher
) -> None:
    """A wrong secret and a bad request are told apart."""
    with pytest.raises(pusher.errors.PusherBadRequest):
        library.users_info("room")
    stranger = pusher.Pusher(
        app_id="1",
        key="app-key",
        secret="wrong",
        host="127.0.0.1",
        port=development.port,
        ssl=False,
    )
    with pytest.raises(pusher.errors.PusherBadAuth):
        stranger.trigger("room", "level", "x")
