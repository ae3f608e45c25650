"""The rate limiter, in memory and on tables: one unit per id and window (mesh 6.3)."""

import asyncio
import random
from collections import Counter

import pytest

from support.mesh.peer import Broker
from tidelog.config.schema import SCHEMA
from tidelog.mesh.protocol.model import Mesh
from tidelog.mesh.upkeep.limiter import Limiter, MemoryLimiter, SharedLimiter, Verdict, limiter_for
from tidelog.store import open_store

pytestmark = pytest.mark.asyncio(loop_scope="module")

WINDOW_MS = 1000


def mesh(name: str, limit: int = 3) -> Mesh:
    """A mesh with a small window."""
    return Mesh(name, name, "permanent", 365, None, 0, limit, WINDOW_MS)


async def verdicts(limiter: Limiter, where: Mesh, ids: str, at: int) -> str:
    """What becomes of ids of one letter, asked one after the other: T, K or D each."""
    taken = [await limiter.take(where, "ana", one, at) for one in ids]
    return "".join(answer.verdict.name[0] for answer in taken)


async def test_one_unit_per_id_and_window(broker: Broker) -> None:
    """An id is counted once; a full window denies new ids and still knows the counted ones."""
    limiter, where = limiter_for(broker.server.store), mesh("units")
    assert await verdicts(limiter, where, "aabbcdeabcd", 5000) == "TKTKTDDKKKD"


async def test_a_window_ends(broker: Broker) -> None:
    """A new window has all its units; an id of the old one counts again, a denied one is new."""
    limiter, where = limiter_for(broker.server.store), mesh("ends")
    assert await verdicts(limiter, where, "abcd", 5999) == "TTTD"
    assert await verdicts(limiter, where, "dabc", 6000) == "TTTD"


async def test_windows_are_of_one_mesh(broker: Broker) -> None:
    """What one mesh uses, another has."""
    limiter = limiter_for(broker.server.store)
    assert await verdicts(limiter, mesh("one"), "abcd", 5000) == "TTTD"
    assert await verdicts(limiter, mesh("two"), "abcd", 5000) == "TTTD"


async def test_the_time_until_the_next_window(broker: Broker) -> None:
    """A denied caller can be told when to come again."""
    limiter, where = limiter_for(broker.server.store), mesh("left", 1)
    assert (await limiter.take(where, "ana", "a", 7001)).left_ms == 999
    denied = await limiter.take(where, "ana", "b", 7999)
    assert (denied.verdict, denied.left_ms) == (Verdict.DENIED, 1)


async def test_racers(broker: Broker) -> None:
    """However many ask at once, and in whatever order: one unit each, as many as there are."""
    limiter, where = limiter_for(broker.server.store), mesh("race", 50)
    ids = [f"id-{number}" for number in range(80)] * 5
    random.Random(5).shuffle(ids)
    answers = await asyncio.gather(*(limiter.take(where, "ana", one, 5000) for one in ids))
    counted = Counter(answer.verdict for answer in answers)
    assert counted[Verdict.TAKEN] == 50
    admitted = {one for one, a in zip(ids, answers, strict=True) if a.verdict is Verdict.TAKEN}
    denied = {one for one, a in zip(ids, answers, strict=True) if a.verdict is Verdict.DENIED}
    assert (len(admitted), len(denied)) == (50, 30)
    assert not admitted & denied


async def flood(limiter: Limiter, where: Mesh, member: str, count: int, at: int) -> int:
    """How many of a member's sends are admitted."""
    ids = [f"{member}-{at}-{number}" for number in range(count)]
    answers = await asyncio.gather(*(limiter.take(where, member, one, at) for one in ids))
    return sum(answer.verdict is Verdict.TAKEN for answer in answers)


