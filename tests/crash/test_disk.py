"""A full disk and a disk that fails to sync."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support.log.storm import HttpClient, read_log
from support.store.small_disk import SmallDisk, on_a_small_disk
from tidelog.testing.process import ServerProcess


def put(number: int, size: int = 10) -> bytes:
    """A put with a key of its own."""
    return json.dumps(
        {"op": "put", "stream": "s", "key": f"k{number}", "value": "x" * size}
    ).encode()


def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    """No space: writes are refused and leave nothing; space again: the same server goes on."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def work(disk: SmallDisk) -> None:
        asyncio.run(fill_and_empty(disk, tmp_path))

    on_a_small_disk(folder, "6m", work)


async def fill_and_empty(disk: SmallDisk, tmp_path: Path) -> None:
    """A server on the disk, which runs full and has room again."""
    ballast = disk.folder / "ballast"
    ballast.write_bytes(b"\0" * 2 * 1024 * 1024)
    location = str(disk.folder / "tidelog.db")
    with ServerProcess(data_dir=tmp_path / "data", store=location) as server:
        server.start()
        client = HttpClient(server.port)
        acknowledged, status = 0, 201
        answer: dict[str, Any] = {}
        for number in range(2000):
            status, answer = await client.post("/probe/entries", put(number, 8000))
            if status != 201:
                break
            acknowledged += 1
        assert (status, answer["status"]) == (503, "failed")
        assert "full" in answer["reason"]
        assert acknowledged > 10
        ballast.unlink()
        status, answer = await client.post("/probe/entries", put(acknowledged, 8000))
        assert (status, answer["committed_id"]) == (201, acknowledged + 1)
        client.close()
        assert await asyncio.to_thread(server.terminate) == 0
    assert len(await read_log(location)) == acknowledged + 1


@pytest.mark.parametrize("point", ["store.written", "store.committing"])
async def test_enospc_at_any_point_refuses_only_its_batch(
    point: str, tmp_path: Path, store_location: str, engine: str
) -> None:
    """ENOSPC before or in COMMIT: refused or truly committed, never acknowledged and lost."""
    with ServerProcess(data_dir=tmp_path / "data", store=store_location) as server:
        await asyncio.to_thread(server.start, f"{point}=enospc@3")
        client = HttpClient(server.port)
        statuses = [(await client.post("/probe/entries", put(number)))[0] for number in range(5)]
        # PostgreSQL's COMMIT is on its way when the fault strikes, and is found to have happened.
        survived = engine == "postgresql" and point == "store.committing"
        assert statuses == [201, 201, 201 if survived else 503, 201, 201]
        client.close()
        assert await asyncio.to_thread(server.terminate) == 0
    assert len(await read_log(store_location)) == statuses.count(201)


async def test_a_failed_fsync_stops_the_server(tmp_path: Path) -> None:
    """After a failed fsync nothing is acknowledged; the process ends, saying why and what to do."""
    location = str(tmp_path / "tidelog.db")
    with ServerProcess(data_dir=tmp_path / "data", store=location) as server:
        await asyncio.to_thread(server.start, "store.committing=eio@3")
        client = HttpClient(server.port)
        statuses = []
        for number in range(3):
            status, _ = await client.post("/probe/entries", put(number))
            statuses.append(status)
        assert statuses == [201, 201, 503]
        client.close()
        assert await asyncio.to_thread(server.wait, 15) == 1
        assert "the disk did not confirm a write" in server.log_text()
        assert "start tidelog again" in server.log_text()
        entries = await read_log(location)
        assert [entry.entity for entry in entries] == ["k0", "k1"]
        await asyncio.to_thread(server.start)
        client = HttpClient(server.port)
        assert (await client.post("/probe/entries", put(2)))[0] == 201
        client.close()
    assert len(await read_log(location)) == 3
