"""Both halves of sync, connected by a socket as two processes would be."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.log.nodes import running_node
from support.sync.peer import MODEL, SECRET, note, push, write_model
from tidelog.base.clock import SystemClock
from tidelog.base.errors import OutcomeUnknown
from tidelog.link.unix import Served, front_link, owner_link
from tidelog.sync.front.service import SyncService
from tidelog.sync.messages import VOCABULARY
from tidelog.sync.protocol.actions import Submit, Sync
from tidelog.sync.protocol.items import PreparedItem, prepare
from tidelog.sync.protocol.problem import Problem
from tidelog.sync.protocol.profiles import CANONICAL, COMPATIBILITY, Model
from tidelog.sync.settings import SyncSettings
from tidelog.sync.upkeep.owner import SyncOwner

RULES = Model.parse(MODEL["tree_targets"], MODEL["schemas"], 3)


def submit(*items: dict[str, Any]) -> Submit:
    """What a session asks for."""

    def ready(item: dict[str, Any]) -> PreparedItem:
        event = item["event"]
        profile = CANONICAL if event["type"] == "event" else COMPATIBILITY
        raw = msgspec.json.encode(event)
        return prepare(
            item, raw, client_id="c", profile=profile, model=RULES, allows=lambda _: True
        )

    return Submit(tuple(map(ready, items)), 100)


async def test_sync_works_over_a_socket_and_says_when_its_owner_is_gone(tmp_path: Path) -> None:
    """Events are committed, followed and read; after the loss nobody is left waiting."""
    settings = SyncSettings(jwt_secret=SECRET, model_file=write_model(tmp_path))
    async with running_node(str(tmp_path / "tidelog.db"), clock=SystemClock()) as node:
        owner = await SyncOwner.open(node.committer, node.store, settings, RULES, None)
        loop, (here, there) = asyncio.get_running_loop(), socket.socketpair()
        gone = asyncio.Event()
        link, [end] = front_link((VOCABULARY,), gone.set)
        served = (Served(owner, VOCABULARY),)
        at_owner, _ = await loop.create_connection(lambda: owner_link(served), sock=there)
        at_front, _ = await loop.create_connection(lambda: link, sock=here)
        clock = SystemClock()
        service = await SyncService.open(end, node.store, settings, clock, RULES, None)
        assert (service.model_version, service.incarnations.current) == (
            3,
            node.committer.incarnations.current,
        )
        results = await service.commit(submit(push("1", "n"), push("2", "n"), note("3", "q")))
        kinds = [type(each).__name__ for each in results]
        assert kinds == ["Committed", "Rejected", "Committed"]
        assert (service.last_event, end.position) == (2, 2), "its events came before it returned"
        many = [service.commit(submit(note(f"m{number}"))) for number in range(200)]
        await asyncio.gather(*many)
        await service.catch_up()
        assert service.last_event == 202
        page = msgspec.json.decode(await service.page(Sync(("p",), None, 0, 1000, 10**6, None)))
        ids = [event["id"] for event in page["events"]]
        assert ids[0] == "1"
        assert sorted(ids[1:]) == sorted(f"m{number}" for number in range(200))
        assert await service.set_model_version(9) == 3
        assert service.model_version == 9

        waiting = asyncio.create_task(service.commit(submit(note("last"))))
        await asyncio.sleep(0)
        at_owner.abort()
        await gone.wait()
        with pytest.raises(OutcomeUnknown):
            await service.catch_up()
        assert not waiting.done(), "the next owner may be asked it again"
        end.lost()
        with pytest.raises(Problem, match="internal error; retry all drafts"):
            await waiting
        assert owner._fronts == ()
        at_front.abort()
