"""A submit of the usual form: it means the same as when it is read member by member."""

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.base.data.canonical import canonical, read_canonical
from tidelog.base.errors import NotCanonicalizable
from tidelog.sync.protocol import session as session_module
from tidelog.sync.protocol.actions import Action, Connected, Send, Submit
from tidelog.sync.protocol.items import Preparation, prepare
from tidelog.sync.protocol.profiles import CANONICAL, TREE_ACTIONS, Model
from tidelog.sync.protocol.session import Session
from tidelog.sync.protocol.submitted import plain_submit, prepared_items
from tidelog.sync.protocol.tokens import Tokens
from tidelog.sync.settings import SyncSettings

SECRET = "a secret of more than thirty-two bytes"
EXPIRES_AT = int(time.time()) + 10**6
CLAIMS = {"client_id": "c", "exp": EXPIRES_AT, "allowed_partition_prefixes": ["p"], "userId": "u"}
MODEL = Model.parse({"t": {"kind": "tree", "actions": list(TREE_ACTIONS)}}, {"s": True}, 1)
TOKENS = Tokens(SECRET, None, ["HS256"])
SETTINGS = SyncSettings(jwt_secret=SECRET, max_batch_size=3, max_in_flight_drafts=5)

EVENT = {"type": "event", "payload": {"schema": "s", "data": {"n": 1, "x": "a:b"}}}
ITEM = {"id": "i:1", "partitions": ["p:1"], "event": EVENT}
MESSAGE: dict[str, Any] = {
    "type": "submit_events",
    "msg_id": "m",
    "timestamp": 1,
    "payload": {"events": [ITEM, {**ITEM, "id": "j", "partitions": ["p", "q"]}]},
    "protocol_version": "1.0",
}
odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=4),
    st.sampled_from(
        [[], {}, [None], {"": {}}, "p", "c", "u", "i:1", "é" * 65, "1.0", "treePush", {"userId": 1}]
    ),
)
KEYS = ("client_id", "stop_at_rejection", "partition", "meta", "type", "events", "x", "a:b")


def text_of(message: object) -> bytes:
    """JSON of a message."""
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()


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
def messages(draw: st.DrawFn) -> bytes:
    """A submit with some members changed, added or removed, and perhaps some bytes as well."""
    message = json.loads(text_of(MESSAGE))
    for _ in range(draw(st.integers(0, 2))):
        *way, last = draw(st.sampled_from(places(message)))
        holder = message
        for each in way:
            holder = holder[each]
        match draw(st.sampled_from(("change", "add", "remove"))):
            case "change":
                holder[last] = draw(odd)
            case "add" if isinstance(holder, dict):
                holder[draw(st.sampled_from(KEYS))] = draw(odd)
            case "remove" if isinstance(holder, dict):
                del holder[last]
            case _:
                pass
    text = text_of(message)
    if draw(st.booleans()):
        at = draw(st.integers(0, len(text)))
        end = at + draw(st.integers(0, 3))
        inserted = draw(st.sampled_from([b"", b" ", b":", b'"', b"\\", b"1", b"e9", b"}", b","]))
        text = text[:at] + inserted + text[end:]
    return text


def done_with(frame: bytes, *, is_text: bool = True, unix_now: float = 0) -> list[Action]:
    """What a session does with a frame."""
    return connected().receive(frame, is_text=is_text, now=0.0, unix_now=unix_now)


def connected() -> Session:
    """A session after its handshake."""
    session = Session(SETTINGS, MODEL, TOKENS, 0.0)
    [action] = session.receive(CONNECT, is_text=True, now=0.0, unix_now=0)
    assert isinstance(action, Connected)
    assert session.done(0.0, 0) == []
    assert session.profile == CANONICAL
    return session


TOKEN = jwt.encode(CLAIMS, SECRET)
CONNECT = text_of(
    {
        **MESSAGE,
        "type": "connect",
        "payload": {"token": TOKEN, "client_id": "c", "supported_profiles": [CANONICAL]},
    }
)


