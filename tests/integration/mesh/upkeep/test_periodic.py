"""What a broker does now and then, as often as its settings say (mesh 6.4, 6.5)."""

import asyncio
from pathlib import Path

from support.mesh.peer import envelope, running_broker, unique
from tidelog.mesh.protocol.model import DAY_MS
from tidelog.testing.clock import FakeClock

SOON_SECONDS = 0.05
WAIT_SECONDS = 30.0


async def test_expired_ids_go_at_the_set_interval(store_location: str, tmp_path: Path) -> None:
    """Nobody asks for it; an id goes within an interval of its end, and not before."""
    clock = FakeClock()
    async with running_broker(
        tmp_path, store_location, clock, retention_interval_seconds=SOON_SECONDS
    ) as broker:
        slug = await broker.mesh(dedupe_retention_days=7)
        ana = await broker.member(slug)
        await ana.topic("alerts")
        assert (await ana.post(unique(), envelope())).status_code == 201
        clock.advance(7 * DAY_MS)
        await asyncio.sleep(4 * SOON_SECONDS)
        assert len(await broker.rows("SELECT * FROM {}", "client_message_dedupe")) == 1
        clock.advance(1)
        async with asyncio.timeout(WAIT_SECONDS):
            while await broker.rows(  # noqa: ASYNC110 - what is waited for has no event
                "SELECT * FROM {}", "client_message_dedupe"
            ):
                await asyncio.sleep(SOON_SECONDS)


async def test_the_relations_are_compared_at_the_set_interval(
    store_location: str, tmp_path: Path
) -> None:
    """A finding is in the metrics without anybody asking for a check."""
    async with running_broker(
        tmp_path, store_location, orphan_check_interval_seconds=SOON_SECONDS
    ) as broker:
        slug = await broker.mesh()
        ana = await broker.member(slug)
        await ana.topic("alerts")
        assert (await ana.post(unique(), envelope())).status_code == 201
        await broker.database.run("UPDATE dedupe SET available = 0 WHERE scope LIKE 'mesh/%'")
        async with asyncio.timeout(WAIT_SECONDS):
            while not broker.metric(  # noqa: ASYNC110 - what is waited for has no event
                "tidelog_broker_atomicity_violation_found", rule="1"
            ):
                await asyncio.sleep(SOON_SECONDS)
        assert broker.metric("tidelog_broker_dedupe_orphan_found") == 1
