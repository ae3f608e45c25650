"""Whatever a peer of insieme's dialect sends, the session has an answer and nothing breaks."""

import json
import time
from typing import Any

import jwt
from hypothesis import given
from hypothesis import strategies as st

from tidelog.sync.protocol.actions import Action, Close, Connected, Send, Submit, Sync
from tidelog.sync.protocol.profiles import TREE_ACTIONS, Model
from tidelog.sync.protocol.session import Session
from tidelog.sync.protocol.tokens import Tokens
from tidelog.sync.protocol.wire import Committed
from tidelog.sync.settings import SyncSettings

SECRET = "a secret of more than thirty-two bytes"
TOKEN = jwt.encode(
    {"client_id": "c", "exp": int(time.time()) + 10**6, "allowed_partition_prefixes": ["p/"]},
    SECRET,
)
MODEL = Model.parse({"t": {"kind": "tree", "actions": list(TREE_ACTIONS)}}, {"any": True}, 1)
TOKENS = Tokens(SECRET, None, ["HS256"])
SETTINGS = SyncSettings(jwt_secret=SECRET, max_batch_size=3)

ITEM = {
    "id": "i",
    "partition": "q",
    "projectId": "p",
    "type": "any",
    "schemaVersion": 1,
    "payload": {"a": {"b": [1]}},
    "meta": {"clientTs": 1, "clientId": "c"},
    "userId": "u",
}
MESSAGES: list[dict[str, Any]] = [
    {"type": "submit_events", "payload": {"events": [ITEM, {**ITEM, "id": "j"}]}},
    {"type": "sync", "payload": {"projectId": "p", "sinceCommittedId": 0, "limit": 5}},
    {"type": "connect", "payload": {"token": TOKEN, "clientId": "c", "projectId": "p"}},
]
odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=4),
    st.sampled_from([[], {}, [None], {"": {}}, "p", "p/q", "treePush", "tidelog.event", "1.0"]),
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every member and element, at any depth."""
    below = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, child in below:
        found.append((*at, key))
        if isinstance(child, dict | list):
            found += places(child, (*at, key))
    return found


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """A message of which one to three members are something else, or missing."""
    chosen = draw(st.sampled_from(MESSAGES))
    whole = {**chosen, "protocolVersion": "1.0", "msgId": "m"}
    message: dict[str, Any] = json.loads(json.dumps(whole))
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from(places(message)))
        parent: Any = message
        for key in path:
            parent = parent[key]
        if isinstance(parent, dict) and draw(st.booleans()):
            del parent[last]
        else:
            parent[last] = draw(odd)
        if not places(message):
            break
    return message


def session() -> Session:
    """One whose peer has connected."""
    made = Session(SETTINGS, MODEL, TOKENS, 0.0)
    connect = json.dumps({**MESSAGES[2], "protocolVersion": "1.0"}).encode()
    [action] = made.receive(connect, is_text=True, now=0.0, unix_now=time.time())
    assert isinstance(action, Connected)
    assert made.done(0.0, time.time()) == []
    return made


@given(damaged())
def test_every_damaged_message_has_an_answer(message: dict[str, Any]) -> None:
    """An error with a code of the dialect, or work whose every item has a result."""
    connected = session()
    frame = json.dumps(message).encode()
    actions = connected.receive(frame, is_text=True, now=0.0, unix_now=time.time())
    assert actions
    check(connected, actions)
    fresh = Session(SETTINGS, MODEL, TOKENS, 0.0)
    for action in fresh.receive(frame, is_text=True, now=0.0, unix_now=time.time()):
        assert isinstance(action, Send | Close | Connected)


def check(connected: Session, actions: list[Action]) -> None:
    """The actions are an answer."""
    match actions:
        case [Submit() as request]:
            for item in request.items:
                assert item.refused or item.invalid or json.loads(item.body)["id"] == item.id
            results = [Committed(item.id, 1, 1) for item in request.items]
            said = json.loads(connected.form.results(request, results, 1))["results"]
            assert len(said) == len(request.items) + len(request.left_over)
        case [Sync() as request]:
            assert request.project == "p"
        case [Send() as sent, *rest]:
            code = json.loads(sent.payload)["code"]
            closes = code == "protocolVersion_unsupported"
            assert code in ("bad_request", "forbidden", "protocolVersion_unsupported")
            assert bool(rest) == closes == connected.closed
        case _:
            raise AssertionError(actions)
