"""Fanout: one write per connection and turn, slow consumers dropped, failures kept apart."""

import asyncio
import os
import subprocess
import sys

import pytest

from tidelog.base import faultpoint
from tidelog.base.faultpoint import FaultPoint
from tidelog.base.metrics import Metrics
from tidelog.base.settings.limits import Limits
from tidelog.web.fanout import MANY_RECEIVERS, Fanout, FrameWriter
from unit.web.recording import RecordingTransport

LIMITS = Limits(send_buffer_bytes=1000, send_buffer_messages=10)


class LosableSpout(FrameWriter):
    """A writer that is told when its connection is lost."""

    __slots__ = ()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Let go of the transport, as a protocol does."""
        self.detach()


def connected(fanout: Fanout, room: int | None = None) -> tuple[LosableSpout, RecordingTransport]:
    """A writer on a transport that takes `room` bytes."""
    transport = RecordingTransport(room)
    writer = LosableSpout(fanout)
    transport.protocol = writer
    writer.attach(transport)
    return writer, transport


def sample(metrics: Metrics, name: str) -> float:
    """A metric's value."""
    value = metrics.registry.get_sample_value(name)
    assert value is not None
    return value


@pytest.fixture
def metrics() -> Metrics:
    """A registry of its own."""
    return Metrics()


@pytest.fixture
async def fanout(metrics: Metrics) -> Fanout:
    """A fan-out on the running loop."""
    return Fanout(asyncio.get_running_loop(), metrics, LIMITS)


async def test_one_write_per_turn(fanout: Fanout, metrics: Metrics) -> None:
    """Everything pushed in one turn of the loop leaves in one write, in order."""
    writer, transport = connected(fanout)
    for frame in (b"a", b"b", b"c"):
        writer.push(frame)
    assert transport.writes == []
    await asyncio.sleep(0)
    assert transport.writes == [b"abc"]
    writer.push(b"d")
    await asyncio.sleep(0)
    assert transport.writes == [b"abc", b"d"]
    assert sample(metrics, "tidelog_sent_bytes_total") == 4


async def test_receivers_of_equal_batches_share_one_buffer(fanout: Fanout) -> None:
    """Different batches go to their own receivers; equal ones are joined once."""
    writers = [connected(fanout) for _ in range(4)]
    for frame in (b"x", b"y"):
        for writer, _ in writers:
            writer.push(frame)
    writers[2][0].push(b"z")
    await asyncio.sleep(0)
    assert [transport.writes for _, transport in writers] == [[b"xy"], [b"xy"], [b"xyz"], [b"xy"]]


async def test_a_flush_to_many_may_wait_for_more(metrics: Metrics) -> None:
    """What comes meanwhile leaves with it, in one write and in order; few do not wait."""
    fanout = Fanout(asyncio.get_running_loop(), metrics, LIMITS, wait_ms=5)
    writers = [connected(fanout) for _ in range(MANY_RECEIVERS)]
    for writer, _ in writers[1:]:
        writer.push(b"a")
    await asyncio.sleep(0)
    assert [transport.writes for _, transport in writers] == [[], *[[b"a"]] * (len(writers) - 1)]
    for writer, _ in writers:
        writer.push(b"b")
    await asyncio.sleep(0)
    for writer, _ in writers:
        writer.push(b"c")
    await asyncio.sleep(0)
    assert writers[0][1].writes == []
    await writers[0][0].drained()
    assert [transport.writes for _, transport in writers] == [
        [b"bc"],
        *[[b"a", b"bc"]] * (len(writers) - 1),
    ]


async def test_nothing_is_written_after_the_connection_is_gone(fanout: Fanout) -> None:
    """A connection lost between push and flush is skipped, and later pushes are dropped."""
    gone, gone_transport = connected(fanout)
    there, there_transport = connected(fanout)
    gone.push(b"a")
    there.push(b"a")
    gone.detach()
    gone.push(b"b")
    await asyncio.sleep(0)
    assert gone_transport.writes == []
    assert there_transport.writes == [b"a"]


async def test_too_many_bytes_untaken(fanout: Fanout, metrics: Metrics) -> None:
    """A peer that leaves more bytes than allowed, not just as many, is counted and dropped."""
    writer, transport = connected(fanout, room=500)
    writer.push(bytes(1500))
    await asyncio.sleep(0)
    assert transport.ended == []
    writer.push(b"x")
    await asyncio.sleep(0)
    assert transport.ended == ["abort"]
    assert sample(metrics, "tidelog_slow_consumers_total") == 1
    writer.push(b"y")
    await asyncio.sleep(0)
    assert transport.writes == [bytes(1500), b"x"]


