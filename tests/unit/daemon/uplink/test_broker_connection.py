"""The connection to the broker, against a scripted one."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from support.mesh.scripted_broker import SLUG, ScriptedBroker
from tidelog.base.errors import StoreUnavailable
from tidelog.daemon.key_file import new_key
from tidelog.daemon.uplink.broker_address import dialled
from tidelog.daemon.uplink.broker_connection import BrokerConnection
from tidelog.daemon.uplink.interface import BrokerUnreachable
from tidelog.mesh.protocol import negotiation, wire
from tidelog.mesh.protocol.fingerprint import SendEnvelope, make_envelope
from tidelog.mesh.protocol.negotiation import NegotiationFailed, Parameters
from tidelog.mesh.protocol.policy import MaxAgeRefused


class Recorder:
    """What an uplink told the rest of the daemon."""

    def __init__(self) -> None:
        self.received: list[wire.Deliver] = []
        self.events: list[tuple[str, Any]] = []
        self.parameters: list[Parameters] = []
        self.is_storing = True

    def receive(self, frames: Sequence[wire.Deliver]) -> Sequence[wire.Deliver]:
        """Store, or say that it cannot be."""
        if not self.is_storing:
            return ()
        self.received += frames
        return frames

    async def key_of(self, name: str) -> str | None:
        """Nobody has a name."""
        del name
        return None

    async def members(self) -> dict[str, str]:
        """Nobody is listed here either."""
        return {}


def make_uplink(broker: ScriptedBroker, recorder: Recorder, **settings: Any) -> BrokerConnection:
    """An uplink that is not started."""
    return BrokerConnection(
        broker.url,
        SLUG,
        settings.pop("key", None) or new_key(),
        receive=recorder.receive,
        on_negotiated=settings.pop("on_negotiated", recorder.parameters.append),
        publish=lambda kind, data: recorder.events.append((kind, data)),
        key_of=recorder.key_of,
        members=recorder.members,
        signed_host=dialled(broker.url),
        request_timeout_ms=300,
        jitter=lambda: 0.1,
        **settings,
    )


@asynccontextmanager
async def connected(
    broker: ScriptedBroker, recorder: Recorder, **settings: Any
) -> AsyncIterator[BrokerConnection]:
    """A running uplink."""
    async with started(make_uplink(broker, recorder, **settings)) as uplink:
        yield uplink


@asynccontextmanager
async def started(uplink: BrokerConnection) -> AsyncIterator[BrokerConnection]:
    """It runs, and is connected."""
    running = asyncio.create_task(uplink.run())
    try:
        await until(lambda: uplink.connected)
        yield uplink
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def until(so: Callable[[], Any]) -> None:
    """Wait for something that nobody announces."""
    async with asyncio.timeout(5):
        for _ in iter(lambda: bool(so()), True):
            await asyncio.sleep(0.005)


def envelope(text: str = "x", ref: str = "tides", kind: str = "topic") -> SendEnvelope:
    """What is sent."""
    return make_envelope(destination_kind=kind, destination_ref=ref, body=text.encode())


async def send(uplink: BrokerConnection, message_id: str, what: SendEnvelope | None = None) -> Any:
    """One attempt."""
    what = what or envelope()
    return await uplink.send(message_id, what.fingerprint(), what.payload(), None)


async def test_it_proves_its_key_negotiates_and_sends() -> None:
    """The broker knows who it is, what was agreed is told, and a send is answered."""
    recorder = Recorder()
    async with ScriptedBroker() as broker, connected(broker, recorder) as uplink:
        assert recorder.parameters[0].dedupe_retention_days == 365
        assert uplink.broker_version == "scripted"
        answer = await send(uplink, "a")
        assert (answer.code, answer.history_id, answer.duplicate) == (201, 1, False)
        again = await send(uplink, "a")
        assert (again.code, again.duplicate) == (200, True)
        assert again.broker_message_id == answer.broker_message_id
        other = await send(uplink, "a", envelope("y"))
        assert (other.code, other.error) == (409, "409 idempotency_key_reused")


async def test_answers_find_their_questions() -> None:
    """Many sends at once each get their own answer."""
    recorder = Recorder()
    async with ScriptedBroker() as broker, connected(broker, recorder) as uplink:
        answers = await asyncio.gather(*(send(uplink, f"m{n}") for n in range(50)))
        assert len({answer.broker_message_id for answer in answers}) == 50


async def test_without_an_answer_an_attempt_ends_in_time() -> None:
    """The timeout is the attempt's end; the answer that comes later is dropped."""
    recorder = Recorder()
    async with ScriptedBroker() as broker, connected(broker, recorder) as uplink:
        broker.is_silent = True
        answer = await send(uplink, "a")
        assert answer.code is None
        assert "timeout" in answer.error
        await broker.speak_again()
        assert (await send(uplink, "b")).code == 201


