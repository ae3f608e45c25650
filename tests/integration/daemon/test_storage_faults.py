"""A disk that fails costs an answer, never a promise (FT-01, FT-02, FT-06, FT-07, FT-20)."""

import asyncio
import os
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from subprocess import Popen

import httpx
import pytest

from support.mesh import local_daemon
from support.mesh.local_daemon import LocalDaemon, running, until
from tidelog.base import faultpoint
from tidelog.base.errors import StoreUntrustworthy
from tidelog.base.faultpoint import VARIABLE
from tidelog.daemon.outbox.outbox_db import NewSend

SEND = {"to": "topic:alerts", "message": "m" * 5000}


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[LocalDaemon]:
    """A daemon with one stored send."""
    async with running(tmp_path) as started:
        async with started.unix() as client:
            await client.post("/v1/send", json=SEND, headers={"Idempotency-Key": "stored"})
        yield started


async def check_full(daemon: LocalDaemon) -> None:
    """A new id is refused without a row, a stored one has its answer."""
    async with daemon.unix() as client:
        new = await client.post("/v1/send", json=SEND, headers={"Idempotency-Key": "new"})
        assert (new.status_code, new.json()["error"]) == (507, "insufficient_storage")
        old = await client.post("/v1/send", json=SEND, headers={"Idempotency-Key": "stored"})
        assert old.status_code == 202
    assert daemon.row_count() == 1


async def test_no_space_at_the_insert(daemon: LocalDaemon) -> None:
    """SQLite finds no page for the row; when there is space the same id is taken."""
    connection = daemon.outbox._database.connection
    [(pages,)] = connection.execute("PRAGMA page_count")
    connection.execute(f"PRAGMA max_page_count = {pages}")
    await check_full(daemon)
    connection.execute("PRAGMA max_page_count = 1000000")
    async with daemon.unix() as client:
        new = await client.post("/v1/send", json=SEND, headers={"Idempotency-Key": "new"})
    assert new.status_code == 202


