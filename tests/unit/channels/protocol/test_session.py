"""The server's end of one channels connection, without sockets and with the test's clock."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.channels.protocol.actions import (
    Action,
    ClientEvent,
    Close,
    Member,
    Ping,
    Position,
    PresenceUpdate,
    PublishEvent,
    ReadHistory,
    Resume,
    Rewind,
    Send,
    SignedIn,
    Subscribe,
    TokenAccepted,
    Unsubscribe,
)
from tidelog.channels.protocol.capabilities import Actor
from tidelog.channels.protocol.frames import Frames
from tidelog.channels.protocol.message_ids import MessageIds
from tidelog.channels.protocol.query import HistoryQuery
from tidelog.channels.protocol.session import MAX_HISTORY_READS, MESSAGES, Session, refusal
from tidelog.channels.protocol.signatures import sign
from tidelog.channels.protocol.tokens import verify
from tidelog.channels.protocol.wire import V1, V2, ProtocolVersion
from tidelog.channels.settings import App, Channels, ConnectionRecovery, History

APP = App(
    id="a", key="k", secret="s3cret", enable_client_messages=True, enable_user_authentication=True
)
PLAIN = App(id="a", key="k", secret="s3cret")
UNIX = 1_760_000_000.0
SOCKET = "8123.44"
VERSIONS: tuple[ProtocolVersion, ...] = (V1, V2)


def token(granted: dict[str, list[str]], lifetime: int = 100, client: str = "ana") -> str:
    """A token of the application."""
    claims = {
        "iat": int(UNIX),
        "exp": int(UNIX) + lifetime,
        "jti": "t",
        "x-sockudo-client-id": client,
        "x-sockudo-capability": granted,
    }
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
        for part in ({"alg": "HS256", "kid": APP.key}, claims)
    ]
    signature = bytes.fromhex(sign(APP.secret, ".".join(parts)))
    return ".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=").decode()])


FRAMES = Frames(MessageIds(bytes))
"""With the same id in each: what sessions say is looked at, not under which id."""


class Peer:
    """A session and the clocks it is shown."""

    def __init__(
        self,
        version: ProtocolVersion = V2,
        app: App = APP,
        granted: dict[str, list[str]] | None = None,
        **settings: Any,
    ) -> None:
        self.now, self.unix = 50.0, UNIX
        claims = None if granted is None else verify(app, token(granted), UNIX)
        self.session = Session(
            app,
            Channels(**settings),
            FRAMES,
            socket_id=SOCKET,
            version=version,
            token=claims,
            now=self.now,
        )

    def frame(self, payload: bytes, *, is_text: bool = True) -> list[Action]:
        """A frame comes."""
        return self.session.receive(payload, is_text=is_text, now=self.now, unix_now=self.unix)

    def send(self, event: str, data: Any = None, **fields: Any) -> list[Action]:
        """A message comes."""
        return self.frame(json.dumps({"event": event, "data": data, **fields}).encode())

    def subscribe(self, channel: str, channel_data: str | None = None, **data: Any) -> list[Action]:
        """A rightly signed subscribe, unless `auth` is given."""
        signed = f"{SOCKET}:{channel}" + ("" if channel_data is None else f":{channel_data}")
        whole = {"channel": channel, "auth": f"k:{sign(APP.secret, signed)}", **data}
        if channel_data is not None:
            whole["channel_data"] = channel_data
        return self.send("pusher:subscribe", whole)

    def join(self, channel: str, channel_data: str | None = None) -> Subscribe:
        """Subscribe, and have it done by the service."""
        [action] = self.subscribe(channel, channel_data)
        assert isinstance(action, Subscribe)
        self.session.joined(action.channel, action.member)
        return action

    def sign_in(self, user: Any, **data: Any) -> list[Action]:
        """A rightly signed sign-in, unless `auth` is given."""
        text = user if isinstance(user, str) else json.dumps(user)
        auth = f"k:{sign(APP.secret, f'{SOCKET}::user::{text}')}"
        return self.send("pusher:signin", {"auth": auth, "user_data": text, **data})

    def due(self, heard_at: float | None = None) -> list[Action]:
        """The timer fires."""
        return self.session.due(self.now, self.unix, heard_at)


def sent(action: Action) -> dict[str, Any]:
    """A frame that is sent."""
    assert isinstance(action, Send)
    message: dict[str, Any] = json.loads(action.frame)
    return message


def error(actions: list[Action]) -> int:
    """Code of the one error frame; the connection stays open."""
    [action] = actions
    message = sent(action)
    assert message["event"].endswith(":error")
    assert APP.secret not in message["data"]["message"]
    code: int = message["data"]["code"]
    return code


def failed(actions: list[Action]) -> int:
    """Code of a failed subscribe: an error frame, then `subscription_error`."""
    first, second = actions
    code, message = error([first]), sent(second)
    assert message["event"].endswith(":subscription_error")
    is_auth = code == 4009
    assert message["data"]["type"] == ("AuthError" if is_auth else "ChannelError")
    assert message["data"]["status"] == (401 if is_auth else 400)
    return code


def closing(actions: list[Action]) -> int:
    """Code of an error frame and the close that follows it."""
    first, second = actions
    assert isinstance(second, Close)
    assert error([first]) == second.code
    return second.code


# Connection.


def test_opening() -> None:
    """The first frame names the socket and a timeout that is never zero."""
    [action] = Peer(V1).session.opening()
    assert sent(action) == {
        "event": "pusher:connection_established",
        "data": '{"socket_id":"8123.44","activity_timeout":120}',
    }
    [action] = Peer(V2, activity_timeout_seconds=0.2).session.opening()
    assert json.loads(sent(action)["data"])["activity_timeout"] == 1


@pytest.mark.parametrize("prefix", ["pusher", "sockudo"])
def test_ping_is_answered_in_the_protocol_of_the_socket(prefix: str) -> None:
    """Either prefix is understood; the answer has the socket's own and no message id."""
    assert Peer(V1).send(f"{prefix}:ping") == [Send(b'{"event":"pusher:pong"}')]
    assert Peer(V2).send(f"{prefix}:ping", {}) == [Send(b'{"event":"sockudo:pong"}')]
    assert Peer(V1).send(f"{prefix}:pong", {}) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_malformed_frames_leave_the_socket_open(version: ProtocolVersion) -> None:
    """What is no message is answered with 4000, and the next message works."""
    peer = Peer(version)
    for payload in (b"", b"{", b"[]", b'{"data":1}', b'{"event":"x","event":"x"}'):
        assert error(peer.frame(payload)) == 4000
    assert error(peer.frame(b'{"event":"pusher:ping"}', is_text=False)) == 4000
    for event in ("subscribe", "unsubscribe", "resume", "auth", "presence_update"):
        assert error(Peer(V2, granted={}).send(f"pusher:{event}", "x")) in (4000, 4009)
    assert error(peer.send("pusher:subscribe", {})) == 4000
    assert error(peer.send("pusher:subscribe", {"channel": 5})) == 4000
    assert error(peer.send("pusher:unsubscribe", {"channel": None})) == 4000
    assert len(peer.send("pusher:ping")) == 1


