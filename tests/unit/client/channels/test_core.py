"""The client's protocol by hand: what it says to each thing a server may say."""

import json
from typing import Any

import pytest

from tidelog.base.errors import TidelogError
from tidelog.client.channels.core import (
    MAX_OUTBOX,
    RESUME_CHANNELS,
    Authorization,
    Authorize,
    ChannelCore,
    ChannelOffline,
    EventRefused,
    Reconnect,
    RenewToken,
    Send,
    Subscription,
    SubscriptionRefused,
)
from tidelog.client.channels.message import BadFrame, Position, Reset

STREAM = "s-1"


class Caller:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.openings = 0
        self.resets: list[Reset] = []
        self.error: TidelogError | None = None
        self.news = 0

    def opened(self) -> None:
        """See `Listener`."""
        self.openings += 1

    def changed(self) -> None:
        """See `Listener`."""
        self.news += 1

    def was_reset(self, reset: Reset) -> None:
        """See `Listener`."""
        self.resets.append(reset)

    def failed(self, error: TidelogError) -> None:
        """See `Listener`."""
        self.error = error


class Server:
    """The other end: says frames and reads what the core sends."""

    def __init__(self, core: ChannelCore) -> None:
        self.core = core
        self.serials: dict[str, int] = {}

    def say(self, event: str, channel: str | None = None, data: Any = None, **fields: Any) -> None:
        """A frame; `data` of system events in a string, as most of them have it."""
        frame = {"event": event, "message_id": "x", **fields}
        if channel is not None:
            frame["channel"] = channel
        if data is not None:
            frame["data"] = json.dumps(data)
        self.core.receive(json.dumps(frame))

    def connect(self, socket_id: str = "1.1") -> None:
        """A new connection."""
        data = {"socket_id": socket_id, "activity_timeout": 120}
        self.say("sockudo:connection_established", data=data)

    def accept(
        self,
        channel: str = "room",
        serial: int | None = 0,
        stream_id: str = STREAM,
        **data: Any,
    ) -> None:
        """A subscription succeeds."""
        place = {} if serial is None else {"stream_id": stream_id, "serial": serial}
        self.say("sockudo_internal:subscription_succeeded", channel, data, **place)

    def publish(
        self, serial: int, data: str = "hi", channel: str = "room", stream_id: str = STREAM
    ) -> None:
        """A message of its own."""
        headers = {
            "sockudo_action": "message.create",
            "sockudo_message_serial": f"m{serial}",
            "sockudo_history_serial": serial,
        }
        frame = {"event": "chat", "channel": channel, "serial": serial, "stream_id": stream_id}
        frame |= {"data": data, "message_id": f"id-{serial}", "extras": {"headers": headers}}
        self.core.receive(json.dumps(frame))

    def resumed(self, *recovered: str, failed: dict[str, str] | None = None) -> None:
        """The end of a resume."""
        failures = [
            {"channel": name, "code": code, "reason": "r"} for name, code in (failed or {}).items()
        ]
        found = [{"channel": name, "source": "hot", "replayed": 0} for name in recovered]
        self.say("sockudo:resume_success", data={"recovered": found, "failed": failures})

    def heard(self) -> list[tuple[str, Any]]:
        """Event and data of what the core sends; other actions as they are."""
        said: list[tuple[str, Any]] = []
        for action in self.core.actions():
            if isinstance(action, Send):
                frame = json.loads(action.frame)
                said.append((frame["event"].removeprefix("sockudo:"), frame.get("data")))
            else:
                said.append((type(action).__name__, action))
        return said


def started(
    channel: str = "room", rewind: int | None = None
) -> tuple[ChannelCore, Server, Caller, Subscription]:
    """A live subscription at serial 0."""
    core, caller = ChannelCore(), Caller()
    server = Server(core)
    subscription = core.subscribe(channel, caller, rewind=rewind, limit=100)
    server.connect()
    server.heard()
    server.accept(channel)
    if rewind is not None:
        server.say("sockudo:rewind_complete", channel, {"historical_count": 0})
    assert caller.openings == 1
    return core, server, caller, subscription


