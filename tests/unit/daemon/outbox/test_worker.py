"""The worker against an outbox in a file and a broker that only records."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.mesh import mesh_cases
from tidelog.base.errors import StoreUnavailable
from tidelog.daemon.metrics import DaemonMetrics
from tidelog.daemon.outbox.outbox_db import NewSend, Outbox, Row, Settlement
from tidelog.daemon.outbox.pressure import Pressure
from tidelog.daemon.outbox.worker import Worker
from tidelog.daemon.settings import DiskSettings, OutboxSettings
from tidelog.daemon.uplink.broker_connection import SendReply
from tidelog.mesh.protocol import policy
from tidelog.mesh.protocol.fingerprint import make_envelope
from tidelog.mesh.protocol.negotiation import Parameters
from tidelog.testing.clock import FakeClock

DAY_MS = 86_400_000
ACCEPTED = SendReply(code=201, broker_message_id="B1", history_id=7)


class RecordingUplink:
    """Returns what it is told to, as soon as `release` says so."""

    def __init__(self) -> None:
        self.connected = True
        self.sent: list[tuple[str, str | None]] = []
        self.answer: SendReply | Callable[[str], SendReply] = ACCEPTED
        self.most_at_once = 0
        self._at_once = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def send(
        self, client_message_id: str, fingerprint: bytes, payload: bytes, supersedes: str | None
    ) -> SendReply:
        """Record the attempt."""
        assert fingerprint
        assert payload
        self.sent.append((client_message_id, supersedes))
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        await self.gate.wait()
        self._at_once -= 1
        return self.answer(client_message_id) if callable(self.answer) else self.answer


@pytest.fixture
def outbox(tmp_path: Path, clock: FakeClock) -> Iterator[Outbox]:
    """An empty outbox."""
    pressure = Pressure(OutboxSettings(), DiskSettings(reserved_bytes=1), tmp_path, clock.now_ms)
    outbox = Outbox(tmp_path / "outbox.db", pressure, clock)
    yield outbox
    outbox.close()


def accept(outbox: Outbox, *ids: str) -> None:
    """Store sends."""
    envelope = make_envelope(destination_kind="topic", destination_ref="t", body=b"x")
    outbox.accept([NewSend(name, envelope.fingerprint(), envelope.payload()) for name in ids])


def row(outbox: Outbox, client_message_id: str) -> Row:
    """A row by its client's id."""
    return outbox.inspect(client_message_id)[0]


def has_attempts(outbox: Outbox, count: int) -> bool:
    """Whether the row `a` has had so many attempts."""
    return row(outbox, "a").attempts == count


async def until(so: Callable[[], bool]) -> None:
    """Wait for something that nobody announces."""
    async with asyncio.timeout(5):
        for _ in iter(so, True):
            await asyncio.sleep(0.005)


async def work(worker: Worker, so: Callable[[], bool]) -> None:
    """Let the worker run until something is so."""
    running = asyncio.create_task(worker.run())
    await until(so)
    worker.stop()
    async with asyncio.timeout(5):
        await running


async def test_an_accepted_row_is_done(outbox: Outbox) -> None:
    """A 201 ends a row, with the broker's ids."""
    uplink, metrics = RecordingUplink(), DaemonMetrics()
    accept(outbox, "a")
    await work(Worker(outbox, uplink, metrics), lambda: row(outbox, "a").status == "done")
    assert (row(outbox, "a").broker_message_id, row(outbox, "a").history_id) == ("B1", 7)
    assert metrics.sent["done"] == 1