async def test_a_lost_connection_ends_attempts_and_is_opened_again() -> None:
    """Whoever waits learns at once that no answer will come; then work goes on."""
    recorder = Recorder()
    async with ScriptedBroker() as broker, connected(broker, recorder) as uplink:
        broker.is_silent = True
        waiting = asyncio.create_task(send(uplink, "a"))
        await until(lambda: broker.sends["a"])
        broker.cut()
        assert (await waiting).code is None
        broker.is_silent = False
        await until(lambda: broker.connections == 2 and uplink.connected)
        assert (await send(uplink, "a")).duplicate
        assert [kind for kind, _ in recorder.events] == ["daemon_disconnect", "daemon_reconnect"]


async def test_an_unreachable_broker_is_tried_again() -> None:
    """A daemon that starts before its broker is connected when that comes."""
    recorder, broker = Recorder(), ScriptedBroker()
    await broker.start()
    await broker.stop()
    uplink = make_uplink(broker, recorder)
    running = asyncio.create_task(uplink.run())
    await until(lambda: uplink.trouble)
    assert (uplink.connected, uplink.is_away) == (False, True)
    assert "is the broker running?" in (uplink.trouble or "")
    assert (await send(uplink, "a")).error == "not connected"
    with pytest.raises(BrokerUnreachable):
        await uplink.subscribe("tides")
    await broker.start()
    await until(lambda: uplink.connected)
    assert (uplink.trouble, uplink.is_away) == (None, False)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await broker.stop()