async def test_a_member_leaves_something_for_the_others(broker: Broker) -> None:
    """Whoever sends alone has nearly all; what others have used before is theirs again."""
    limiter, where = limiter_for(broker.server.store), mesh("shares", 1000)
    assert await flood(limiter, where, "ana", 1200, 5000) == 900
    assert await flood(limiter, where, "ben", 30, 5001) == 20, "one that comes late"
    assert await flood(limiter, where, "cleo", 10, 5002) == 10

    assert await flood(limiter, where, "ana", 1200, 6000) == 300
    assert await flood(limiter, where, "ben", 200, 6001) == 200
    assert await flood(limiter, where, "dora", 30, 6002) == 20
    assert await flood(limiter, where, "cleo", 400, 6003) == 300
    assert await flood(limiter, where, "ben", 400, 6004) == 100
    assert await flood(limiter, where, "dora", 200, 6005) == 0, "the rest is for others"
    assert await flood(limiter, where, "eve", 20, 6006) == 20

    assert await flood(limiter, where, "ana", 10, 7000) == 10
    assert await flood(limiter, where, "ana", 1200, 8000) == 900, "alone again"


async def test_shares_hold_among_those_who_ask_at_once(broker: Broker) -> None:
    """A flood and a trickle in one turn: the trickle is not denied."""
    limiter, where = limiter_for(broker.server.store), mesh("at-once", 200)
    assert await flood(limiter, where, "ana", 1, 5000) == 1
    assert await flood(limiter, where, "ben", 1, 5000) == 1
    counts = await asyncio.gather(
        flood(limiter, where, "ana", 400, 6000), flood(limiter, where, "ben", 90, 6000)
    )
    assert tuple(counts) == (90, 90)


async def test_memory_of_two_windows() -> None:
    """Older windows, and the meshes longest silent, are forgotten."""
    limiter = MemoryLimiter(max_meshes=2)
    for bucket in range(10):
        await limiter.take(mesh("m"), "ana", f"id-{bucket}", bucket * WINDOW_MS)
    assert len(limiter._meshes["m"].by_bucket) == 2
    for name in ("m", "n", "m", "o"):
        await limiter.take(mesh(name), "ana", "x", 9000)
    assert list(limiter._meshes) == ["m", "o"]


async def test_rows_of_two_windows(postgresql_url: str) -> None:
    """Older rows are dropped when a window begins."""
    store = await open_store(SCHEMA, postgresql_url, log_id="L", node="n")
    try:
        limiter = SharedLimiter(store)
        for bucket in range(5):
            assert await verdicts(limiter, mesh("m"), "ab", bucket * WINDOW_MS) == "TT"
        rows = await store._short.fetch(  # type: ignore[attr-defined]
            "SELECT window_bucket, count(*) FROM mesh.rate_limit_idem GROUP BY 1 ORDER BY 1"
        )
        assert [tuple(row) for row in rows] == [(3, 2), (4, 2)]
        used = await store._short.fetch(  # type: ignore[attr-defined]
            "SELECT window_bucket, used FROM mesh.rate_limit_window ORDER BY 1"
        )
        assert [tuple(row) for row in used] == [(3, 2), (4, 2)]
        members = await store._short.fetch(  # type: ignore[attr-defined]
            "SELECT window_bucket, member_id, used FROM mesh.rate_limit_member ORDER BY 1"
        )
        assert [tuple(row) for row in members] == [(3, "ana", 2), (4, "ana", 2)]
    finally:
        await store.close()


async def test_nodes_count_together(postgresql_url: str) -> None:
    """Two nodes that race over the same ids take each unit once, without a deadlock."""
    stores = [await open_store(SCHEMA, postgresql_url, log_id="L", node=name) for name in "ab"]
    try:
        limiters = [SharedLimiter(store) for store in stores]
        meshes = [mesh(f"together-{number}", 20) for number in range(3)]
        dice = random.Random(7)
        asked = [
            (limiter, where, f"id-{number}")
            for limiter in limiters
            for where in meshes
            for number in range(30)
        ]
        dice.shuffle(asked)
        answers = await asyncio.gather(
            *(limiter.take(where, "ana", one, 5000) for limiter, where, one in asked)
        )
        for where in meshes:
            mine = [
                (one, answer.verdict)
                for (_, at, one), answer in zip(asked, answers, strict=True)
                if at is where
            ]
            assert sum(verdict is Verdict.TAKEN for _, verdict in mine) == 20
    finally:
        for store in stores:
            await store.close()
