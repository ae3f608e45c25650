"""Both halves of channels, connected by a socket as two processes would be."""

import asyncio
import socket
from pathlib import Path

import msgspec
import pytest

from support.channels.peer import APP
from support.log.nodes import running_node
from tidelog.base.clock import SystemClock
from tidelog.base.errors import OutcomeUnknown
from tidelog.channels.front.service import ChannelsService
from tidelog.channels.messages import VOCABULARY
from tidelog.channels.protocol.query import HistoryQuery
from tidelog.channels.protocol.requests import (
    MutationResult,
    Published,
    parse_mutation,
    parse_publication,
)
from tidelog.channels.settings import Channels, VersionedMessages
from tidelog.channels.upkeep.owner import ChannelsOwner
from tidelog.config.settings import Settings
from tidelog.link.unix import Served, front_link, owner_link


async def test_channels_work_over_a_socket_and_say_when_their_owner_is_gone(
    tmp_path: Path,
) -> None:
    """Messages are committed, followed and read; after the loss nobody is left waiting."""
    channels = Channels(versioned_messages=VersionedMessages(enabled=True))
    settings, clock = Settings(apps=[APP], channels=channels), SystemClock()
    async with running_node(str(tmp_path / "tidelog.db"), clock=clock) as node:
        owner = await ChannelsOwner.open(node.committer, node.store, channels, clock)
        loop, (here, there) = asyncio.get_running_loop(), socket.socketpair()
        gone = asyncio.Event()
        link, [end] = front_link((VOCABULARY,), gone.set)
        served = (Served(owner, VOCABULARY),)
        at_owner, _ = await loop.create_connection(
            lambda: owner_link(served, node.committer.tail.brake), sock=there
        )
        at_front, _ = await loop.create_connection(lambda: link, sock=here)
        service = await ChannelsService.open(end, node.store, settings, clock)

        body = b'{"name":"n","channel":"room","data":"a","info":"subscription_count"}'
        event = parse_publication(body, None, channels)
        published = await service.publish(APP, (event,), request_key=None, is_batch=False)
        assert isinstance(published, Published)
        serial = msgspec.json.decode(published.body)["channels"]["room"]["message_serial"]
        assert end.position == 1, "its entry came before it returned"
        append = parse_mutation("append", "room", serial, b'{"data":"b"}')
        results = await asyncio.gather(*(service.mutate(APP, append) for _ in range(200)))
        assert all(isinstance(each, MutationResult) for each in results)
        assert end.position == 201
        query = HistoryQuery.from_parameters({}, 10)
        page = msgspec.json.decode(await service.history_api.page(APP, "room", query))
        [item] = page["items"]
        assert item["message"]["data"] == "a" + 200 * "b"
        answer = msgspec.json.decode(await service.revoke(APP, "t", None))
        assert answer["closed_connections"] == 0

        waiting = asyncio.create_task(service.mutate(APP, append))
        await asyncio.sleep(0)
        at_owner.abort()
        with pytest.raises(OutcomeUnknown):
            await waiting
        await gone.wait()
        with pytest.raises(OutcomeUnknown):
            await service.history_api.page(APP, "room", query)
        assert owner._fronts == ()
        at_front.abort()