@pytest.mark.parametrize(
    "event", ["x", "pusher:x", "sockudo:message.append", "pusher_internal:subscribe", "client"]
)
def test_unknown_events_are_ignored(event: str) -> None:
    """Nothing is returned, also not for a mutation (channels 5.10)."""
    assert Peer().send(event, {"channel": "lab"}) == []


@given(st.binary(max_size=50), st.sampled_from(VERSIONS))
def test_any_bytes(payload: bytes, version: ProtocolVersion) -> None:
    """Whatever a peer sends, the socket stays open and something may be said."""
    peer = Peer(version)
    assert all(isinstance(action, Send) for action in peer.frame(payload))
    assert not peer.session.closed


KEYS = ["channel", "auth", "channel_data", "user_data", "token", "rewind", "count", "seconds"]
KEYS += ["channel_positions", "serial", "limit", "params", "user_info", "presence-a", "lab"]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
SYSTEM = ["subscribe", "unsubscribe", "signin", "auth", "resume", "presence_update"]


@given(st.sampled_from([*SYSTEM, "channel_history"]), JSON_VALUES, st.booleans())
def test_any_data(event: str, data: Any, is_token: bool) -> None:
    """No shape of `data` breaks the session."""
    peer = Peer(granted={"*": ["subscribe"]} if is_token else None)
    peer.join("lab")
    peer.send(f"sockudo:{event}", data)
    peer.send(f"sockudo:{event}", json.dumps(data))


# Heartbeat.


def test_heartbeat_of_v1() -> None:
    """A silent client is sent `pusher:ping` once, and closed with 4201 if it stays silent."""
    peer = Peer(V1)
    peer.now += 119
    assert peer.due() == []
    peer.now += 1
    assert peer.due() == [Send(b'{"event":"pusher:ping"}')]
    peer.now += 29
    assert peer.due() == []
    peer.now += 1
    assert closing(peer.due()) == 4201
    assert peer.session.closed
    assert peer.due() == []
    assert peer.send("pusher:ping") == []


def test_any_message_is_a_sign_of_life() -> None:
    """A message, even a malformed one, starts the time anew."""
    peer = Peer(V1)
    peer.now += 120
    assert len(peer.due()) == 1
    peer.frame(b"nonsense")
    peer.now += 119
    assert peer.due() == []
    peer.now += 1
    assert len(peer.due()) == 1
    assert not peer.session.closed


