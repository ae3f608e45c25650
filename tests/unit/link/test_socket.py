"""A link over a socket: frames of many, in order and bounded, and what a lost end leaves."""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from tidelog import __version__
from tidelog.base import brake
from tidelog.base.brake import Brake
from tidelog.base.errors import OtherVersion, OutcomeUnknown, Unsendable
from tidelog.link import bounds
from tidelog.link.bounds import FRAME_BYTES, MAX_FRAME_MESSAGES
from tidelog.link.ends import FrontEnd, OwnerEnd, Send
from tidelog.link.frames import FrameReader, FrameWriter, NotAFrame, encoded
from tidelog.link.message import Failed, Message, NotSent, Vocabulary
from tidelog.link.unix import Beat, Opened, Served, SocketLink, front_link, owner_link


class Ask(Message, frozen=True):
    """Is answered, or never."""

    text: str


class Answer(Message, frozen=True):
    """What was asked."""

    text: str


class Said(Message, frozen=True):
    """Something that nobody asked for."""

    data: bytes


A = Vocabulary(Ask | Said, Answer | Said | Failed)
B = Vocabulary(Ask, Answer | Failed)

NEVER = "never"
TWICE = "twice"


class Half:
    """Answers what it is asked, and then says as much."""

    def __init__(self) -> None:
        self.fronts: list[AtHalf] = []
        self.lost = 0
        self.gone = asyncio.Event()

    def accept(self, send: Send) -> "AtHalf":
        """See `OwnerHalf.accept`."""
        self.fronts.append(AtHalf(self, send))
        return self.fronts[-1]


class AtHalf(OwnerEnd):
    """One front."""

    def __init__(self, half: Half, send: Send) -> None:
        super().__init__(send)
        self._half = half
        self.heard: list[Any] = []

    def received(self, number: int, message: Any) -> None:
        """See `AtOwner.received`."""
        self.heard.append(message)
        if message == Ask("mistake"):
            self.send(number, Answer("made"))
            raise RuntimeError("a mistake")
        if isinstance(message, Ask) and message.text != NEVER:
            times = 2 if message.text.startswith(TWICE) else 1
            self.send(number, Answer(message.text * times))

    def lost(self) -> None:
        """See `AtOwner.lost`."""
        self._half.lost += 1
        self._half.gone.set()


class Linked:
    """Two surfaces, linked by a socket."""

    def __init__(self) -> None:
        self.a, self.b = Half(), Half()
        self.gone = asyncio.Event()
        self.brake = Brake()
        self.to_a: FrontEnd
        self.to_b: FrontEnd
        self.front: asyncio.Transport
        self.owner: asyncio.Transport

    async def open(self) -> None:
        """Connect."""
        loop, (here, there) = asyncio.get_running_loop(), socket.socketpair()
        surfaces = (Served(self.a, A), Served(self.b, B))
        self.owner, _ = await loop.create_connection(
            lambda: owner_link(surfaces, self.brake), sock=there
        )
        link, (self.to_a, self.to_b) = front_link((A, B), self.gone.set)
        self.front, _ = await loop.create_connection(lambda: link, sock=here)


@asynccontextmanager
async def linked() -> AsyncIterator[Linked]:
    """Both ends, closed afterwards."""
    both = Linked()
    await both.open()
    try:
        yield both
    finally:
        both.front.abort()
        both.owner.abort()
        await both.gone.wait()
        await both.a.gone.wait()


MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 2**40),
        st.builds(Ask, st.text(max_size=8)),
    ),
    max_size=40,
)


@given(MESSAGES, st.lists(st.integers(1, 50), max_size=20))
def test_frames_are_read_however_they_are_cut(
    messages: list[tuple[int, int, Ask]], cuts: list[int]
) -> None:
    """All messages come, in order, each to its surface."""
    writer, reader = FrameWriter(), FrameReader([A.to_owner, B.to_owner])
    sent = b""
    for place, each in enumerate(messages):
        writer.add(*each)
        if place % 7 == 3:
            sent += writer.take()
    sent += writer.take()
    came: list[tuple[int, int, Any]] = []
    for cut in cuts:
        came += reader.feed(sent[:cut])
        sent = sent[cut:]
    came += reader.feed(sent)
    assert came == messages