@pytest.mark.parametrize(
    ("offer", "code", "kind"),
    [
        ({}, 4010, "feature_unavailable"),
        ({"mode": "sometimes"}, 4011, "feature_param_invalid"),
        ({"dedupe_retention_days": 6}, 4012, "feature_param_below_floor"),
    ],
)
async def test_a_failed_negotiation_says_why_and_ends_the_daemon(
    offer: dict[str, Any], code: int, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A frame with the reason, the right close code, a WARN with the payload, and an error."""
    recorder = Recorder()
    async with ScriptedBroker() as broker:
        if offer:
            broker.offer[negotiation.DEDUPE]["params"] |= offer
        else:
            broker.offer = {}
        with pytest.raises(NegotiationFailed, match=kind):
            await make_uplink(broker, recorder).run()
        await until(lambda: broker.closes)
        assert broker.closes == [code]
        assert broker.failures[0]["kind"] == kind
    assert recorder.events[0][0] == "feature_negotiation_failed"
    assert any(kind in record.message for record in caplog.records if record.levelname == "WARNING")


async def test_parameters_that_do_not_suit_the_settings_end_the_daemon() -> None:
    """An override above the window is refused before anything is sent."""

    def refuse(parameters: Parameters) -> None:
        raise MaxAgeRefused("outbox_max_age_above_dedupe_window", "too high")

    async with ScriptedBroker() as broker:
        with pytest.raises(MaxAgeRefused):
            await make_uplink(broker, Recorder(), on_negotiated=refuse).run()


async def test_deliveries_are_acknowledged_after_they_are_stored() -> None:
    """What could not be stored is not acknowledged, and comes again."""
    recorder, key = Recorder(), new_key()
    recorder.is_storing = False
    async with (
        ScriptedBroker() as broker,
        connected(broker, recorder, key=key),
        connected(broker, Recorder()) as sender,
    ):
        await send(sender, "a", envelope("hello", key.public_hex, "dm"))
        await asyncio.sleep(0.3)
        assert broker.acknowledged == []
        recorder.is_storing = True
        await until(lambda: broker.acknowledged)
        assert recorder.received[0].client_message_id == "a"
        assert recorder.received[0].body == "hello"


async def test_topics_and_history_are_asked_of_the_broker() -> None:
    """Subscribing, listing and reading back."""
    recorder = Recorder()
    async with ScriptedBroker() as broker, connected(broker, recorder) as uplink:
        assert (await uplink.subscribe("tides")).status == 200
        assert (await uplink.topics()).body == {"topics": [{"name": "tides", "subscribed": True}]}
        await send(uplink, "a")
        page = await uplink.history(0)
        assert (len(page.items), page.next_after, page.has_more) == (1, 1, False)
        assert (await uplink.unsubscribe("tides")).status == 200
        assert broker.topics["tides"] == set()


async def test_who_connects_is_told_and_noted() -> None:
    """Listeners hear of both; a name is noted with the key it has now, this member's own too."""
    recorder, key = Recorder(), new_key()
    heard: list[tuple[str, str]] = []
    async with ScriptedBroker() as broker:
        uplink = make_uplink(broker, recorder, key=key)
        uplink.on_heard = lambda name, key: heard.append((name, key))
        async with started(uplink):
            for other in ("a" * 64, "b" * 64):
                frame = {"type": "peer_join", "member_pubkey": other, "name": f"name-{other[0]}"}
                await broker.push(frame)
            await broker.push({"type": "peer_leave", "member_pubkey": "b" * 64, "name": "name-b"})
            await until(lambda: len(recorder.events) == 3)
            kinds = [kind for kind, _ in recorder.events]
    assert kinds == ["peer_join", "peer_join", "peer_leave"]
    assert heard[0][1] == key.public_hex
    assert heard[1:] == [("name-a", "a" * 64), ("name-b", "b" * 64)]


async def test_the_history_is_told_before_anything_is_sent() -> None:
    """The hello names the one known before; answers name the one they are about."""
    recorder = Recorder()
    async with ScriptedBroker() as broker:
        broker.history = ("h2", 17)
        uplink = make_uplink(broker, recorder)
        uplink.known_incarnation = "h1"
        told: list[tuple[str, int, bool]] = []
        uplink.on_history = lambda name, began: told.append((name, began, uplink.connected))
        async with started(uplink):
            assert told == [("h2", 17, False)]
            assert broker.hellos[-1]["incarnation"] == "h1"
            assert (await send(uplink, "a")).incarnation == "h2"
            broker.history = None
            broker.cut()
            await until(lambda: broker.connections == 2 and uplink.connected)
            assert broker.hellos[-1]["incarnation"] == "h2"
            assert len(told) == 1, "an older broker says nothing of it"
            assert (await send(uplink, "b")).incarnation is None


async def test_what_cannot_be_stored_of_the_history_ends_the_connection() -> None:
    """It would be forgotten that rows may be lost; the next connection tells it again."""
    recorder = Recorder()
    async with ScriptedBroker() as broker:
        broker.history = ("h2", 17)
        uplink = make_uplink(broker, recorder)
        full = [StoreUnavailable("no room")]

        def store(name: str, began: int) -> None:
            del name, began
            if full:
                raise full.pop()

        uplink.on_history = store
        async with started(uplink):
            assert broker.connections == 2


async def test_frames_nobody_understands_are_survived() -> None:
    """A newer broker's frames are ignored, broken ones are counted."""
    recorder = Recorder()
    async with ScriptedBroker() as broker, connected(broker, recorder) as uplink:
        invalid: list[None] = []
        uplink.on_invalid = lambda: invalid.append(None)
        await broker.push({"type": "from_the_future"})
        await broker.push({"type": "deliver", "body": 7})
        await until(lambda: len(invalid) == 1)
        assert (await send(uplink, "a")).code == 201


async def test_a_refused_signature_is_logged_with_a_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The daemon goes on; its log says what to do."""
    async with ScriptedBroker("another") as broker:
        uplink = make_uplink(broker, Recorder())
        running = asyncio.create_task(uplink.run())
        await until(lambda: broker.closes)
        await until(lambda: caplog.records)
        assert "check that the slug and the clock are right" in (uplink.trouble or "")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert "4401" in caplog.text