def test_heartbeat_of_v2() -> None:
    """A silent client is sent a WebSocket ping; its pong is told by `heard_at`."""
    peer = Peer(V2, activity_timeout_seconds=1, pong_timeout_seconds=0.5)
    peer.now += 1
    assert peer.due(heard_at=50.0) == [Ping()]
    peer.now += 0.5
    assert peer.due(heard_at=51.2) == []
    peer.now += 0.7
    assert peer.due(heard_at=51.2) == [Ping()]
    peer.now += 0.5
    assert closing(peer.due(heard_at=51.2)) == 4201


# Subscriptions.


@pytest.mark.parametrize("version", VERSIONS)
def test_public_channels_need_no_auth(version: ProtocolVersion) -> None:
    """An auth string is not looked at, and the data may be a JSON string."""
    peer = Peer(version)
    assert peer.subscribe("lab", auth="") == [Subscribe("lab", None, None)]
    assert peer.send("sockudo:subscribe", '{"channel":"a:;,=@"}') == [
        Subscribe("a:;,=@", None, None)
    ]


@pytest.mark.parametrize("channel", ["private-x", "private-encrypted-x", "private-cache-x"])
def test_private_channels_need_a_signature(channel: str) -> None:
    """The right one subscribes; one changed digit, none, or another type does not."""
    peer = Peer(V1)
    assert peer.subscribe(channel) == [Subscribe(channel, None, None)]
    right = f"k:{sign(APP.secret, f'{SOCKET}:{channel}')}"
    wrong = right[:-1] + ("0" if right[-1] != "0" else "1")
    for auth in (wrong, "", right.removeprefix("k:"), right.upper(), None, 5, [right]):
        assert failed(peer.subscribe(channel, auth=auth)) == 4009
    assert failed(peer.send("pusher:subscribe", {"channel": channel})) == 4009


@pytest.mark.parametrize("channel", ["", "a b", "orders.*", "x" * 201, "caf\u00e9"])
def test_bad_names(channel: str) -> None:
    """A name that is none is a channel error."""
    assert failed(Peer().subscribe(channel)) == 4300


def test_presence_channels_need_a_member() -> None:
    """Who joins is taken from the signed text; the info is kept as it was received."""
    peer = Peer(V1)
    data = '{"user_info": {"n" : 1.0},"user_id":"ana"}'
    assert peer.subscribe("presence-lab", data) == [
        Subscribe("presence-lab", Member("ana", b'{"n" : 1.0}'), None)
    ]
    assert Peer().subscribe("presence-lab", '{"user_id":"ana"}') == [
        Subscribe("presence-lab", Member("ana", None), None)
    ]
    assert failed(peer.subscribe("presence-lab", data, auth="k:0")) == 4009
    assert failed(peer.subscribe("presence-lab")) == 4300
    for wrong in ("", "{", "[]", "{}", '{"user_id":5}', '{"user_id":""}', '{"user_id":null}'):
        assert failed(peer.subscribe("presence-lab", wrong)) == 4300
    for wrong in ('{"user_id":"a","user_id":"b"}', json.dumps({"user_id": "x" * 129})):
        assert failed(peer.subscribe("presence-lab", wrong)) == 4300
    large = json.dumps({"user_id": "ana", "user_info": "x" * 2047})
    assert failed(peer.subscribe("presence-lab", large)) == 4300


def test_subscribing_again() -> None:
    """It is asked for again, as the same member; as another one it is refused."""
    peer = Peer()
    peer.join("lab")
    assert peer.subscribe("lab") == [Subscribe("lab", None, None)]
    first = peer.join("presence-lab", '{"user_id":"ana","user_info":1}')
    assert peer.subscribe("presence-lab", '{"user_id":"ana","user_info":2}') == [first]
    assert failed(peer.subscribe("presence-lab", '{"user_id":"bob"}')) == 4300
    assert peer.session.subscribed == {"lab": None, "presence-lab": Member("ana", b"1")}
    other = Peer()
    assert len(other.subscribe("presence-lab", '{"user_id":"ana"}')) == 1
    assert failed(other.subscribe("presence-lab", '{"user_id":"bob"}')) == 4300


def test_unsubscribing() -> None:
    """What is subscribed, or about to be, can be left; what is not, may have been resumed."""
    peer = Peer()
    peer.join("lab")
    peer.subscribe("soon")
    assert peer.send("pusher:unsubscribe", {"channel": "lab"}) == [Unsubscribe("lab")]
    assert peer.send("pusher:unsubscribe", '{"channel":"soon"}') == [Unsubscribe("soon")]
    for channel in ("lab", "soon"):
        peer.session.left(channel)
        assert peer.send("pusher:unsubscribe", {"channel": channel}) == [Unsubscribe(channel)]
    assert peer.session.subscribed == {}


def test_subscriptions_are_counted() -> None:
    """Those being joined count too; a repeated one does not, and a left one makes room."""
    peer = Peer(max_subscriptions_per_connection=2)
    peer.join("a")
    assert len(peer.subscribe("b")) == 1
    assert failed(peer.subscribe("c")) == 4300
    assert len(peer.subscribe("a")) == 1
    assert len(peer.subscribe("b")) == 1
    peer.session.left("b")
    assert peer.subscribe("c") == [Subscribe("c", None, None)]