async def test_no_space_at_the_commit(daemon: LocalDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row was written and could not be committed: it is not there."""
    monkeypatch.setattr(faultpoint, "_armed", faultpoint._parse("D1=enospc"))
    await check_full(daemon)
    async with daemon.unix() as client:
        new = await client.post("/v1/send", json=SEND, headers={"Idempotency-Key": "new"})
    assert new.status_code == 202
    assert daemon.row_count() == 2


async def test_one_send_too_many_does_not_harm_its_neighbours(daemon: LocalDaemon) -> None:
    """Of sends that share a transaction, only those that do not fit are refused."""
    connection = daemon.outbox._database.connection
    [(pages,)] = connection.execute("PRAGMA page_count")
    connection.execute(f"PRAGMA max_page_count = {pages + 8}")
    async with daemon.unix() as client:
        answers = await asyncio.gather(
            *(
                client.post("/v1/send", json=SEND, headers={"Idempotency-Key": f"id-{number}"})
                for number in range(16)
            )
        )
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {202, 507}
    assert daemon.row_count() == 1 + statuses.count(202)
    with sqlite3.connect(daemon.folder / "outbox.db") as other:
        assert other.execute("SELECT count(*) FROM outbox").fetchone() == (daemon.row_count(),)
    other.close()


async def test_a_lock_held_by_another_program_is_busy(daemon: LocalDaemon) -> None:
    """503, and nothing is stored."""
    daemon.outbox._database.connection.execute("PRAGMA busy_timeout = 50")
    other = sqlite3.connect(daemon.folder / "outbox.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with daemon.unix() as client:
        busy = await client.post("/v1/send", json=SEND)
    other.close()
    assert (busy.status_code, busy.json()["error"]) == (503, "outbox_busy")
    assert daemon.row_count() == 1


async def test_a_failed_sync_is_fatal(daemon: LocalDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the disk holds is unknown then: the process is told to end."""
    error = StoreUntrustworthy("fsync")
    monkeypatch.setattr(daemon.outbox, "_accept", lambda _: (_ for _ in ()).throw(error))
    async with daemon.unix() as client:
        assert (await client.post("/v1/send", json=SEND)).status_code == 500
    assert daemon.fatal == [error]


class Child:
    """A daemon in a process of its own."""

    def __init__(self, folder: Path, faults: str = "") -> None:
        self.folder = folder
        (folder / "ready").unlink(missing_ok=True)
        environ = {**os.environ, VARIABLE: faults, "PYTHONPATH": "tests"}
        script = str(Path(local_daemon.__file__))
        self.process = Popen([sys.executable, script, str(folder)], env=environ)

    async def ready(self) -> httpx.AsyncClient:
        """A client, once it listens."""
        await until(lambda: (self.folder / "ready").exists() or self.process.poll() is not None)
        assert self.process.poll() is None
        transport = httpx.AsyncHTTPTransport(uds=str(self.folder / "daemon.sock"))
        return httpx.AsyncClient(transport=transport, base_url="http://localhost")

    async def dead(self) -> None:
        """It was killed by its fault point."""
        await until(lambda: self.process.poll() is not None)
        assert self.process.returncode == -9

    def kill(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


def rows(folder: Path) -> list[tuple[str, str, int, str | None]]:
    """What is in the outbox of a daemon that does not run."""
    with sqlite3.connect(folder / "outbox.db") as connection:
        found = connection.execute(
            "SELECT client_message_id, status, attempts, superseded_by FROM outbox ORDER BY rowid"
        ).fetchall()
    connection.close()
    return found


@pytest.mark.parametrize(("point", "stored"), [("D1", 0), ("D2", 1)])
async def test_a_daemon_killed_around_its_commit(point: str, stored: int, tmp_path: Path) -> None:
    """Before the commit there is nothing, after it there is the row; the repeat is answered."""
    child = Child(tmp_path, f"{point}=kill")
    headers = {"Idempotency-Key": "id-1"}
    async with await child.ready() as client:
        with pytest.raises(httpx.TransportError):
            await client.post("/v1/send", json=SEND, headers=headers)
    await child.dead()
    assert len(rows(tmp_path)) == stored
    child = Child(tmp_path)
    try:
        async with await child.ready() as client:
            again = await client.post("/v1/send", json=SEND, headers=headers)
            assert again.status_code == 202
            other = {**SEND, "message": "other"}
            mismatch = await client.post("/v1/send", json=other, headers=headers)
            assert mismatch.json()["conflict"] == "outbox_pending_fingerprint_mismatch"
            assert len(mismatch.json()["daemon_fingerprint_prefix"]) == 16
    finally:
        child.kill()
    assert [row[0] for row in rows(tmp_path)] == ["id-1"]


async def test_a_daemon_killed_in_a_requeue(tmp_path: Path) -> None:
    """The old row is as it was, and has no successor (fault point D6)."""
    child = Child(tmp_path, "D6=kill")
    async with await child.ready() as client:
        await client.post("/v1/send", json=SEND, headers={"Idempotency-Key": "old"})
        row_id = (await client.get("/v1/outbox/old")).json()["id"]
        with pytest.raises(httpx.TransportError):
            await client.post("/v1/outbox/requeue", json={"id": row_id, "auto": True})
    await child.dead()
    assert rows(tmp_path) == [("old", "pending", 0, None)]


async def test_a_daemon_killed_again_and_again_while_it_recovers(tmp_path: Path) -> None:
    """Recovery can be repeated: no row stays `inflight`, none is lost (fault point D7)."""
    daemon = LocalDaemon(tmp_path)
    async with running(tmp_path / "other") as other, other.unix() as client:
        for number in range(5):
            headers = {"Idempotency-Key": f"id-{number}"}
            await client.post("/v1/send", json=SEND, headers=headers)
        payloads = [other.outbox.inspect(f"id-{number}")[0] for number in range(5)]
    daemon.outbox.accept(
        [NewSend(row.client_message_id, row.request_fingerprint, row.payload) for row in payloads]
    )
    assert len(daemon.outbox.claim()) == 5
    await daemon.stop()
    for _ in range(2):
        child = Child(tmp_path, "D7=kill")
        await child.dead()
    assert rows(tmp_path) == [(f"id-{number}", "pending", 2, None) for number in range(5)]