@pytest.mark.parametrize("case", mesh_cases.params("broker_phases", "P01", "P02"))
async def test_a_duplicate_is_done_and_counted(
    case: mesh_cases.Case, outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    """A 200 is as good as a 201; one that was pruned is counted besides, and logged louder."""
    uplink, metrics = RecordingUplink(), DaemonMetrics()
    is_there = case["body"]["history_available"]
    uplink.answer = SendReply(code=case["status"], duplicate=True, history_available=is_there)
    accept(outbox, "a")
    with caplog.at_level(logging.INFO, "tidelog.daemon.outbox.worker"):
        await work(
            Worker(outbox, uplink, metrics), lambda: row(outbox, "a").status == case["daemon"]
        )
    assert (metrics.dedupe["out"], metrics.dedupe_history_pruned) == (1, int(not is_there))
    loudest = max(record.levelno for record in caplog.records)
    assert loudest == {"info": logging.INFO, "warn": logging.WARNING}[case["log"]]


@pytest.mark.parametrize(
    ("attempts", "days", "is_counted"), [(2, 7, 1), (1, 7, 0), (2, 8, 0), (2, None, 0)]
)
async def test_a_retry_that_the_broker_had_forgotten_is_counted(
    outbox: Outbox, clock: FakeClock, attempts: int, days: int | None, is_counted: int
) -> None:
    """A machine that slept through the window during a second attempt: there may be two messages.

    Neither a first attempt nor one inside the window, nor one at a broker that never forgets, is
    counted.
    """
    uplink, metrics = RecordingUplink(), DaemonMetrics()
    mode: policy.Mode = "permanent" if days is None else "retention_scoped"
    outbox.adopt(Parameters(mode=mode, dedupe_retention_days=days))
    accept(outbox, "a")
    if attempts == 2:
        [claim] = outbox.claim()
        outbox.settle([Settlement(claim=claim, status="pending", delay_ms=0)])
    clock.advance(6 * DAY_MS - 1)
    uplink.gate.clear()
    worker = Worker(outbox, uplink, metrics)
    running = asyncio.create_task(worker.run())
    await until(partial(has_attempts, outbox, attempts))
    clock.advance(DAY_MS + 1)
    uplink.gate.set()
    await until(lambda: row(outbox, "a").status == "done")
    worker.stop()
    async with asyncio.timeout(5):
        await running
    assert metrics.retry_after_dedupe_expired == is_counted


@pytest.mark.parametrize("code", [400, 403, 404, 409, 413, 422])
async def test_a_permanent_refusal_is_dead(outbox: Outbox, code: int) -> None:
    """The id is never rotated by the daemon: that would hide a fault of the caller."""
    uplink = RecordingUplink()
    uplink.answer = SendReply(code=code, error=f"{code} refused")
    accept(outbox, "a")
    await work(Worker(outbox, uplink, DaemonMetrics()), lambda: row(outbox, "a").status == "dead")
    assert row(outbox, "a").last_error == f"{code} refused"
    assert uplink.sent == [("a", None)]


@pytest.mark.parametrize("code", [401, 408, 425, 429, 500, 503, None])
async def test_a_transient_failure_is_retried_with_growing_delays(
    outbox: Outbox, clock: FakeClock, code: int | None
) -> None:
    """Each attempt waits twice as long as the one before; nothing else is counted."""
    uplink = RecordingUplink()
    uplink.answer = SendReply(code=code, error="later")
    accept(outbox, "a")
    for attempt, delay in ((1, 500), (2, 1000), (3, 2000)):
        worker = Worker(outbox, uplink, DaemonMetrics(), jitter=lambda: 1.0)
        await work(worker, partial(has_attempts, outbox, attempt))
        found = row(outbox, "a")
        assert (found.status, found.last_error) == ("pending", "later")
        assert found.next_attempt_at == clock.now_ms() + delay
        clock.advance(delay)


async def test_retry_after_raises_the_delay(outbox: Outbox, clock: FakeClock) -> None:
    """The broker may ask for more patience, not for less."""
    uplink = RecordingUplink()
    uplink.answer = SendReply(code=429, error="rate_limited", retry_after_s=12)
    accept(outbox, "a")
    worker = Worker(outbox, uplink, DaemonMetrics(), jitter=lambda: 1.2)
    await work(worker, lambda: row(outbox, "a").attempts == 1)
    assert row(outbox, "a").next_attempt_at == clock.now_ms() + 12_000


async def test_no_more_than_a_claim_is_under_way(outbox: Outbox) -> None:
    """Attempts are bounded, start in the order of acceptance, and each row has one."""
    uplink = RecordingUplink()
    uplink.gate.clear()
    ids = [f"m{number:03}" for number in range(50)]
    accept(outbox, *ids)
    worker = Worker(outbox, uplink, DaemonMetrics())
    running = asyncio.create_task(worker.run())
    await until(lambda: len(uplink.sent) >= policy.CLAIM_ROWS)
    await asyncio.sleep(0.05)
    assert [name for name, _ in uplink.sent] == ids[: policy.CLAIM_ROWS]
    uplink.gate.set()
    await until(lambda: outbox.counts()["done"] == 50)
    worker.stop()
    await running
    assert uplink.most_at_once == policy.CLAIM_ROWS
    assert sorted(name for name, _ in uplink.sent) == ids


async def test_nothing_is_claimed_without_a_connection(outbox: Outbox, clock: FakeClock) -> None:
    """A broker that is away costs no attempt; age goes on."""
    uplink = RecordingUplink()
    uplink.connected = False
    accept(outbox, "a")
    worker = Worker(outbox, uplink, DaemonMetrics())
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(0.02)
    assert row(outbox, "a").attempts == 0
    clock.advance(144 * 3_600_000)
    worker.wake()
    await asyncio.sleep(0.02)
    assert row(outbox, "a").status == "dead"
    worker.stop()
    await running
    assert uplink.sent == []


async def test_a_late_answer_changes_nothing(outbox: Outbox) -> None:
    """The row went on without the attempt; what that learned is dropped."""
    uplink = RecordingUplink()
    uplink.gate.clear()
    accept(outbox, "a")
    worker = Worker(outbox, uplink, DaemonMetrics())
    running = asyncio.create_task(worker.run())
    await until(lambda: bool(uplink.sent))
    outbox.recover_inflight()  # as if another process had taken over
    uplink.gate.set()
    worker.stop()
    await running
    assert (row(outbox, "a").status, row(outbox, "a").attempts) == ("pending", 2)


async def test_a_result_that_cannot_be_stored_is_kept(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk must not leave a row inflight for ever, nor start it a second time."""
    uplink = RecordingUplink()
    accept(outbox, "a")
    settle, failures = outbox.settle, [StoreUnavailable("disk full")]

    def failing(settlements: Any) -> Any:
        if failures:
            raise failures.pop()
        return settle(settlements)

    monkeypatch.setattr(outbox, "settle", failing)
    monkeypatch.setattr("tidelog.daemon.outbox.worker.STORE_RETRY_S", 0.01)
    await work(Worker(outbox, uplink, DaemonMetrics()), lambda: row(outbox, "a").status == "done")
    assert len(uplink.sent) == 1


async def test_a_requeued_row_names_what_it_replaced(outbox: Outbox) -> None:
    """The chain can be followed at the broker too."""
    uplink = RecordingUplink()
    accept(outbox, "a")
    outbox.requeue(row(outbox, "a").id, "b")
    await work(Worker(outbox, uplink, DaemonMetrics()), lambda: row(outbox, "b").status == "done")
    assert uplink.sent == [("b", "a")]