@pytest.mark.parametrize(
    ("wish", "rewind"),
    [
        (2, Rewind(2, None)),
        ("2", Rewind(2, None)),
        ({"count": 2}, Rewind(2, None)),
        ({"count": "2"}, Rewind(2, None)),
        ({"seconds": 1.5}, Rewind(None, 1.5)),
        ({"duration_seconds": 60}, Rewind(None, 60.0)),
        ({"seconds": 10**400}, Rewind(None, float(2**63 - 1))),
        (10**400, Rewind(2**63 - 1, None)),
        (0, None),
        (-1, None),
        ("", None),
        ("\u0661", None),
        ("two", None),
        ("9" * 5000, None),
        (True, None),
        (1.5, None),
        (None, None),
        ([2], None),
        ({}, None),
        ({"seconds": 0}, None),
        ({"seconds": True}, None),
        ({"seconds": "5"}, None),
        ({"other": 5}, None),
    ],
)
def test_rewind(wish: Any, rewind: Rewind | None) -> None:
    """Every shape of channels 6.3, and what asks for nothing; V1 may not ask for anything."""
    assert Peer(V2).subscribe("lab", rewind=wish) == [Subscribe("lab", None, rewind)]
    found = Peer(V1).subscribe("lab", rewind=wish)
    if rewind is None:
        assert found == [Subscribe("lab", None, None)]
    else:
        assert failed(found) == 4300


def test_rewind_where_there_is_none() -> None:
    """Rewind off, or no history for the channel, refuses the whole subscribe."""
    assert failed(Peer(rewind_enabled=False).subscribe("lab", rewind=1)) == 4300
    off = History(channels=["private-*"])
    assert failed(Peer(history=off).subscribe("lab", rewind=1)) == 4300
    assert len(Peer(history=off).subscribe("private-x", rewind=1)) == 1


# Identity.


@pytest.mark.parametrize("version", VERSIONS)
def test_signing_in(version: ProtocolVersion) -> None:
    """The user is told to the service and the exact text to the client; its channel opens."""
    peer = Peer(version)
    text = '{"id":"ana",  "user_info":{"n":1}}'
    assert failed(peer.send("pusher:subscribe", {"channel": "#server-to-user-ana"})) == 4009
    first, second = peer.sign_in(text)
    assert first == SignedIn("ana")
    assert sent(second)["event"].endswith(":signin_success")
    assert sent(second)["data"] == {"user_data": text}
    assert (peer.session.user_id, peer.session.client_id) == ("ana", "ana")
    assert peer.send("pusher:subscribe", {"channel": "#server-to-user-ana"}) == [
        Subscribe("#server-to-user-ana", None, None)
    ]
    for other in ("#server-to-user-bob", "#server-to-user-", "#server-to-user-ana2"):
        assert failed(peer.send("pusher:subscribe", {"channel": other})) == 4009


@pytest.mark.parametrize(
    "user",
    [
        "",
        "{",
        "[]",
        {},
        {"id": 5},
        {"id": ""},
        {"id": None},
        {"id": "x" * 129},
        '{"id":"a","id":"b"}',
        {"id": "ana", "capabilities": "all"},
        {"id": "ana", "capabilities": []},
        {"id": "ana", "capabilities": {"publish": "*"}},
        {"id": "ana", "capabilities": {"fly": ["*"]}},
        {"id": "ana", "padding": "x" * 16_384},
    ],
)
def test_malformed_users_do_not_sign_in(user: Any) -> None:
    """Though signed, they are refused, and nobody is signed in."""
    peer = Peer()
    assert error(peer.sign_in(user)) == 4009
    assert peer.session.user_id is None
    assert peer.session.capabilities is None


def test_who_may_not_sign_in() -> None:
    """A wrong signature, an application without sign-ins, a token, and a second user."""
    peer = Peer()
    assert error(peer.sign_in({"id": "ana"}, auth="k:00")) == 4009
    assert error(peer.sign_in({"id": "ana"}, auth=None)) == 4009
    assert error(peer.sign_in({"id": "ana"}, user_data={"id": "ana"})) == 4009
    assert error(Peer(app=PLAIN).sign_in({"id": "ana"})) == 4009
    assert error(Peer(granted={}).sign_in({"id": "ana"})) == 4009
    peer.sign_in({"id": "ana", "capabilities": {"message_append_own": ["*"]}})
    assert error(peer.sign_in({"id": "bob"})) == 4009
    assert peer.session.user_id == "ana"
    assert peer.session.actor.capabilities is not None
    assert peer.session.actor.capabilities.allows("message_append_own", "lab")
    assert peer.sign_in({"id": "ana", "capabilities": None})[0] == SignedIn("ana")
    assert not peer.session.actor.capabilities.allows("message_append_own", "lab")


