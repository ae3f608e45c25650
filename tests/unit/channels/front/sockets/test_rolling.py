"""Subscribers who asked for a window are told what the others are told, in the same order."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from tidelog.base.net.frame import payload_of, text_frame
from tidelog.channels.front.sockets.delivery import Delivery
from tidelog.channels.front.sockets.hub import Hub, Subscription
from tidelog.channels.front.sockets.texts import Texts
from tidelog.channels.messages import Entry
from tidelog.channels.protocol.frames import Frames
from tidelog.channels.protocol.message_ids import MessageIds
from tidelog.channels.protocol.verbs import APPEND, CREATE, UPDATE
from tidelog.channels.protocol.version import Body, Projector, encode_body
from tidelog.channels.protocol.wire import V2

STREAM = "channels/a/room"
TURNS = 4
"""Of the event loop, in which whatever is due is done."""


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time passes when it is told to."""

    now = 1000.0

    def time(self) -> float:
        """What its timers go by."""
        return self.now


class Peer:
    """A connection as far as fan-out knows it; it remembers what it was sent."""

    def __init__(self, hub: Hub, window: int, mode: str) -> None:
        self.hub = hub
        self.rollup_window = window
        self.append_mode = mode
        self.version = V2
        self.socket_id = "1.1"
        self.is_closed = False
        self.held_bytes = 0
        self.subscriptions: dict[str, Subscription] = {}
        self.sent: list[dict[str, Any]] = []

    def push(self, frame: bytes) -> None:
        """What fan-out sends."""
        self.sent.append(msgspec.json.decode(payload_of(frame)))

    def own(self) -> None:
        """What `Connection.send` does with a frame of its own."""
        if self.rollup_window:
            self.hub.rolling.before_frame_of(self)  # type: ignore[arg-type]
        self.push(text_frame(b'{"event":"own"}'))

    async def drained(self) -> None:
        """It takes everything at once."""

    def end(self, code: int) -> None:
        """Nothing here may go wrong."""
        raise AssertionError(code)


class World:
    """A channel with a pair of subscribers: both do the same, one of them asked for a window."""

    def __init__(self, loop: Loop, window: int, mode: str) -> None:
        self.loop = loop
        self.hub = Hub(Frames(MessageIds(bytes)), lambda _: None)
        stream_ids: Any = SimpleNamespace(of=lambda stream, epoch: f"{stream}/{epoch}")
        nothing: Any = None
        self.texts = Texts(nothing, 10**6, is_followed=lambda _: True)
        self.delivery = Delivery(self.hub, self.texts, Projector("log"), stream_ids, None)
        self.channel = self.hub.open_channel("room", STREAM)
        self.peers = [[Peer(self.hub, each, mode) for each in (0, window)] for _ in range(2)]
        self.serial = 0

    def toggle(self, pair: int) -> None:
        """Subscribe, or not any more."""
        for peer in self.peers[pair]:
            subscription: Any = peer.subscriptions.get("room")
            if subscription is None:
                subscription = Subscription(peer, self.channel, None)  # type: ignore[arg-type]
                peer.subscriptions["room"] = subscription
                self.channel.join(subscription, {})
            else:
                self.delivery.rolling.give(subscription)
                del peer.subscriptions["room"]
                self.channel.leave(peer)  # type: ignore[arg-type]

    async def wait_or_release(self, pair: int) -> None:
        """Begin or end a replay, as a resume does."""
        for peer in self.peers[pair]:
            subscription = peer.subscriptions.get("room")
            if subscription is not None and subscription.held is None:
                self.delivery.rolling.give(subscription)
                subscription.wait()
            elif subscription is not None:
                await self.delivery.release(subscription)

    def say(self, kind: str, message: int, text: str, status: str = "") -> None:
        """Something is committed."""
        self.serial += 1
        extras = {"ai": {"transport": {"status": status}}} if status else {}
        body = Body(
            message_id=f"id-{self.serial}",
            history_serial=message,
            name="answer",
            data=msgspec.Raw(msgspec.json.encode(text)),
            data_bytes=len(text),
            extras=msgspec.Raw(msgspec.json.encode(extras)),
        )
        entity = f"{0:020d}:log:{message:020d}"
        self.delivery.deliver(
            [Entry(self.serial, self.serial, STREAM, self.serial, kind, entity, encode_body(body))]
        )

    async def pass_time(self, milliseconds: int) -> None:
        """Let time pass and the event loop turn."""
        self.loop.now += milliseconds / 1000
        for _ in range(TURNS):
            await asyncio.sleep(0)


def singles(sent: list[dict[str, Any]], *, is_full: bool) -> list[tuple[Any, ...]]:
    """What frames say, with what was rolled up taken apart; of whole texts only the last."""
    said: list[tuple[Any, ...]] = []
    for frame in sent:
        event: str = frame["event"]
        last: Any = frame.get("serial")
        text: Any = frame.get("data")
        lengths = frame.get("rolled", [])
        if not lengths:
            said.append((event, last, text))
        elif is_full:
            said += [(event, last - at, None) for at in range(len(lengths) - 1, 0, -1)]
            said.append((event, last, text))
        else:
            assert len(lengths) > 1
            assert sum(lengths) == len(text)
            for at, length in enumerate(lengths):
                said.append((event, last - len(lengths) + 1 + at, text[:length]))
                text = text[length:]
    return said


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 2), st.text(max_size=3)),
        st.tuples(st.just("append"), st.just(1), st.text(max_size=3)),
        st.tuples(st.just("end"), st.integers(1, 2), st.text(max_size=3)),
        st.tuples(st.just("update"), st.integers(1, 2), st.text(max_size=3)),
        st.tuples(st.sampled_from(["toggle", "hold", "own"]), st.integers(0, 1), st.just("")),
        st.tuples(st.sampled_from(["summary", "flush"]), st.just(0), st.just("")),
        st.tuples(st.just("time"), st.sampled_from([1, 10, 45, 600]), st.just("")),
    ),
    max_size=40,
)