def texts(subscription: Subscription) -> list[Any]:
    """The data of everything kept."""
    return [message.data for message in subscription.view.messages]


def test_a_lost_connection_resumes_then_subscribes() -> None:
    """With the position it had; what is replayed is not shown twice."""
    core, server, caller, room = started(rewind=5)
    server.publish(1, "a")
    server.publish(2, "b")
    core.disconnected()
    assert not core.actions()
    server.connect("2.2")
    position = {"stream_id": STREAM, "serial": 2, "last_message_id": "id-2"}
    assert server.heard() == [("resume", {"channel_positions": {"room": position}})]
    server.publish(3, "c")
    server.resumed("room")
    assert server.heard() == [("subscribe", {"channel": "room"})], "no rewind: it goes on"
    server.accept(serial=3)
    server.publish(3, "c")
    server.publish(4, "d")
    assert texts(room) == ["a", "b", "c", "d"]
    assert not caller.resets
    assert not core.is_waiting


def test_a_good_position_goes_on_under_another_stream_id() -> None:
    """The log was restored after the position: the server says so by resuming it."""
    core, server, caller, room = started(rewind=5)
    server.publish(1, "a")
    core.disconnected()
    server.connect("2.2")
    server.publish(2, "b", stream_id="s-2")
    server.resumed("room")
    server.accept(serial=2, stream_id="s-2")
    server.publish(3, "c", stream_id="s-2")
    core.disconnected()
    server.connect("3.3")
    position = {"stream_id": "s-2", "serial": 3, "last_message_id": "id-3"}
    assert server.heard()[-1] == ("resume", {"channel_positions": {"room": position}})
    server.resumed("room")
    server.accept(serial=3, stream_id="s-3")  # nothing was missed, so only this says it
    server.publish(4, "d", stream_id="s-3")
    assert texts(room) == ["a", "b", "c", "d"]
    assert not caller.resets


@pytest.mark.parametrize("code", ["stream_reset", "position_expired", "persistence_unavailable"])
def test_a_failed_resume_is_a_reset_and_a_rewind(code: str) -> None:
    """Nothing that was known is kept."""
    core, server, caller, room = started(rewind=5)
    server.publish(1, "a")
    core.disconnected()
    server.connect()
    server.heard()
    server.say("sockudo:resume_failed", "room", {"channel": "room", "code": code})
    server.resumed(failed={"room": code})
    assert server.heard() == [("subscribe", {"channel": "room", "rewind": 5})]
    assert caller.resets == [Reset("room", code, "r")]
    assert texts(room) == []
    server.accept(serial=9)
    server.publish(9, "now")
    server.say("sockudo:rewind_complete", "room", {"historical_count": 1})
    assert texts(room) == ["now"]
    assert caller.openings == 2


def test_a_resume_that_fails_after_the_subscribe_is_a_reset() -> None:
    """A private channel is replayed after its subscribe, and can be lost even then."""
    core, server, caller, room = started(rewind=5)
    server.publish(1, "a")
    core.disconnected()
    server.connect()
    server.resumed("room")
    server.accept(serial=1)
    server.publish(2, "b")
    server.heard()
    failed = {"channel": "room", "code": "position_expired", "reason": "r"}
    server.say("sockudo:resume_failed", "room", failed)
    assert server.heard() == [
        ("unsubscribe", {"channel": "room"}),
        ("subscribe", {"channel": "room", "rewind": 5}),
    ]
    assert caller.resets == [Reset("room", "position_expired", "r")]
    assert texts(room) == []