def test_a_frame_has_a_bounded_number_of_messages() -> None:
    """Whoever reads it gets to something else in between."""
    writer = FrameWriter()
    firsts = [writer.add(0, n, Ask("x")) for n in range(2 * MAX_FRAME_MESSAGES + 1)]
    assert firsts == [True] + [False] * (2 * MAX_FRAME_MESSAGES)
    assert counts(writer) == [MAX_FRAME_MESSAGES, MAX_FRAME_MESSAGES, 1]
    assert writer.take() == b""


def test_what_all_fronts_are_told_is_encoded_once() -> None:
    """Every link gets the same bytes; what only looks the same, or is larger, is another one."""
    one, same, large = Said(b"x"), Said(b"x"), Said(bytes(FRAME_BYTES))
    assert encoded(0, one) is encoded(0, one)
    assert encoded(0, same) is not encoded(0, one)
    assert encoded(0, same) == encoded(0, one)
    assert encoded(0, large) is not encoded(0, large)
    assert encoded(1, one) != encoded(0, one)


def test_a_frame_has_a_bounded_size_unless_one_message_is_larger() -> None:
    """Large messages are frames by themselves."""
    writer = FrameWriter()
    for size in (100, FRAME_BYTES // 2, FRAME_BYTES // 3, FRAME_BYTES // 3, 2 * FRAME_BYTES, 1, 2):
        writer.add(0, 1, Said(bytes(size)))
    assert counts(writer) == [3, 1, 1, 2]


def counts(writer: FrameWriter) -> list[int]:
    """How many messages its frames have."""
    found, taken = [], writer.take()
    while taken:
        size = int.from_bytes(taken[:4], "little")
        found.append(len(msgspec.msgpack.decode(taken[5 : 5 + size])))
        taken = taken[5 + size :]
    return found


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\x00",
        b"\x01\x00\x00\x00\x02\x90",
        b"\x01\x00\x00\x00\x00\xc1",
        b"\x01\x00\x00\x00\x00\xc0",
        b"\x07\x00\x00\x00\x00" + msgspec.msgpack.encode([(1, ["No"])]),
    ],
)
def test_what_is_no_frame_is_not_taken_for_one(data: bytes) -> None:
    """A length beyond all bounds, a surface that nobody has, and what is no message of it."""
    with pytest.raises(NotAFrame):
        list(FrameReader([A.to_owner, B.to_owner]).feed(data))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_surfaces_share_a_link_and_keep_their_order(run: Callable[[Any], None]) -> None:
    """Questions of both, a thousand at once, each answered to whoever asked, on either loop."""
    run(_ask_a_thousand())


async def _ask_a_thousand() -> None:
    async with asyncio.timeout(20), linked() as both:
        answers: list[tuple[str, str]] = []
        for number in range(500):
            both.to_a.ask(Ask(f"{number}"), lambda answer: answers.append(("a", answer.text)))
            both.to_b.ask(Ask(f"{number}"), lambda answer: answers.append(("b", answer.text)))
        assert await both.to_b.reply(Ask("last"), Answer) == Answer("last")
        for name in "ab":
            mine = [text for surface, text in answers if surface == name]
            assert mine == [f"{number}" for number in range(500)]


async def test_a_receiver_that_fails_does_not_lose_what_follows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each message of a frame is received by itself."""
    async with linked() as both:
        with caplog.at_level(logging.ERROR):
            both.to_a.ask(Ask("mistake"), lambda _: None)
            assert await both.to_a.reply(Ask("x"), Answer) == Answer("x")
        assert "receiving a Ask failed" in caplog.text


@pytest.mark.parametrize("end", ["front", "owner"])
async def test_whoever_waits_is_told_when_the_link_is_lost(end: str) -> None:
    """That nobody knows the outcome; the owner's halves know that the front is gone."""
    async with linked() as both:
        waiting = asyncio.create_task(both.to_a.reply(Ask(NEVER), Answer))
        reaching = asyncio.create_task(both.to_b.reach(5))
        await both.to_b.reply(Ask("x"), Answer)
        getattr(both, end).abort()
        with pytest.raises(OutcomeUnknown, match="the owner of the log is gone"):
            await waiting
        await reaching
        await both.gone.wait()
        await both.a.gone.wait()
        assert (both.a.lost, both.b.lost) == (1, 1)
        both.to_a.tell(Said(b"into the void"))
        with pytest.raises(OutcomeUnknown):
            await both.to_a.reply(Ask("too late"), Answer)