def test_where_the_client_id_comes_from() -> None:
    """Presence gives one only where neither a sign-in nor a token does (channels 2.5)."""
    peer = Peer()
    assert peer.session.actor == Actor(None, None)
    peer.join("presence-a", '{"user_id":"first"}')
    peer.join("presence-b", '{"user_id":"second"}')
    assert peer.session.client_id == "first"
    assert peer.session.capabilities is None
    peer.sign_in({"id": "ana"})
    assert peer.session.client_id == "ana"
    tokened = Peer(granted={"*": ["subscribe", "presence"]})
    tokened.join("presence-a", '{"user_id":"first"}')
    assert tokened.session.client_id == "ana"


def test_capabilities_of_a_signin_restrict() -> None:
    """What the map names is restricted to its patterns, what it does not name is allowed."""
    peer = Peer()
    peer.sign_in(
        {"id": "ana", "capabilities": {"subscribe": ["lab*"], "presence": [], "history": []}}
    )
    assert len(peer.subscribe("lab1")) == 1
    assert failed(peer.subscribe("other")) == 4009
    assert failed(peer.subscribe("private-x")) == 4009
    assert failed(peer.subscribe("lab2", rewind=1)) == 4009
    assert peer.subscribe("#server-to-user-ana") == [Subscribe("#server-to-user-ana", None, None)]
    peer.sign_in({"id": "ana", "capabilities": {"presence": []}})
    assert len(peer.subscribe("private-x")) == 1
    assert failed(peer.subscribe("presence-x", '{"user_id":"ana"}')) == 4009


def test_a_token_must_name_everything() -> None:
    """Subscribe, presence and history each need their operation, and a signature besides."""
    peer = Peer(granted={"lab": ["subscribe"], "presence-*": ["subscribe"], "h": ["subscribe"]})
    assert len(peer.subscribe("lab")) == 1
    assert failed(peer.subscribe("other")) == 4009
    assert failed(peer.subscribe("lab", rewind=1)) == 4009
    assert failed(peer.subscribe("presence-x", '{"user_id":"ana"}')) == 4009
    assert failed(peer.subscribe("#server-to-user-ana")) == 4009
    peer = Peer(granted={"*": ["subscribe", "presence", "history"]})
    assert len(peer.subscribe("presence-x", '{"user_id":"ana"}', rewind=1)) == 1
    assert failed(peer.subscribe("private-x", auth="")) == 4009


def test_a_token_ends() -> None:
    """At its end the client is told once, and closed after the grace unless it renews."""
    peer = Peer(granted={})
    peer.unix += 99.9
    assert peer.due() == []
    peer.unix += 0.1
    [action] = peer.due()
    assert sent(action)["data"] == {"code": 40142, "reason": "expired"}
    peer.now += 29.9
    assert peer.due() == []
    peer.now += 0.1
    assert closing(peer.due()) == 4009
    assert peer.session.closed


def test_a_token_is_renewed() -> None:
    """A new one of the same client replaces capabilities and end; lost channels are left."""
    peer = Peer(granted={"*": ["subscribe"]})
    peer.join("lab")
    peer.join("other")
    peer.subscribe("soon")
    peer.unix += 100
    assert len(peer.due()) == 1
    renewed = token({"lab": ["subscribe"]}, lifetime=200)
    accepted, success, *lost = peer.send("sockudo:auth", {"token": renewed})
    assert accepted == TokenAccepted(verify(APP, renewed, UNIX))
    assert sent(success)["event"] == "sockudo:auth_success"
    assert sent(success)["data"] == {"client_id": "ana", "jti": "t", "exp": int(UNIX) + 200}
    assert [sent(lost[0])["channel"], lost[1]] == ["other", Unsubscribe("other")]
    assert [sent(lost[2])["channel"], lost[3]] == ["soon", Unsubscribe("soon")]
    assert failed(peer.subscribe("other2")) == 4009
    peer.now += 40
    assert peer.due() == []
    peer.unix += 100
    assert len(peer.due()) == 1


@pytest.mark.parametrize(
    "data", [{}, {"token": 5}, {"token": "x"}, {"token": token({}, client="bob")}]
)
def test_a_bad_token_closes(data: Any) -> None:
    """None, a malformed one and another client's: an error frame and 4009."""
    peer = Peer(granted={})
    assert closing(peer.send("sockudo:auth", data)) == 4009
    assert peer.session.closed


def test_a_token_needs_a_socket_that_has_one() -> None:
    """Elsewhere a token is refused, and nothing is closed."""
    assert error(Peer(V2).send("sockudo:auth", {"token": token({})})) == 4009
    assert error(Peer(V1).send("sockudo:auth", {"token": token({})})) == 4300


def test_a_revoked_token() -> None:
    """The client is told the reason and closed, once."""
    peer = Peer(granted={})
    first, second = peer.session.revoke()
    assert sent(first)["data"] == {"code": 40160, "reason": "revoked"}
    assert isinstance(second, Close)
    assert second.code == 4009
    assert peer.session.revoke() == []
    assert peer.session.end(4200) == []