def test_a_gap_is_resumed_over_the_same_connection() -> None:
    """What comes before the missing part is left for the replay; a second time it is a reset."""
    _, server, caller, room = started(rewind=5)
    server.publish(1, "a")
    server.publish(3, "c")
    [(said, data)] = server.heard()
    assert said == "resume"
    assert data["channel_positions"]["room"]["serial"] == 1
    server.publish(4, "d")
    assert server.heard() == []
    for serial, text in ((2, "b"), (3, "c"), (4, "d")):
        server.publish(serial, text)
    server.resumed("room")
    server.publish(5, "e")
    assert texts(room) == ["a", "b", "c", "d", "e"]
    server.publish(7)
    server.resumed("room")
    server.publish(7)
    assert [said for said, _ in server.heard()] == ["resume", "unsubscribe", "subscribe"]
    assert [reset.reason for reset in caller.resets] == ["gap_in_delivery"]


def test_another_stream_is_a_reset() -> None:
    """In a frame, or in the answer to a subscribe at another place than the resumed one."""
    core, server, caller, _ = started()
    server.publish(1, stream_id="s-2")
    assert server.heard() == [
        ("unsubscribe", {"channel": "room"}),
        ("subscribe", {"channel": "room"}),
    ]
    server.publish(2)
    server.accept(serial=1)
    core.disconnected()
    server.connect()
    server.resumed("room")
    server.heard()
    server.say("sockudo_internal:subscription_succeeded", "room", {}, stream_id="s-2", serial=2)
    assert [said for said, _ in server.heard()] == ["unsubscribe", "subscribe"]
    assert [reset.code for reset in caller.resets] == ["stream_reset"] * 2


def test_a_subscription_behind_the_server_is_resumed() -> None:
    """The answer to the subscribe says that something lies between."""
    core, server, _, room = started()
    core.disconnected()
    server.connect()
    server.resumed("room")
    server.heard()
    server.accept(serial=2)
    assert [said for said, _ in server.heard()] == ["resume"]
    assert core.is_waiting
    server.publish(1, "a")
    server.publish(2, "b")
    server.resumed("room")
    assert texts(room) == ["a", "b"]
    assert not core.is_waiting


def test_a_server_that_does_not_resume_means_a_reset_each_time() -> None:
    """Without a place there is nothing that a later message could connect to."""
    core, caller = ChannelCore(), Caller()
    server = Server(core)
    core.subscribe("room", caller, rewind=None, limit=10)
    server.connect()
    server.accept(serial=None)
    core.disconnected()
    server.connect()
    assert [said for said, _ in server.heard()] == ["subscribe"]
    assert [reset.reason for reset in caller.resets] == ["no_position"]
    server.accept(serial=None)
    core.disconnected()
    server.connect()
    assert len(caller.resets) == 2


def test_a_resume_that_is_refused_is_a_reset() -> None:
    """The server was set not to resume since."""
    core, server, caller, _ = started()
    core.disconnected()
    server.connect()
    server.heard()
    server.say("sockudo:error", data={"code": 4301, "message": "not enabled"})
    assert server.heard() == [("subscribe", {"channel": "room"})]
    assert caller.resets[0].reason == "resume_refused"
    assert core.last_error == "4301: not enabled"


def test_many_positions_are_resumed_in_parts() -> None:
    """A server takes 64 KiB in one frame."""
    core, server = ChannelCore(), Server(ChannelCore())
    server.core = core
    names = [f"{'x' * 190}-{number}" for number in range(RESUME_CHANNELS + 1)]
    for name in names:
        core.subscribe(name, Caller(), rewind=None, limit=10)
    server.connect()
    for name in names:
        server.accept(name)
        server.publish(1, channel=name)
    core.disconnected()
    server.connect()
    sent = [action for action in core.actions() if isinstance(action, Send)]
    assert len(sent) == 2
    assert max(len(action.frame) for action in sent) < 65_536