def run(steps: list[tuple[str, int, str]], window: int, mode: str) -> World:
    """Do these things, then let time pass."""
    loop = Loop()
    try:
        world = World(loop, window, mode)
        loop.run_until_complete(_run(world, steps))
    finally:
        loop.close()
    return world


async def _run(world: World, steps: list[tuple[str, int, str]]) -> None:
    for message in (1, 2):
        world.say(CREATE, message, "")
        world.toggle(message - 1)
    for step, number, text in steps:
        match step:
            case "append":
                world.say(APPEND, number, text)
            case "end":
                world.say(APPEND, number, text, "complete")
            case "update":
                world.say(UPDATE, number, text)
            case "toggle":
                world.toggle(number)
            case "hold":
                await world.wait_or_release(number)
            case "own":
                for peer in world.peers[number]:
                    peer.own()
            case "summary":
                world.delivery.summary(STREAM, b"{}")
            case "flush":
                world.delivery.rolling.flush_all()
            case "time":
                await world.pass_time(number)
    await world.pass_time(600)
    for pair in (0, 1):
        for peer in world.peers[pair]:
            subscription = peer.subscriptions.get("room")
            if subscription is not None and subscription.held is not None:
                await world.delivery.release(subscription)


A, B, C = (("append", 1, text) for text in "abc")
REPLAY, LEAVE_OR_COME, OWN = (("hold", 0, ""), ("toggle", 0, ""), ("own", 0, ""))


@example([A, REPLAY, B, C, REPLAY, A], 40, "delta")  # what came during a replay comes once
@example([A, B, REPLAY, C, REPLAY, A], 40, "full")
@example([LEAVE_OR_COME, A, B, LEAVE_OR_COME, C], 40, "delta")  # nor what was before it came
@example([A, B, LEAVE_OR_COME, C], 40, "delta")
@example([A, B, OWN, C, ("time", 45, ""), A, B], 40, "delta")
@given(STEPS, st.sampled_from([20, 40, 100, 500]), st.sampled_from(["delta", "full"]))
def test_taken_apart_it_is_what_the_others_get(
    steps: list[tuple[str, int, str]], window: int, mode: str
) -> None:
    """Whoever comes, goes, replays or is told something else in between, and whenever."""
    world = run(steps, window, mode)
    is_full = mode == "full"
    for every, rolled in world.peers:
        assert not any("rolled" in frame for frame in every.sent)
        expected = singles(every.sent, is_full=is_full)
        found = singles(rolled.sent, is_full=is_full)
        if is_full:
            unsaid = {frame[1] for frame in found if frame[2] is None and frame[1] is not None}
            expected = [(e, s, None if s in unsaid else text) for e, s, text in expected]
        assert found == expected
        ids = {frame["serial"]: frame["message_id"] for frame in every.sent if "serial" in frame}
        for frame in rolled.sent:
            if "serial" in frame:
                assert ids[frame["serial"]] == frame["message_id"]
    assert not any(world.delivery.rolling._held.values())
    assert world.delivery.rolling._timer is None


def test_a_stream_becomes_a_frame_for_each_window() -> None:
    """The first token and the last leave at once; what is between them in few frames."""
    tokens = [step for _ in range(12) for step in (("append", 1, "token "), ("time", 20, ""))]
    world = run([*tokens, ("end", 1, ".")], 40, "delta")
    every, rolled = world.peers[0]
    assert len(every.sent) == 14
    lengths = [len(frame.get("rolled", "x")) for frame in rolled.sent[1:]]
    assert (lengths[0], sum(lengths)) == (1, 13)
    assert len(lengths) <= 7
    assert rolled.sent[-1]["data"].endswith(".")


def test_a_shorter_window_does_not_wait_for_a_longer_one() -> None:
    """One timer serves all of them."""
    loop = Loop()
    try:
        world = World(loop, 500, "delta")
        world.peers[1][0].rollup_window = 20
        loop.run_until_complete(_two_windows(world))
    finally:
        loop.close()


async def _two_windows(world: World) -> None:
    world.say(CREATE, 1, "")
    world.toggle(0)
    world.toggle(1)
    long, short = world.peers[0][1], world.peers[1][0]
    for text in "abc":
        world.say(APPEND, 1, text)
    assert [frame["data"] for frame in long.sent] == ["a"]
    await world.pass_time(26)
    assert [frame["data"] for frame in short.sent] == ["a", "bc"]
    assert [frame["data"] for frame in long.sent] == ["a"]
    await world.pass_time(480)
    assert long.sent == short.sent


def test_who_leaves_takes_the_window_along() -> None:
    """A channel that nobody wants rolled up any more costs nothing again."""
    loop = Loop()
    try:
        world = World(loop, 40, "delta")
        world.toggle(0)
        world.toggle(1)
        assert world.channel.rollups[40].subscribers == 2
        world.toggle(0)
        assert world.channel.rollups
        world.toggle(1)
        assert not world.channel.rollups
    finally:
        loop.close()