def test_ending_a_session() -> None:
    """The service closes with an error frame and the same code."""
    peer = Peer()
    assert closing(peer.session.end(4200)) == 4200
    assert peer.session.closed


@pytest.mark.parametrize("code", [4001, 4003, 4004, 4009, 4100, 4200, 4201])
def test_refusals_without_a_session(code: int) -> None:
    """Every close code that the service uses has a text of its own."""
    for version in VERSIONS:
        first, second = refusal(FRAMES, version, code)
        assert sent(first)["data"] == {"code": code, "message": MESSAGES[code]}
        assert second == Close(code, MESSAGES[code])
    assert refusal(FRAMES, V2, code, "why")[1] == Close(code, "why")


# Events.


@pytest.mark.parametrize("version", VERSIONS)
def test_client_events(version: ProtocolVersion) -> None:
    """They keep their data byte for byte; on a presence channel the sender is named."""
    peer = Peer(version)
    peer.join("private-x")
    peer.join("presence-x", '{"user_id":"ana"}')
    raw = b'{"event":"client-hi","channel":"private-x","data": {"a" : 1.0} }'
    assert peer.frame(raw) == [ClientEvent("private-x", "client-hi", b'{"a" : 1.0}', None)]
    assert peer.send("client-hi", "text", channel="presence-x") == [
        ClientEvent("presence-x", "client-hi", b'"text"', "ana")
    ]
    assert peer.frame(b'{"event":"client-hi","channel":"private-x"}') == [
        ClientEvent("private-x", "client-hi", b"null", None)
    ]


def test_client_events_that_are_rejected() -> None:
    """Public, encrypted and unsubscribed channels, long names, large data, no flag: 4301."""
    peer = Peer(max_event_payload_bytes=10)
    for channel in ("lab", "private-encrypted-x", "private-x"):
        peer.join(channel)
        if channel != "private-x":
            assert error(peer.send("client-x", 1, channel=channel)) == 4301
    peer.sign_in({"id": "ana"})
    peer.join("#server-to-user-ana")
    assert error(peer.send("client-x", 1, channel="#server-to-user-ana")) == 4301
    assert error(peer.send("client-x", 1, channel="private-y")) == 4301
    assert error(peer.send("client-x", 1)) == 4301
    assert error(peer.send("client-" + "x" * 194, 1, channel="private-x")) == 4301
    assert len(peer.send("client-" + "x" * 193, 1, channel="private-x")) == 1
    assert error(peer.send("client-x", "x" * 9, channel="private-x")) == 4301
    assert len(peer.send("client-x", "x" * 8, channel="private-x")) == 1
    silent = Peer(app=PLAIN)
    silent.join("private-x")
    assert error(silent.send("client-x", 1, channel="private-x")) == 4301


def test_client_events_need_publish() -> None:
    """A token must name it, a sign-in may restrict it."""
    peer = Peer(granted={"*": ["subscribe"], "private-y": ["publish"]})
    for channel in ("private-x", "private-y"):
        peer.join(channel)
    assert error(peer.send("client-x", 1, channel="private-x")) == 4301
    assert len(peer.send("client-x", 1, channel="private-y")) == 1
    peer = Peer()
    peer.sign_in({"id": "ana", "capabilities": {"publish": ["private-y"]}})
    for channel in ("private-x", "private-y"):
        peer.join(channel)
    assert error(peer.send("client-x", 1, channel="private-x")) == 4301
    assert isinstance(peer.send("client-x", 1, channel="private-y")[0], ClientEvent)


def test_client_events_are_counted() -> None:
    """Ten in a second, and ten more in the next; presence updates count with them."""
    peer = Peer()
    peer.join("presence-x", '{"user_id":"ana"}')
    for _ in range(2):
        for _ in range(9):
            [action] = peer.send("client-x", 1, channel="presence-x")
            assert isinstance(action, ClientEvent)
        [action] = peer.send("sockudo:presence_update", {"user_info": 1}, channel="presence-x")
        assert isinstance(action, PresenceUpdate)
        assert error(peer.send("client-x", 1, channel="presence-x")) == 4301
        update = peer.send("sockudo:presence_update", {"user_info": 1}, channel="presence-x")
        assert error(update) == 4301
        peer.now += 1


# Events of runs.


def run_events_refused(actions: list[Action]) -> tuple[str, int | None, str | None]:
    """Reason, `ai_code` and `message_id` of the one error."""
    [action] = actions
    frame = sent(action)
    assert (frame["event"], frame["data"]["code"]) == ("sockudo:error", 4301)
    data = frame["data"]
    return data["reason"], data.get("ai_code"), data.get("message_id")