def test_private_channels_are_authorized_for_each_socket() -> None:
    """An answer for another socket is of no use; a refusal ends it, later on it reconnects."""
    core, caller = ChannelCore(), Caller()
    server = Server(core)
    core.subscribe("private-room", caller, rewind=None, limit=10)
    server.connect("1.1")
    first = Authorize("private-room", "1.1")
    assert server.heard() == [("Authorize", first)]
    core.disconnected()
    server.connect("2.2")
    second = Authorize("private-room", "2.2")
    assert server.heard() == [("Authorize", second)]
    core.authorized(first, Authorization("k:old"))
    core.denied(first, OSError("late"))
    assert server.heard() == []
    core.authorized(second, Authorization("k:sig", "{}"))
    data = {"channel": "private-room", "auth": "k:sig", "channel_data": "{}"}
    assert server.heard() == [("subscribe", data)]
    server.accept("private-room")
    core.disconnected()
    server.connect("3.3")
    server.resumed("private-room")
    server.heard()
    core.denied(Authorize("private-room", "3.3"), OSError("down"))
    [(said, action)] = server.heard()
    assert said == "Reconnect"
    assert isinstance(action, Reconnect)
    assert caller.error is None

    other = Caller()
    core.subscribe("private-other", other, rewind=None, limit=10)
    core.denied(Authorize("private-other", "3.3"), PermissionError("no"))
    assert isinstance(other.error, SubscriptionRefused)


def test_a_refused_subscription_ends() -> None:
    """And the channel can be subscribed to again."""
    core, server, caller, _ = started()
    with pytest.raises(ValueError, match="already"):
        core.subscribe("room", Caller(), rewind=None, limit=10)
    core.disconnected()
    server.connect()
    server.resumed(failed={"room": "stream_reset"})
    server.say("sockudo:subscription_error", "room", {"error": "no longer", "status": 401})
    assert isinstance(caller.error, SubscriptionRefused)
    core.subscribe("room", Caller(), rewind=None, limit=10)


def test_only_the_last_subscribe_is_listened_to() -> None:
    """One that was given up while its answer was under way does not begin the next."""
    core, first, second = ChannelCore(), Caller(), Caller()
    server = Server(core)
    server.connect()
    given_up = core.subscribe("room", first, rewind=None, limit=10)
    core.unsubscribe(given_up)
    core.unsubscribe(given_up)
    room = core.subscribe("room", second, rewind=2, limit=10)
    assert [said for said, _ in server.heard()] == ["subscribe", "unsubscribe", "subscribe"]
    server.accept(serial=4)
    server.publish(5)
    server.accept(serial=5)
    server.publish(5, "rewound")
    server.say("sockudo:rewind_complete", "room", {"historical_count": 1})
    assert (first.openings, second.openings) == (0, 1)
    assert texts(room) == ["rewound"]


def test_the_last_event_of_a_cache_channel_is_given() -> None:
    """It is from before the position; it is given once, and not kept."""
    core, caller = ChannelCore(), Caller()
    server = Server(core)
    room = core.subscribe("cache-room", caller, rewind=None, limit=100)
    server.connect()
    server.accept("cache-room", serial=4)
    server.publish(4, "last", channel="cache-room")
    server.publish(4, "last", channel="cache-room")
    server.publish(5, "new", channel="cache-room")
    given = [message.data for message in iter(room.view.take, None)]
    assert given == ["last", "new"]
    assert texts(room) == ["new"]
    core.disconnected()
    server.connect("2.2")
    server.resumed("cache-room")
    server.accept("cache-room", serial=5)
    server.publish(5, "new", channel="cache-room")
    assert room.view.take() is None
    assert not caller.resets


def test_the_last_event_of_a_cache_channel_is_no_state_of_a_rewind() -> None:
    """It comes before them, and is given only if they do not have it."""
    for reaches in (True, False):
        core, caller = ChannelCore(), Caller()
        server = Server(core)
        room = core.subscribe("cache-room", caller, rewind=1, limit=100)
        server.connect()
        server.accept("cache-room", serial=4)
        server.publish(3, "last", channel="cache-room")
        server.publish(3 if reaches else 4, "state", channel="cache-room")
        server.say("sockudo:rewind_complete", "cache-room", {"historical_count": 1})
        given = [message.data for message in iter(room.view.take, None)]
        assert given == (["state"] if reaches else ["state", "last"])
        assert texts(room) == ["state"]
        assert room.view.position is not None
        assert room.view.position.serial == 4


