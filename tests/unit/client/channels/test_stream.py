"""A stream of tokens against a publisher that is slow, refuses or counts."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tidelog.client.channels import token_buffer as module
from tidelog.client.channels.calls import Receipt
from tidelog.client.channels.exchange import PublishRefused
from tidelog.client.channels.stream import MessageStream
from tidelog.client.channels.token_buffer import (
    EAGER_APPENDS,
    FIRST_CHARACTERS,
    StreamEnded,
    with_status,
)


def receipt(serial: str | None = "m1") -> Receipt:
    """A receipt of which only the serial matters."""
    return Receipt(
        channel="room",
        message_serial=serial,
        version_serial=None,
        history_serial=None,
        delivery_serial=None,
        key="k",
    )


class Recorder:
    """A publisher that notes what it is given; `gate` holds its answers back."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.statuses: list[str | None] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.refusal: PublishRefused | None = None
        """Of appends."""
        self.unpublishable: PublishRefused | None = None
        self.serial: str | None = "m1"
        self.kept_open = 0

    async def publish(
        self,
        channel: str,
        event: str,
        data: Any,
        *,
        message_id: str | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> Receipt:
        """Note the text of the create and its status."""
        assert (channel, event, message_id) == ("room", "answer", None)
        self._note(data, extras)
        if self.unpublishable is not None:
            raise self.unpublishable
        return receipt(self.serial)

    async def append(
        self,
        channel: str,
        message_serial: str,
        text: str,
        *,
        extras: Mapping[str, Any] | None = None,
    ) -> Receipt:
        """Note the text when the gate is open."""
        assert (channel, message_serial) == ("room", "m1")
        self._note(text, extras)
        await self.gate.wait()
        if self.refusal is not None:
            raise self.refusal
        return receipt()

    async def update(self, channel: str, message_serial: str) -> Receipt:
        """Count it: nothing is changed."""
        assert (channel, message_serial) == ("room", "m1")
        self.kept_open += 1
        return receipt()

    def _note(self, text: str, extras: Mapping[str, Any] | None) -> None:
        self.texts.append(text)
        self.statuses.append(None if extras is None else extras["ai"]["transport"]["status"])

    def stream(self, max_buffered: int = 1000) -> MessageStream:
        """A stream into this."""
        return MessageStream(
            self, "room", "answer", extras=None, message_id=None, max_buffered=max_buffered
        )


async def settle() -> None:
    """Let everything that can run, run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_tokens_gather_while_a_request_is_under_way() -> None:
    """The first publishes, those written meanwhile go together, the end takes the rest."""
    recorder = Recorder()
    async with recorder.stream() as stream:
        with pytest.raises(StreamEnded, match="first `write`"):
            _ = stream.message_serial
        await stream.write("")
        await stream.write("0")
        assert (stream.message_serial, recorder.texts) == ("m1", ["0"])
        recorder.gate.clear()
        await stream.write("a")
        await settle()
        for token in ("b", "", "c"):
            await stream.write(token)
        recorder.gate.set()
        await settle()
        recorder.gate.clear()
        await stream.write("d")
        await settle()
        await stream.write("e")
        recorder.gate.set()
    assert recorder.texts == ["0", "a", "bc", "d", "e"]
    assert recorder.statuses == ["streaming", None, None, None, "complete"]
    assert stream.message_serial == "m1"


async def test_a_writer_waits_only_when_the_buffer_is_full() -> None:
    """And a token larger than the buffer passes when it is empty."""
    recorder = Recorder()
    async with recorder.stream(max_buffered=4) as stream:
        await stream.write("0")
        recorder.gate.clear()
        await stream.write("1")
        await settle()
        await stream.write("ab")
        await stream.write("cd")
        waiting = asyncio.create_task(stream.write("longer than that"))
        await settle()
        assert not waiting.done()
        recorder.gate.set()
        await waiting
    assert "".join(recorder.texts) == "01abcdlonger than that"


async def test_an_exception_cancels_the_message_and_is_what_is_raised() -> None:
    """What was written is sent with it, even if the server has something to say against it."""
    recorder = Recorder()

    async def write_and_fail() -> None:
        async with recorder.stream() as stream:
            await stream.write("a")
            await stream.write("b")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await write_and_fail()
    assert recorder.texts == ["a", "b"]
    assert recorder.statuses == ["streaming", "cancelled"]
    recorder.refusal = PublishRefused(413, "payload_too_large", "too much", 40009)
    with pytest.raises(ZeroDivisionError):
        await write_and_fail()


async def test_a_stream_that_fails_before_its_first_token_leaves_nothing() -> None:
    """An answer that is empty and complete is published all the same."""
    recorder = Recorder()

    async def fail_at_once() -> None:
        async with recorder.stream() as stream:
            await stream.write("")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_at_once()
    assert recorder.texts == []
    async with recorder.stream():
        pass
    assert (recorder.texts, recorder.statuses) == ([""], ["complete"])


async def test_a_stream_that_cannot_begin_says_so_at_its_first_token() -> None:
    """Where the server refuses it, and where messages cannot change."""
    recorder = Recorder()
    recorder.unpublishable = PublishRefused(422, "feature_disabled", "off (setting s)")
    written = []

    async def answer() -> None:
        async with recorder.stream() as stream:
            for token in "ab":
                await stream.write(token)
                written.append(token)

    with pytest.raises(PublishRefused, match="setting s"):
        await answer()
    assert (written, recorder.texts) == ([], ["a"])
    recorder.unpublishable, recorder.serial = None, None
    with pytest.raises(StreamEnded, match=r"channels\.versioned_messages\.enabled"):
        await answer()
    assert written == []


async def test_a_large_first_token_is_published_in_part() -> None:
    """A publish may hold less than a message; nothing of it is lost, and the end comes last."""
    recorder = Recorder()
    text = "x" * (FIRST_CHARACTERS + 3)
    async with recorder.stream(max_buffered=10) as stream:
        await stream.write(text)
    assert [len(each) for each in recorder.texts] == [FIRST_CHARACTERS, 3, 0]
    assert recorder.statuses == ["streaming", None, "complete"]


async def test_a_silent_stream_is_kept_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it has begun: before that there is nothing that could be ended."""
    monkeypatch.setattr(module, "KEEP_OPEN_S", 0.001)
    recorder = Recorder()
    async with recorder.stream() as stream:
        await asyncio.sleep(0.02)
        assert recorder.kept_open == 0
        await stream.write("a")
        async with asyncio.timeout(10):
            while recorder.kept_open < 3:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)
        await stream.write("b")
    assert recorder.texts == ["a", "b", ""] or recorder.texts == ["a", "b"]
    assert recorder.statuses[-1] == "complete"


