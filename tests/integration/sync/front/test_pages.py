"""Pages of many partitions: the same events as one by one, in a bounded number of queries."""

import random
from pathlib import Path
from typing import Any

import pytest

from support.sync.peer import connected, note, outcome, sync_server


async def test_a_page_of_several_partitions_holds_what_their_pages_hold(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """In order, each event once, cut at the limit, whatever the names and however they overlap."""
    del engine
    rng = random.Random(3)
    names = ["p", "q\0", "\0", "\ue000", "\ue0000", "r", "empty"]
    async with (
        sync_server(tmp_path, store=store_location, sync_limit_min=1) as node,
        connected(node.ws_url) as peer,
    ):
        events: list[tuple[int, set[str]]] = []
        for batch in range(6):
            chosen = [set(rng.sample(names[:-1], rng.randint(1, 4))) for _ in range(20)]
            items = [note(f"{batch}-{n}", *given) for n, given in enumerate(chosen)]
            results = await peer.submit(*items)
            assert outcome(results) == ["committed"] * 20
            events += [(r["committed_id"], given) for r, given in zip(results, chosen, strict=True)]
        for _ in range(60):
            asked = set(rng.sample(names, rng.randint(2, len(names))))
            since, limit = rng.randint(0, 130), rng.choice([1, 2, 7, 200])
            page = await peer.sync(*asked, since=since, limit=limit)
            matching = [at for at, given in events if at > since and given & asked]
            assert [event["committed_id"] for event in page["events"]] == matching[:limit]
            for event in page["events"]:
                assert set(event["partitions"]) == dict(events)[event["committed_id"]]
            assert page["has_more"] == (len(matching) > limit)
        everything = await peer.whole(*names, limit=7)
        assert [event["committed_id"] for event in everything] == [at for at, _ in events]


async def test_the_number_of_queries_does_not_depend_on_the_number_of_partitions(
    engine: str, store_location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two thousand partitions are read with the two queries that two partitions are read with."""
    del engine
    names = [f"partition-{number}" for number in range(2000)]
    async with (
        sync_server(tmp_path, store=store_location) as node,
        connected(node.ws_url) as peer,
    ):
        for start in range(0, len(names), 100):
            await peer.submit(*(note(name, name) for name in names[start : start + 100]))
        asked: list[str] = []

        def counted(method: str) -> Any:
            original = getattr(node.store, method)

            async def count(query: str, *arguments: Any, **options: Any) -> Any:
                asked.append(query)
                return await original(query, *arguments, **options)

            return count

        for method in ("rows", "rows_of", "rows_within", "lowest"):
            monkeypatch.setattr(node.store, method, counted(method))
        page = await peer.sync(*names, limit=1000)
        assert [event["id"] for event in page["events"]] == names[:1000]
        assert page["has_more"]
        queries = [query for query in asked if query.startswith("sync")]
        assert queries == ["sync_positions", "sync_event"]
        asked.clear()
        await peer.sync(*names[:2])
        assert [query for query in asked if query.startswith("sync")] == queries