def test_presence_is_kept() -> None:
    """From the snapshot on."""
    core, server, _, room = started("presence-room")
    core.disconnected()
    server.connect()
    server.resumed("presence-room")
    core.authorized(Authorize("presence-room", "1.1"), Authorization("k:s", "{}"))
    presence = {"ids": ["ana"], "hash": {"ana": {"n": 1}}, "count": 1}
    server.accept("presence-room", presence=presence)
    assert room.members == {"ana": {"n": 1}}
    member: dict[str, Any] = {"user_id": "bo", "user_info": None}
    server.say("sockudo_internal:member_added", "presence-room", member)
    member = {"user_id": "ana", "user_info": {"n": 2}}
    server.say("sockudo_internal:presence_update", "presence-room", member)
    assert room.members == {"ana": {"n": 2}, "bo": None}
    server.say("sockudo_internal:member_removed", "presence-room", {"user_id": "ana"})
    assert room.members == {"bo": None}


def append(server: Server, serial: int, text: str, **fields: Any) -> None:
    """What was added to the first message, in one frame."""
    headers = {
        "sockudo_action": "message.append",
        "sockudo_message_serial": "m1",
        "sockudo_history_serial": 1,
    }
    frame = {"event": "sockudo:message.append", "channel": "room", "serial": serial, "data": text}
    frame |= {"stream_id": STREAM, "message_id": f"id-{serial}", "extras": {"headers": headers}}
    server.core.receive(json.dumps({**frame, **fields}))


def test_appends_that_come_together_are_no_gap_and_are_added_once() -> None:
    """What of them is known already is left out, and what is missing before them asked for."""
    _, server, _, room = started()
    server.publish(1, "a")
    append(server, 3, "b\N{WATER WAVE}c", rolled=[1, 2])
    assert texts(room) == ["ab\N{WATER WAVE}c"]
    assert room.view.position == Position(STREAM, 3, "id-3")
    append(server, 5, "\N{WATER WAVE}cde", rolled=[2, 1, 1])
    assert texts(room) == ["ab\N{WATER WAVE}cde"], "its first was known"
    append(server, 5, "\N{WATER WAVE}cde", rolled=[2, 1, 1])
    assert server.heard() == []
    append(server, 8, "gh", rolled=[1, 1])
    [(said, data)] = server.heard()
    assert (said, data["channel_positions"]["room"]["serial"]) == ("resume", 5)
    for serial, text in ((6, "f"), (7, "g"), (8, "h")):
        append(server, serial, text)
    server.resumed("room")
    assert texts(room) == ["ab\N{WATER WAVE}cdefgh"]
    assert server.heard() == []


def test_appends_that_come_together_and_the_beginning_that_is_read() -> None:
    """A state from between them has the first of them, so these are not added again."""
    _, server, _, room = started()
    append(server, 3, "cd", rolled=[1, 1, 0])
    assert [said for said, _ in server.heard()] == ["channel_history"]
    append(server, 6, "efg", rolled=[1, 1, 1])
    headers = {"sockudo_action": "message.append", "sockudo_message_serial": "m1"}
    headers |= {"sockudo_history_serial": 1}  # type: ignore[dict-item]
    state = {"event": "sockudo:message.append", "serial": 4, "data": "abcde"}
    items = [{"message": {**state, "extras": {"headers": headers}}}]
    server.say("sockudo:channel_history", "room", {"items": items})
    assert texts(room) == ["abcdefg"]


def test_whole_texts_that_come_together() -> None:
    """In full mode the text is that after the last of them."""
    core = ChannelCore("full", 40)
    server = Server(core)
    room = core.subscribe("room", Caller(), rewind=None, limit=100)
    server.connect()
    server.accept()
    server.publish(1, "a")
    append(server, 3, "abc", rolled=[1, 1])
    assert texts(room) == ["abc"]
    append(server, 6, "abcdef", rolled=[1, 1])
    assert [said for said, _ in server.heard()] == ["subscribe", "resume"]
    assert texts(room) == ["abc"]