async def test_a_refusal_ends_the_stream() -> None:
    """The next write raises it, one that waits as well, and so does the end of the block."""
    recorder = Recorder()
    recorder.refusal = PublishRefused(413, "payload_too_large", "too much", 40009)

    async def write_twice() -> None:
        async with recorder.stream() as stream:
            await stream.write("a")
            await stream.write("b")
            await settle()
            with pytest.raises(PublishRefused):
                await stream.write("c")

    async def write_too_much() -> None:
        async with recorder.stream(max_buffered=1) as stream:
            await stream.write("0")
            await stream.write("a")
            await settle()
            await stream.write("b")
            asyncio.get_running_loop().call_soon(recorder.gate.set)
            await stream.write("c")

    with pytest.raises(PublishRefused) as refused:
        await write_twice()
    assert refused.value.ai_code == 40009
    with pytest.raises(PublishRefused):
        async with recorder.stream() as stream:
            await stream.write("a")
    recorder.gate.clear()
    with pytest.raises(PublishRefused):
        await write_too_much()


async def test_only_an_open_stream_takes_tokens() -> None:
    """Not before, not after, not twice; and only real text."""
    recorder = Recorder()
    stream = recorder.stream()
    with pytest.raises(StreamEnded):
        await stream.write("a")
    with pytest.raises(StreamEnded):
        _ = stream.message_serial
    async with stream:
        with pytest.raises(UnicodeEncodeError):
            await stream.write("\ud800")
    with pytest.raises(StreamEnded):
        await stream.write("a")
    with pytest.raises(StreamEnded):
        await stream.__aenter__()
    with pytest.raises(ValueError, match="max_buffered"):
        recorder.stream(max_buffered=0)


async def test_a_message_never_needs_more_appends_than_it_may_have() -> None:
    """One token at a time for a whole megabyte: later appends wait for more."""
    recorder = Recorder()
    written = 0
    async with recorder.stream(max_buffered=262_144) as stream:
        while written < 1_048_576:
            await stream.write("token" * 5)
            written += 25
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    assert EAGER_APPENDS < len(recorder.texts) - 1 <= 4096
    assert sum(map(len, recorder.texts)) == written


def test_the_status_joins_other_extras() -> None:
    """Nothing else of them is touched."""
    extras = {"headers": {"a": 1}, "ai": {"codec": {"x": "y"}, "transport": {"t": "u"}}}
    assert with_status(extras, "complete") == {
        "headers": {"a": 1},
        "ai": {"codec": {"x": "y"}, "transport": {"t": "u", "status": "complete"}},
    }
    assert extras["ai"] == {"codec": {"x": "y"}, "transport": {"t": "u"}}
