"""PostgreSQL: the server ends our connections, again and again."""

import asyncio
import os
from pathlib import Path

import asyncpg

from support.log.storm import HttpClient, Storm
from tidelog.testing.process import ServerProcess

KILLS = max(15, int(os.environ.get("TIDELOG_TEST_SOAK_KILLS", "0")))
"""Backends that are terminated; `scripts/soak --kills` raises it."""


async def test_terminated_backends_stop_nothing(postgresql_url: str, tmp_path: Path) -> None:
    """Backends terminated at any moment: refusals at most, and the same process goes on."""
    with ServerProcess(data_dir=tmp_path, store=postgresql_url) as server:
        await asyncio.to_thread(server.start)
        storm = Storm([server.port], writers=16)
        storm.start()
        operator = await asyncpg.connect(postgresql_url)
        terminated = 0
        async with asyncio.timeout(60 + KILLS):
            while terminated < KILLS:
                terminated += await operator.fetchval(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                await asyncio.sleep(0.05)
        await operator.close()
        await storm.finish()
        client = HttpClient(server.port)
        await storm.check(postgresql_url, client.post)
        client.close()
        assert storm.statuses["failed"] > 0
        assert await asyncio.to_thread(server.terminate) == 0