@pytest.mark.parametrize("rolled", [[1], [2, 2], [-1, 4], [1.5, 1.5], [], "abc", [0, 1, 1, 1, 0]])
def test_appends_that_do_not_add_up_end_the_connection(rolled: Any) -> None:
    """More or less than was said, or more operations than there were."""
    _, server, _, _ = started()
    server.publish(1)
    with pytest.raises(BadFrame):
        append(server, 4, "abc", rolled=rolled)


def test_the_beginning_of_a_message_is_read_once_at_a_time() -> None:
    """Also after an error, which does not say what it answers; again over a new connection."""
    core, server, _, room = started()

    def append(serial: int, of: int) -> None:
        headers = {
            "sockudo_action": "message.append",
            "sockudo_message_serial": f"m{of}",
            "sockudo_history_serial": of,
        }
        server.say(
            "sockudo:message.append",
            "room",
            "+",
            serial=serial,
            stream_id=STREAM,
            extras={"headers": headers},
        )

    append(1, 7)
    append(2, 8)
    asked = {"channel": "room", "limit": 1, "start_serial": 7, "end_serial": 7}
    assert server.heard() == [("channel_history", asked)]
    server.say("sockudo:channel_history", "room", {"items": []})
    [(_, data)] = server.heard()
    assert data["start_serial"] == 8
    append(3, 9)
    assert server.heard() == []
    server.say("sockudo:error", data={"code": 4009, "message": "no history"})
    append(4, 9)
    [(_, data)] = server.heard()
    assert data["start_serial"] == 9
    core.disconnected()
    server.connect()
    server.resumed("room")
    server.heard()
    server.accept(serial=4)
    [(_, data)] = server.heard()
    assert data["start_serial"] == 9
    assert all(message.is_partial for message in room.view.messages)


def test_client_events_are_sent_or_refused() -> None:
    """Not while there is no subscription, and not without end."""
    core, server, _, room = started()
    for _ in range(MAX_OUTBOX):
        core.trigger(room, "client-typing", {"on": True})
    with pytest.raises(ChannelOffline, match="too many"):
        core.trigger(room, "client-typing", {})
    assert server.heard()[0] == ("client-typing", {"on": True})
    core.disconnected()
    with pytest.raises(ChannelOffline, match="not sent"):
        core.trigger(room, "client-typing", {})


def test_a_token_is_renewed_when_it_expires_only() -> None:
    """A revoked one is not asked for again."""
    core, server, _, _ = started()
    server.say("sockudo:token_expired", data={"code": 40160, "reason": "revoked"})
    assert server.heard() == []
    server.say("sockudo:token_expired", data={"code": 40142, "reason": "expired"})
    assert [type(action) for action in core.actions()] == [RenewToken]
    core.renew("new")
    assert server.heard() == [("auth", {"token": "new"})]
    core.disconnected()
    core.renew("late")
    assert server.heard() == []


def test_what_concerns_nobody_is_ignored() -> None:
    """Channels given up, and events without a meaning here."""
    core, server, caller, room = started()
    server.publish(1, channel="elsewhere")
    server.say("sockudo:pong")
    server.say("sockudo:message.summary", "room", {"action": "message.summary"})
    server.say("sockudo:cache_miss", "room", {})
    server.say("sockudo:rewind_complete", "room", {"historical_count": 3})
    server.resumed("elsewhere", failed={"other": "stream_reset"})
    assert texts(room) == []
    assert caller.news == 0
    core.end(ChannelOffline("over"))
    assert isinstance(caller.error, ChannelOffline)
    server.publish(1)


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        "{}",
        '{"event":"sockudo:connection_established","data":"{}"}',
        '{"event":"sockudo:resume_success","data":"[]"}',
        '{"event":"sockudo:rewind_complete","channel":"room"}',
        (
            '{"event":"sockudo_internal:subscription_succeeded","channel":"new","serial":0,'
            '"stream_id":"s","data":{"presence":{"hash":"ana"}}}'
        ),
        '{"event":"sockudo:error","data":' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
)
def test_nonsense_ends_the_connection(text: str) -> None:
    """By an error of its own; any other would end the client, and nobody would be told."""
    core, _, _, _ = started()
    core.subscribe("new", Caller(), rewind=None, limit=1)
    with pytest.raises(BadFrame):
        core.receive(text)