def test_an_event_of_a_run() -> None:
    """It is a publication in the name of the verified client, which nobody else can write."""
    peer = Peer(granted={"room": ["publish"]})
    extras = {"mine": 1, "ai": {"transport": {"event-id": "e"}, "codec": {"a": "b"}}}
    [action] = peer.send("ai-input", {"a": 1}, channel="room", extras=extras, message_id="m")
    assert isinstance(action, PublishEvent)
    made = action.publication
    assert (made.name, made.channels, made.message_id) == ("ai-input", ("room",), "m")
    assert (made.data, action.user_id, action.own_run) == (b'"{\\"a\\":1}"', None, None)
    assert json.loads(made.extras or b"") == {
        "mine": 1,
        "ai": {
            "transport": {"event-id": "e", "input-client-id": "ana"},
            "codec": {"a": "b"},
        },
    }
    for extra in (None, {"ai": None}, {"ai": {"transport": None}}):
        [action] = peer.send("ai-input", "x", channel="room", extras=extra)
        assert isinstance(action, PublishEvent)
        wanted = {"ai": {"transport": {"input-client-id": "ana"}}}
        assert json.loads(action.publication.extras or b"") == wanted
    spoofed = {"ai": {"transport": {"input-client-id": "bob"}}}
    told = peer.send("ai-input", "x", channel="room", extras=spoofed, message_id="m")
    assert run_events_refused(told) == ("ai_client_id_spoof", 104002, "m")
    told = peer.send("ai-output", "x", channel="room")
    assert run_events_refused(told) == ("ai_event_not_permitted", 104003, None)


def test_cancels_of_a_socket() -> None:
    """One run is left to whoever knows its owner, unless all may be cancelled."""
    for granted, own_run in ((["publish"], "r"), (["publish", "run-cancel-any"], None)):
        peer = Peer(granted={"room": granted})
        [action] = peer.send("ai-cancel", {"runId": "r"}, channel="room")
        assert isinstance(action, PublishEvent)
        assert action.own_run == own_run
        told = peer.send("ai-cancel", {"all": True}, channel="room")
        assert isinstance(told[0], Send if own_run else PublishEvent)


def test_events_of_runs_are_counted() -> None:
    """With client events, by the second; what is refused for another reason is not."""
    peer = Peer(granted={"room": ["publish"]})
    for _ in range(20):
        peer.send("ai-output", "x", channel="room")
    for _ in range(APP.max_client_events_per_second):
        [action] = peer.send("ai-input", "x", channel="room")
        assert isinstance(action, PublishEvent)
    told = peer.send("ai-input", "x", channel="room", message_id="m")
    assert run_events_refused(told) == ("rate_limited", None, "m")
    peer.now += 1
    [action] = peer.send("ai-input", "x", channel="room")
    assert isinstance(action, PublishEvent)


def test_presence_updates() -> None:
    """A member's new info is kept as it was received, from an object or from text."""
    peer = Peer()
    peer.join("presence-x", '{"user_id":"ana"}')
    raw = b'{"event":"sockudo:presence_update","channel":"presence-x","data":{"user_info": [1.0] }}'
    assert peer.frame(raw) == [PresenceUpdate("presence-x", "ana", b"[1.0]")]
    assert peer.session.subscribed["presence-x"] == Member("ana", b"[1.0]")
    text = '{"user_info": {"b" :2},"channel":"presence-x"}'
    assert peer.send("sockudo:presence_update", text) == [
        PresenceUpdate("presence-x", "ana", b'{"b" :2}')
    ]


def test_presence_updates_that_are_refused() -> None:
    """V1, other channels, no or large info, and a token that lost presence."""
    peer = Peer()
    peer.join("presence-x", '{"user_id":"ana"}')
    peer.join("lab")
    info = {"user_info": 1}
    assert error(peer.send("sockudo:presence_update", info, channel="lab")) == 4301
    assert error(peer.send("sockudo:presence_update", info, channel="presence-y")) == 4301
    assert error(peer.send("sockudo:presence_update", info)) == 4301
    assert error(peer.send("sockudo:presence_update", {}, channel="presence-x")) == 4301
    large = {"user_info": "x" * 2047}
    assert error(peer.send("sockudo:presence_update", large, channel="presence-x")) == 4301
    old = Peer(V1)
    old.join("presence-x", '{"user_id":"ana"}')
    assert error(old.send("pusher:presence_update", info, channel="presence-x")) == 4300
    peer.sign_in({"id": "ana", "capabilities": {"presence": []}})
    assert error(peer.send("sockudo:presence_update", info, channel="presence-x")) == 4301


# The past.


@pytest.mark.parametrize("as_text", [True, False])
def test_history(as_text: bool) -> None:
    """A query in either form is passed on; two may wait at a time."""
    peer = Peer()
    peer.join("lab")
    data: Any = {"channel": "lab", "limit": 5, "until_attach": True}
    data = json.dumps(data) if as_text else data
    expected = ReadHistory("lab", HistoryQuery(limit=5, until_attach=True))
    for _ in range(MAX_HISTORY_READS):
        assert peer.send("sockudo:channel_history", data) == [expected]
    assert error(peer.send("sockudo:channel_history", data)) == 4301
    peer.session.history_done()
    assert peer.send("sockudo:channel_history", data) == [expected]