async def test_too_many_messages_untaken(fanout: Fanout, metrics: Metrics) -> None:
    """A peer that leaves more messages than allowed is dropped, however small they are."""
    writer, transport = connected(fanout, room=0)
    for _ in range(10):
        writer.push(b"x")
    await asyncio.sleep(0)
    assert transport.ended == []
    writer.push(b"x")
    await asyncio.sleep(0)
    assert transport.ended == ["abort"]
    assert sample(metrics, "tidelog_slow_consumers_total") == 1


async def test_an_answer_is_not_counted(
    fanout: Fanout, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    """What was asked for may be of any size; what is pushed beside it is judged as ever."""
    writer, transport = connected(fanout, room=0)
    writer.answer(bytes(5000))
    writer.push(bytes(1000))
    await asyncio.sleep(0)
    assert transport.ended == []
    writer.push(b"x")
    await asyncio.sleep(0)
    assert transport.ended == ["abort"]
    assert sample(metrics, "tidelog_slow_consumers_total") == 1
    assert "6001 bytes in 3 messages" in caplog.text


async def test_only_the_last_answer_is_not_counted(fanout: Fanout) -> None:
    """Who asks without reading is a slow consumer, and one that has read starts anew."""
    writer, transport = connected(fanout, room=0)
    writer.answer(bytes(5000))
    await asyncio.sleep(0)
    transport.drain(transport.waiting)
    transport.room = 0
    writer.push(bytes(1001))
    await asyncio.sleep(0)
    assert transport.ended == ["abort"]
    writer, transport = connected(fanout, room=0)
    writer.answer(bytes(900))
    writer.answer(bytes(900))
    await asyncio.sleep(0)
    assert transport.ended == []
    writer.answer(bytes(900))
    await asyncio.sleep(0)
    assert transport.ended == ["abort"]


async def test_messages_that_were_taken_are_not_counted(fanout: Fanout, metrics: Metrics) -> None:
    """A peer that keeps reading stays, however much passes through its buffer in total."""
    writer, transport = connected(fanout, room=0)
    for _ in range(50):
        for _ in range(5):
            writer.push(b"x" * 20)
        await asyncio.sleep(0)
        if transport.waiting > 100:
            transport.drain(100)
    assert transport.ended == []
    transport.drain(transport.waiting)
    assert not writer.attention
    assert sample(metrics, "tidelog_slow_consumers_total") == 0


async def test_a_failing_connection_is_dropped_alone(
    fanout: Fanout, caplog: pytest.LogCaptureFixture
) -> None:
    """A transport that raises loses its connection; its neighbours get their frames."""

    class Broken(RecordingTransport):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            raise RuntimeError("handle is closed")

    broken = Broken()
    writer = LosableSpout(fanout)
    broken.protocol = writer
    writer.attach(broken)
    neighbour, transport = connected(fanout)
    writer.push(b"a")
    neighbour.push(b"a")
    await asyncio.sleep(0)
    assert broken.ended == ["abort"]
    assert transport.writes == [b"a"]
    assert "write failed" in caplog.text


async def test_a_flush_that_fails_drops_its_connections(
    fanout: Fanout, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Frames that cannot be sent break the order, so their receivers are dropped, others not."""
    writer, transport = connected(fanout)
    other, other_transport = connected(fanout)

    def fail(point: FaultPoint) -> None:
        assert point is FaultPoint.FLUSHING
        raise ConnectionResetError

    with monkeypatch.context() as armed:
        armed.setattr(faultpoint, "reach", fail)
        writer.push(b"a")
        await asyncio.sleep(0)
    assert transport.ended == ["abort"]
    assert "flush failed" in caplog.text
    other.push(b"b")
    await asyncio.sleep(0)
    assert other_transport.writes == [b"b"]


def test_the_fault_point_is_reached_before_any_byte_leaves() -> None:
    """A process killed at the flushing point has written nothing."""
    script = """
import asyncio
from unit.web.test_fanout import connected, Fanout, Metrics, LIMITS
from unit.web.recording import RecordingTransport

RecordingTransport.write = lambda self, data: print("written", flush=True)

async def main():
    writer, _ = connected(Fanout(asyncio.get_running_loop(), Metrics(), LIMITS))
    writer.push(b"a")
    await asyncio.sleep(0)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **os.environ,
            faultpoint.VARIABLE: f"{FaultPoint.FLUSHING}=kill",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (-9, b"")