def member_by_member(do: Callable[[], list[Action]]) -> list[Action]:
    """What it does if it never looks for the usual form."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_module, "plain_submit", lambda _: None)
        return do()


@given(frame=messages())
def test_both_ways_of_reading_come_to_the_same(frame: bytes) -> None:
    """Faults have their errors in their order, and what has none the same prepared items."""
    assert done_with(frame) == member_by_member(partial(done_with, frame))


def test_a_usual_submit_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of this module is the one that is taken, and prepares the same items."""
    allows = TOKENS.verify(TOKEN).allows
    by = Preparation("c", "u", CANONICAL, MODEL, allows)
    for message in (
        MESSAGE,
        {**MESSAGE, "timestamp": 1.5},
        {**MESSAGE, "payload": {**MESSAGE["payload"], "stop_at_rejection": True}},
        {**MESSAGE, "payload": {"events": [{**ITEM, "client_id": "c"}], "client_id": "c"}},
        {**MESSAGE, "payload": {"events": [{**ITEM, "event": {**EVENT, "meta": {"é": 1.0}}}]}},
    ):
        frame = text_of(message)
        submit = plain_submit(frame)
        assert submit is not None
        assert prepared_items(submit, frame, by, 3) == [
            prepare(
                item,
                text_of(item["event"]),
                client_id="c",
                profile=CANONICAL,
                model=MODEL,
                allows=allows,
                user_id="u",
            )
            for item in message["payload"]["events"]
        ]
        session = connected()
        with monkeypatch.context() as patch:
            patch.setattr(session, "_read", None)  # which reads it member by member
            [action] = session.receive(frame, is_text=True, now=0.0, unix_now=0)
        assert isinstance(action, Submit)
        assert [action] == member_by_member(partial(done_with, frame))


WHOLE = text_of(MESSAGE)
FAULTY = {
    "the same key twice": (b'"msg_id"', b'"msg_id":"n","msg_id"'),
    "in an item": (b'"id":"j"', b'"id":"k","id":"j"'),
    "in an event": (b'"n":1', b'"n":1,"n":1'),
    "in an event, with an escaped colon": (b'"n":1', b'"n":1,"n":1,"y":"\\u003a"'),
    "the payload twice": (b'"payload":{"events"', b'"payload":{"events":[]},"payload":{"events"'),
    "an infinite timestamp": (b'"timestamp":1', b'"timestamp":1e999'),
    "a timestamp of many digits": (b'"timestamp":1', b'"timestamp":1' + b"0" * 4300),
    "an infinite number": (b'"n":1', b'"n":1e999'),
    "a number of many digits": (b'"n":1', b'"n":1' + b"0" * 4300),
    "half a surrogate pair": (b'"x":"', b'"x":"\\ud800'),
    "half a pair in an id": (b'"id":"j', b'"id":"\\ud800'),
    "half a pair beside": (b'"msg_id"', b'"more":"\\ud800","msg_id"'),
    "too deep": (b'"n":1', b'"n":' + b"[" * 60 + b"]" * 60),
    "something after it": (b'"protocol_version":"1.0"}', b'"protocol_version":"1.0"}1'),
    "a leading zero": (b'"n":1', b'"n":01'),
    "an id that appears twice": (b'"id":"j"', b'"id":"i:1"'),
    "an empty id": (b'"id":"j"', b'"id":""'),
    "an id that is too long": (b'"id":"j"', b'"id":"%s"' % ("é" * 65).encode()),
    "another client": (b'"id":"j"', b'"id":"j","client_id":"d"'),
    "another version": (b'"1.0"', b'"2.0"'),
    "no message id": (b'"msg_id":"m"', b'"msg_id":""'),
    "no events": (WHOLE[WHOLE.index(b"[") : WHOLE.rindex(b"]") + 1], b"[]"),
}


@pytest.mark.parametrize("case", FAULTY)
def test_a_fault_has_the_error_that_it_had(case: str) -> None:
    """Nothing is submitted, and the error is the one of the other way."""
    before, after = FAULTY[case]
    assert before in WHOLE
    frame = WHOLE.replace(before, after, 1)
    actions = done_with(frame)
    assert isinstance(actions[0], Send)
    assert actions[0].kind == "error"
    assert actions == member_by_member(partial(done_with, frame))


def test_what_does_not_depend_on_the_text_is_refused_too() -> None:
    """A binary frame, a token that has ended, too many drafts."""
    many = text_of({**MESSAGE, "payload": {"events": [{**ITEM, "id": f"{n}"} for n in range(4)]}})
    ways: list[Callable[[], list[Action]]] = [
        partial(done_with, WHOLE, is_text=False),
        partial(done_with, WHOLE, unix_now=EXPIRES_AT),
        partial(done_with, many),
    ]
    for do in ways:
        actions = do()
        assert isinstance(actions[0], Send)
        assert actions[0].kind == "error"
        assert actions == member_by_member(do)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(), below, max_size=3),
)


@given(value=values)
def test_a_text_is_read_with_its_canonical_form(value: Any) -> None:
    """The same as reading it first, whatever numbers and characters it has."""
    text = json.dumps(value).encode()
    try:
        expected = canonical(json.loads(text))
    except NotCanonicalizable:
        with pytest.raises((NotCanonicalizable, ValueError)):
            read_canonical(text)
        return
    read, written = read_canonical(text)
    assert (read, written) == (json.loads(text), expected)