async def test_an_end_that_does_not_read_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What waits for it is bounded, whatever it is sent."""
    monkeypatch.setattr(bounds, "MAX_WAITING_BYTES", 1_000_000)
    async with linked() as both:
        both.to_a.hear = lambda _: None
        both.front.pause_reading()
        with caplog.at_level(logging.ERROR):
            async with asyncio.timeout(20):
                while not both.a.lost:
                    both.a.fronts[0].tell(Said(b"x" * 100_000))
                    await asyncio.sleep(0)
        assert "bytes wait to be read at its other end" in caplog.text


async def test_an_end_that_speaks_something_else_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A link is closed at the first thing that cannot be read."""
    async with linked() as both:
        with caplog.at_level(logging.ERROR):
            both.front.write(b"GET / HTTP/1.1\r\n\r\n")
            await both.a.gone.wait()
        assert "dropped a link: a frame of" in caplog.text


async def test_what_cannot_be_sent_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too large, or nothing that bytes can say: whoever asks is told, its neighbours go on."""
    monkeypatch.setattr(bounds, "MAX_MESSAGE_BYTES", 1000)
    async with asyncio.timeout(20), linked() as both:
        answers: list[Any] = []
        for text in ("first", "\ud800", "x" * 1000, "second"):
            both.to_a.ask(Ask(text), answers.append)
        assert await both.to_a.reply(Ask("last"), Answer) == Answer("last")
        no_text, too_large, *others = answers
        assert others == [Answer("first"), Answer("second")]
        assert isinstance(no_text, NotSent)
        assert "cannot be encoded" in no_text.text
        assert isinstance(too_large, NotSent)
        assert "where 1000 are the most" in too_large.text
        with pytest.raises(Unsendable):
            await both.to_a.reply(Ask("x" * 1000), Answer)
        with pytest.raises(Unsendable):
            both.to_a.tell(Said(bytes(1000)))
        assert len(both.a.fronts[0].heard) == 3
        assert (both.a.lost, both.gone.is_set()) == (0, False)


async def test_an_answer_that_cannot_be_sent_is_told_to_who_asked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That it cannot be given; what was asked for may have been done."""
    monkeypatch.setattr(bounds, "MAX_MESSAGE_BYTES", 1000)
    async with asyncio.timeout(20), linked() as both:
        with caplog.at_level(logging.CRITICAL):
            waiting = [
                asyncio.create_task(both.to_a.answer(Ask(text)))
                for text in ("first", TWICE + "x" * 600, "second")
            ]
            first, too_large, second = await asyncio.gather(*waiting)
        assert (first, second) == (Answer("first"), Answer("second"))
        assert type(too_large) is Failed
        assert isinstance(too_large.raised(), Unsendable)
        assert too_large.text.startswith("the answer cannot be given: it is too large")