# Publishing.


class Outcome:
    """What became of an event."""

    def __init__(self) -> None:
        self.settled: list[TidelogError | None] = []

    def __call__(self, error: TidelogError | None) -> None:
        """See `Publishing.settled`."""
        self.settled.append(error)


def published(core: ChannelCore, number: int = 1, channel: str = "room") -> Outcome:
    """An event on its way."""
    outcome = Outcome()
    core.publish(channel, "ai-input", f"hi {number}", None, f"m{number}", outcome)
    return outcome


def test_an_event_is_confirmed_by_the_pong_that_follows_it() -> None:
    """Each by its own, in order; one that is refused by its error."""
    core, server, _, _ = started()
    first, second, third = (published(core, number) for number in (1, 2, 3))
    assert server.heard() == [
        *(("ai-input", "hi 1"), ("ping", None), ("ai-input", "hi 2"), ("ping", None)),
        *(("ai-input", "hi 3"), ("ping", None)),
    ]
    assert core.is_waiting
    server.say("sockudo:pong")
    refusal = {"code": 4301, "message": "no", "reason": "ai_event_not_permitted"}
    server.say("sockudo:error", "room", {**refusal, "ai_code": 104003, "message_id": "m2"})
    assert (first.settled, third.settled) == ([None], [])
    [error] = second.settled
    assert isinstance(error, EventRefused)
    assert (error.code, error.error, error.ai_code) == ("ai_event_not_permitted", "no", 104003)
    for _ in range(3):
        server.say("sockudo:pong")
    assert (third.settled, len(second.settled)) == ([None], 1)
    assert not core.is_waiting


def test_an_event_is_sent_again_until_it_is_confirmed() -> None:
    """Over the next connection, after the subscription that may be what allows it."""
    core, server, _, _ = started()
    first, other = published(core), published(core, 2, channel="elsewhere")
    server.heard()
    core.disconnected()
    assert (first.settled, other.settled) == ([], [])
    server.connect("2.2")
    said = server.heard()
    assert [event for event, _ in said] == ["resume", "ai-input", "ping"]
    assert said[1] == ("ai-input", "hi 2"), "nothing is subscribed to there"
    server.resumed("room")
    assert [event for event, _ in server.heard()] == ["subscribe"]
    server.accept()
    assert server.heard() == [("ai-input", "hi 1"), ("ping", None)]
    server.say("sockudo:pong")
    server.say("sockudo:pong")
    assert (first.settled, other.settled) == ([None], [None])


def test_an_event_that_cannot_be_published() -> None:
    """It is the largest that a server closes for; all of them when there is no connection again."""
    core, *_ = started()
    small, large = published(core), Outcome()
    core.publish("room", "ai-input", "x" * 1000, {"a": 1}, "large", large)
    core.was_too_large()
    [error] = large.settled
    assert isinstance(error, EventRefused)
    assert (error.code, small.settled) == ("payload_too_large", [])
    with pytest.raises(ValueError, match="m1"):
        published(core)
    core.end(ChannelOffline("over"))
    assert [str(each) for each in small.settled] == ["over"]
    core = ChannelCore()
    for number in range(MAX_OUTBOX):
        published(core, number)
    with pytest.raises(ChannelOffline):
        published(core, MAX_OUTBOX)
    core.give_up("m0")
    published(core, MAX_OUTBOX)
    core.was_too_large()  # nothing was sent


def test_a_refused_event_is_no_failed_resume() -> None:
    """Errors that say what they are about end nothing else."""
    core, server, caller, subscription = started()
    core.disconnected()
    server.connect("2.2")
    server.heard()
    server.say("sockudo:error", "room", {"code": 4301, "message": "no", "reason": "x"})
    assert (caller.resets, caller.error) == ([], None)
    server.resumed("room")
    server.accept()
    assert subscription.view.position is not None