def test_history_that_is_refused() -> None:
    """V1, no subscription, no history, a malformed query and a missing capability."""
    peer = Peer(history=History(channels=["lab"]))
    peer.join("lab")
    peer.join("other")
    for data in ({}, {"channel": 5}, {"channel": "x"}, {"channel": "other"}):
        assert error(peer.send("sockudo:channel_history", data)) == 4300
    malformed: list[dict[str, Any]] = [{"limit": 0}, {"params": []}, {"start": 2, "end": 1}]
    for wrong in malformed:
        assert error(peer.send("sockudo:channel_history", {"channel": "lab", **wrong})) == 4300
    old = Peer(V1)
    old.join("lab")
    assert error(old.send("sockudo:channel_history", {"channel": "lab"})) == 4300
    tokened = Peer(granted={"lab": ["subscribe"]})
    tokened.join("lab")
    assert error(tokened.send("sockudo:channel_history", {"channel": "lab"})) == 4009
    for _ in range(MAX_HISTORY_READS):
        assert isinstance(peer.send("sockudo:channel_history", {"channel": "lab"})[0], ReadHistory)


def resume(peer: Peer, **data: Any) -> list[Action]:
    """A resume comes."""
    return peer.send("sockudo:resume", data)


def test_resume() -> None:
    """Positions are read in both shapes, a full one before a legacy one, each channel once."""
    full = {"serial": 43, "stream_id": "s", "last_message_id": "m"}
    assert resume(
        Peer(), channel_positions={"a": full, "b": {"serial": 0}}, channel_serials={"a": 1, "c": 2}
    ) == [
        Resume(
            (
                Position("a", 43, "s", "m"),
                Position("c", 2, None, None),
                Position("b", 0, None, None),
            ),
            (),
        )
    ]


@pytest.mark.parametrize("stream_id", ["", "x" * 500, "\u00e9"])
def test_any_text_may_claim_to_be_a_stream(stream_id: str) -> None:
    """Whether it is the channel's stream is answered per channel, not per message."""
    position = {"serial": 1, "stream_id": stream_id}
    assert resume(Peer(), channel_positions={"private-x": position}) == [
        Resume((Position("private-x", 1, stream_id, None),), ())
    ]


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"channel_positions": {}},
        {"channel_positions": None, "channel_serials": {}},
        {"channel_positions": []},
        {"channel_positions": {"a": 5}},
        {"channel_positions": {"a": {}}},
        {"channel_positions": {"a": {"serial": -1}}},
        {"channel_positions": {"a": {"serial": True}}},
        {"channel_positions": {"a": {"serial": "1"}}},
        {"channel_positions": {"a": {"serial": 2**63}}},
        {"channel_positions": {"a": {"serial": 1, "stream_id": 5}}},
        {"channel_positions": {"a": {"serial": 1, "last_message_id": []}}},
        {"channel_serials": {"a": None}},
        {"channel_serials": {"a": 1, "b": 1, "c": 1}},
    ],
)
def test_resume_without_positions(data: dict[str, Any]) -> None:
    """None, malformed ones and too many are 4302."""
    assert error(resume(Peer(max_subscriptions_per_connection=2), **data)) == 4302


def test_resume_that_is_refused() -> None:
    """Recovery off and V1 are 4301, a bad name is 4300."""
    serials = {"channel_serials": {"a": 1}}
    off = Peer(connection_recovery=ConnectionRecovery(enabled=False))
    assert error(resume(off, **serials)) == 4301
    assert error(resume(Peer(V1), **serials)) == 4301
    assert error(resume(Peer(), channel_serials={"a b": 1})) == 4300


def test_who_may_resume_what() -> None:
    """Before a subscribe, a channel with auth needs its stream id; a user's needs the user."""

    def denied(peer: Peer, channel: str, stream_id: str | None = None) -> bool:
        position = {"serial": 1, "stream_id": stream_id}
        [action] = resume(peer, channel_positions={channel: position})
        assert isinstance(action, Resume)
        assert len(action.positions) + len(action.denied) == 1
        return bool(action.denied)

    peer = Peer()
    assert not denied(peer, "lab")
    for channel in ("private-x", "presence-x", "private-encrypted-x"):
        assert denied(peer, channel)
        assert not denied(peer, channel, "s")
    peer.join("private-x")
    assert not denied(peer, "private-x")
    assert denied(peer, "#server-to-user-ana", "s")
    peer.sign_in({"id": "ana"})
    assert not denied(peer, "#server-to-user-ana")
    tokened = Peer(granted={"lab": ["subscribe"], "presence-x": ["subscribe"]})
    assert not denied(tokened, "lab")
    assert denied(tokened, "other", "s")
    assert denied(tokened, "presence-x", "s")