async def test_a_front_that_would_miss_something_must_begin_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What nobody asked for cannot be refused to anybody; nothing after it arrives."""
    monkeypatch.setattr(bounds, "MAX_MESSAGE_BYTES", 1000)
    async with asyncio.timeout(20), linked() as both:
        came: list[Any] = []
        both.to_a.hear = came.append
        with caplog.at_level(logging.ERROR):
            for size in (1, 1000, 2):
                both.a.fronts[0].tell(Said(bytes(size)))
            await both.gone.wait()
        assert Said(bytes(2)) not in came
        assert "could not tell a front a Said: it is too large" in caplog.text


async def test_the_largest_message_is_carried() -> None:
    """Both ways, beside what waits at the high mark: nobody is dropped for it."""
    largest = bytes(bounds.MAX_MESSAGE_BYTES - 100)
    async with asyncio.timeout(60), linked() as both:
        came: list[int] = []
        both.to_a.hear = lambda said: came.append(len(said.data))
        both.front.pause_reading()
        for data in (bytes(bounds.HIGH_WATER_BYTES), largest, b"x"):
            both.a.fronts[0].tell(Said(data))
        both.to_a.tell(Said(largest))
        while not both.a.fronts[0].heard:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        both.front.resume_reading()
        await both.to_a.reply(Ask("x"), Answer)
        assert came == [bounds.HIGH_WATER_BYTES, len(largest), 1]
        assert len(both.a.fronts[0].heard[0].data) == len(largest)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_who_waits_for_the_brake_does_not_overrun_a_front(
    run: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on when the front has read down to the low mark; everything comes, in order."""
    monkeypatch.setattr(bounds, "HIGH_WATER_BYTES", 500_000)
    monkeypatch.setattr(bounds, "LOW_WATER_BYTES", 100_000)
    monkeypatch.setattr(bounds, "MAX_WAITING_BYTES", 1_500_000)
    monkeypatch.setattr(brake, "PATIENCE_SECONDS", 60.0)
    run(_catch_up_with_a_slow_front())


async def _catch_up_with_a_slow_front() -> None:
    async with asyncio.timeout(60), linked() as both:
        came: list[int] = []
        both.to_a.hear = lambda said: came.append(said.data[0])

        async def produce() -> None:
            for number in range(100):
                await both.brake.released()
                both.a.fronts[0].tell(Said(bytes([number]) * 100_000))
                await asyncio.sleep(0)

        both.front.pause_reading()
        producing = asyncio.create_task(produce())
        while not both.brake.is_awaited:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)
        assert not producing.done()
        both.front.resume_reading()
        await producing
        await both.to_a.reply(Ask("x"), Answer)
        assert came == list(range(100))
        assert not both.a.lost


