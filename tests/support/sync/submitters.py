"""Clients of sync that repeat what was lost, and one that follows, through every restart."""

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from websockets.exceptions import WebSocketException

from support.log.storm import BREATH_SECONDS
from support.sync.peer import EVENT, TREE, Peer, act, connected, move, note, outcome, push

SEED = int(os.environ.get("TIDELOG_TEST_SOAK_SEED", "7"))
PARTITIONS = ("p0", "p1", "p2")
NODES = 40
"""Ids of nodes that the submitters of the tree profile fight over, in each partition."""

LOST = (OSError, EOFError, WebSocketException, TimeoutError, asyncio.IncompleteReadError)
PAUSE_SECONDS = 0.05


class Submitter:
    """A client that repeats every batch under its ids until it is answered."""

    def __init__(self, number: int, url: str) -> None:
        self.client_id = f"c{number}"
        self.profile = TREE if number % 2 else EVENT
        self.acknowledged: dict[str, dict[str, Any]] = {}
        """Result of each committed item, as first heard."""
        self.items: dict[str, dict[str, Any]] = {}
        """What was submitted under each id."""
        self.repeated = 0
        """Batches that were sent again because their answer was lost."""
        self.refused: Counter[str] = Counter()
        self._rng = random.Random(SEED * 1000 + number)
        self._number = number
        self._url = url

    async def run(self, stopping: asyncio.Event) -> None:
        """Submit until told to stop; the last batch is answered too."""
        batch: list[dict[str, Any]] = []
        while not stopping.is_set() or batch:
            with contextlib.suppress(*LOST):
                async with connected(
                    self._url, self.client_id, self.profile, open_timeout=5
                ) as peer:
                    self.repeated += bool(batch)
                    while not stopping.is_set() or batch:
                        batch = batch or self._batch()
                        self._note(await peer.submit(*batch))
                        batch = []
                        await asyncio.sleep(BREATH_SECONDS)
            await asyncio.sleep(PAUSE_SECONDS)

    @property
    def kinds(self) -> set[str]:
        """Of what was committed."""
        return {self.items[item_id]["event"]["type"] for item_id in self.acknowledged}

    def _batch(self) -> list[dict[str, Any]]:
        return [self._item() for _ in range(self._rng.randint(1, 5))]

    def _item(self) -> dict[str, Any]:
        rng = self._rng
        item_id = f"{self._number}-{len(self.items)}"
        names = rng.sample(PARTITIONS, rng.choice([1, 1, 2]))
        node, other = (f"n{rng.randrange(NODES)}" for _ in range(2))
        place = {"parent": rng.choice(["_root", other])}
        if self.profile == EVENT:
            item = note(item_id, *names, data={"by": self._number})
        else:
            item = rng.choice(
                [
                    push(item_id, node, *names, **place),
                    push(item_id, node, *names),
                    move(item_id, node, *names, **place),
                    move(item_id, node, *names, position="last"),
                    act(item_id, "treeUpdate", *names, options={"id": node}, value={"v": item_id}),
                    act(item_id, "treeDelete", *names, options={"id": node}),
                ]
            )
        self.items[item_id] = item
        return item

    def _note(self, results: list[dict[str, Any]]) -> None:
        for result in results:
            if result["status"] == "committed":
                self.acknowledged[result["id"]] = result
            else:
                self.refused.update(outcome([result]))


class Subscriber:
    """Follows every partition through every restart, always from where it got to."""

    def __init__(self, url: str) -> None:
        self.received: list[dict[str, Any]] = []
        self.attached = 0
        self._url = url

    @property
    def cursor(self) -> int:
        """The last event it has."""
        return int(self.received[-1]["committed_id"]) if self.received else 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with contextlib.suppress(*LOST):
                async with connected(self._url, "subscriber", open_timeout=5) as peer:
                    await self._catch_up(peer)
                    self.attached += 1
                    while True:
                        self._take(await peer.expect("event_broadcast"))
                        peer.received.clear()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _catch_up(self, peer: Peer) -> None:
        """Pages first; broadcasts that come between them wait for the last one."""
        fields: dict[str, Any] = {"subscription_partitions": list(PARTITIONS)}
        while True:
            page = await peer.sync(*PARTITIONS, since=self.cursor, limit=50, **fields)
            for event in page["events"]:
                self._take(event)
            fields = {}
            if not page["has_more"]:
                break
        for message in peer.received:
            if message["type"] == "event_broadcast":
                self._take(message["payload"])

    def _take(self, event: dict[str, Any]) -> None:
        assert event["committed_id"] > self.cursor, "twice, or out of order"
        self.received.append(event)


async def check_submitted(url: str, submitters: Sequence[Submitter]) -> list[dict[str, Any]]:
    """What was acknowledged is there, once and where it was said to be; returns all events."""
    async with connected(url, "fresh", max_queue=None) as fresh:
        events = await fresh.whole(*PARTITIONS, limit=1000)
    stored = {event["id"]: event for event in events}
    assert len(stored) == len(events), "an id was committed twice"
    for each in submitters:
        for item, result in each.acknowledged.items():
            assert item in stored, f"acknowledged {item} is not there"
            assert stored[item]["committed_id"] == result["committed_id"]
    return events