async def test_a_front_that_holds_the_brake_too_long_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that does not read at all holds up nobody for ever."""
    monkeypatch.setattr(bounds, "HIGH_WATER_BYTES", 500_000)
    monkeypatch.setattr(bounds, "LOW_WATER_BYTES", 100_000)
    monkeypatch.setattr(brake, "PATIENCE_SECONDS", 0.02)
    async with asyncio.timeout(60), linked() as both:
        both.to_a.hear = lambda _: None
        both.front.pause_reading()
        with caplog.at_level(logging.ERROR):
            while not both.a.lost:
                await both.brake.released()
                both.a.fronts[0].tell(Said(bytes(100_000)))
                await asyncio.sleep(0)
        assert "too slow, and the tail has waited long enough" in caplog.text


@asynccontextmanager
async def facing(link: SocketLink) -> AsyncIterator[socket.socket]:
    """What is at the other end of a link: a socket that says nothing by itself."""
    here, there = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: link, sock=here)
    there.setblocking(False)
    try:
        yield there
    finally:
        there.close()
        transport.abort()


def said(*messages: tuple[int, Message]) -> bytes:
    """Messages of surfaces, in frames."""
    writer = FrameWriter()
    for surface, message in messages:
        writer.add(surface, 0, message)
    return writer.take()


async def until(is_so: Callable[[], bool]) -> None:
    """Return when it is."""
    while not is_so():  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.01)


OPENED = (0, Opened(__version__))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends notice soon that the other hangs."""
    monkeypatch.setattr(bounds, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(bounds, "MOST_SILENT_BEATS", 20)


@pytest.mark.usefixtures("quick")
async def test_a_front_that_hangs_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """When nothing has come from it for a while; anything that comes is a sign of life."""
    half = Half()
    async with asyncio.timeout(20), facing(owner_link([Served(half, A)])) as front:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(front, said(OPENED))
        part = said((1, Said(bytes(60))))
        for place in range(len(part)):  # twice as long as it may be silent
            await loop.sock_sendall(front, part[place : place + 1])
            await asyncio.sleep(bounds.BEAT_SECONDS / 2)
        assert half.fronts[0].heard == [Said(bytes(60))]
        assert not half.lost
        with caplog.at_level(logging.ERROR):
            await half.gone.wait()
        assert "its other end hangs" in caplog.text


@pytest.mark.usefixtures("quick")
async def test_who_stood_still_itself_drops_nobody() -> None:
    """It has not read either what the others said meanwhile."""
    async with asyncio.timeout(20), linked() as both:
        time.sleep(3 * bounds.BEAT_SECONDS * bounds.MOST_SILENT_BEATS)  # noqa: ASYNC251 - on purpose
        await asyncio.sleep(2 * bounds.BEAT_SECONDS)
        assert await both.to_a.reply(Ask("x"), Answer) == Answer("x")
        assert not both.a.lost


@pytest.mark.usefixtures("quick")
async def test_a_front_knows_of_an_owner_that_hangs() -> None:
    """And waits for it; when it lives again all is well."""
    lost = asyncio.Event()
    link, _ = front_link([A], lost.set)
    async with asyncio.timeout(20), facing(link) as owner:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(owner, said(OPENED))
        await until(lambda: link.is_silent)
        await loop.sock_sendall(owner, said((0, Beat())))
        await until(lambda: not link.is_silent)
        assert not lost.is_set()


async def test_ends_of_other_versions_refuse_each_other(caplog: pytest.LogCaptureFixture) -> None:
    """With both versions named, and before anything else that the other says is taken."""
    half, lost = Half(), asyncio.Event()
    link, (end,) = front_link([A], lost.set)
    came: list[Any] = []
    end.hear = came.append
    other = said((0, Opened("99.0")), (1, Said(b"x")))
    loop = asyncio.get_running_loop()
    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(20), facing(link) as owner:
            await loop.sock_sendall(owner, other)
            await lost.wait()
        async with asyncio.timeout(20), facing(owner_link([Served(half, A)])) as front:
            await loop.sock_sendall(front, other)
            await half.gone.wait()
    assert isinstance(link.refused, OtherVersion)
    assert f"is of tidelog {__version__} and its other end of 99.0: restart" in str(link.refused)
    assert caplog.text.count("its other end of 99.0") == 2
    assert came == half.fronts[0].heard == []


async def test_who_does_not_say_its_version_first_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing that it says is taken."""
    half = Half()
    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(20), facing(owner_link([Served(half, A)])) as front:
            await asyncio.get_running_loop().sock_sendall(front, said((1, Said(b"x"))))
            await half.gone.wait()
    assert "it says (0, 'Said') before its version" in caplog.text
    assert half.fronts[0].heard == []


async def test_a_question_is_asked_within_its_own_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that could not be sent leaves its trace to nobody; what is told has none."""
    monkeypatch.setattr(bounds, "MAX_MESSAGE_BYTES", 1000)
    half, lost, traces = Half(), asyncio.Event(), list[str]()
    entered: list[tuple[str, int]] = []

    @contextmanager
    def within(trace: str) -> Iterator[None]:
        before = len(half.fronts[0].heard)
        yield
        entered.append((trace, len(half.fronts[0].heard) - before))

    loop, (here, there) = asyncio.get_running_loop(), socket.socketpair()
    link, (end,) = front_link([A], lost.set)
    link.trace = lambda: traces[-1] if traces else None
    await loop.create_connection(lambda: owner_link([Served(half, A)], within=within), sock=there)
    transport, _ = await loop.create_connection(lambda: link, sock=here)
    async with asyncio.timeout(20):
        for trace, text in (("", "none"), ("first", "x"), ("large", "x" * 1000), ("", "none")):
            traces[:] = [trace] if trace else []
            end.ask(Ask(text), lambda _: None)
        traces[:] = ["told"]
        end.tell(Said(b"x"))
        traces[:] = ["last"]
        await end.reply(Ask("last"), Answer)
        transport.abort()
        await half.gone.wait()
        await lost.wait()
    assert entered == [("first", 1), ("last", 1)]
    assert len(half.fronts[0].heard) == 5
