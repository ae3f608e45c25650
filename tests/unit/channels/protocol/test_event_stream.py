"""Frames as events, and their ids (channels 6.5)."""

import pytest

from tidelog.base.net.frame import PING, close_frame, frame, payload_of, text_frame
from tidelog.channels.protocol import event_stream
from tidelog.channels.protocol.event_stream import EventEncoding, Position, Wanted
from tidelog.channels.protocol.fault import Fault


def said(serial: int | None = None, stream_id: str = "s", event: str = "e") -> bytes:
    """A frame."""
    position = "" if serial is None else f',"stream_id":"{stream_id}","serial":{serial}'
    return text_frame(f'{{"event":"{event}"{position}}}'.encode())


def id_of(event: bytes) -> str | None:
    """The id of an event."""
    head, _, _ = event.partition(b"data: ")
    return head.decode().removeprefix("id: ").rstrip("\n") or None


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_the_payload_of_a_frame(size: int) -> None:
    """Whatever its length is written as."""
    assert payload_of(text_frame(b"x" * size)) == b"x" * size


def test_line_ends_between_tokens_are_no_line_ends() -> None:
    """An event is one line of data, whatever white space a publisher's JSON has."""
    encoded = EventEncoding()(text_frame(b'{"event":"e",\r\n"data":\n{"a":\r1}}'))
    assert encoded == b'data: {"event":"e",  "data": {"a": 1}}\n\n'


def test_other_frames() -> None:
    """A ping is a comment; a close is nothing."""
    encode = EventEncoding()
    assert encode(frame(PING, b"")) == b":\n\n"
    assert encode(close_frame(4200)) == b""


def test_ids_never_go_back() -> None:
    """Not in one stream; another stream has its own."""
    encode = EventEncoding()
    given = [said(5), said(3), said(5), said(None), said(6), said(1, "t"), said(2, "t")]
    assert [id_of(encode(each)) for each in given] == ["s:5", None, None, None, "s:6", "t:1", "t:2"]


def test_a_rewind_has_one_id_at_its_end() -> None:
    """That of the highest position it showed; an event of that name is none."""
    encode = EventEncoding()
    encode.is_rewinding = True
    complete = "sockudo:rewind_complete"
    given = [
        said(4),
        said(9),
        said(7),
        said(8, event=complete),
        said(None, event=complete),
        said(10),
    ]
    assert [id_of(encode(each)) for each in given] == [None, None, None, None, "s:9", "s:10"]
    empty = EventEncoding()
    empty.is_rewinding = True
    assert id_of(empty(said(None, event=complete))) is None


def test_connections_share_events_until_they_are_forgotten() -> None:
    """One frame is made an event once, however many are sent it; nothing erased is kept."""
    sent = said(1)
    first, second = EventEncoding()(sent), EventEncoding()(sent)
    assert first is second
    event_stream.forget_events()
    assert EventEncoding()(sent) is not first


@pytest.mark.parametrize("given", ["", "x", ":1", "x:", "x:-1", "x:1.0", f"x:{2**63}", "x:\u0661"])
def test_an_id_that_is_none(given: str) -> None:
    """Is refused."""
    with pytest.raises(Fault) as refused:
        Position.from_id(given)
    assert refused.value.code == "invalid_input"


def test_what_a_request_wants() -> None:
    """The header counts before the query; an id may hold colons."""
    wanted = Wanted.from_request("room", {"last_event_id": "q:1"}, b"a:b:2")
    assert wanted.position == Position("a:b", 2)
    assert Wanted.from_request("room", {"last_event_id": "q:1"}, None).position == Position("q", 1)
    assert Wanted.from_request("room", {}, None).resume() is None


@pytest.mark.parametrize("given", ["-1", "1.5", "x", "\u0661", str(2**63), "9" * 20, "9" * 5000])
def test_a_rewind_that_is_none(given: str) -> None:
    """Is refused: a subscribe would take it for none, and events would wait for its end."""
    with pytest.raises(Fault) as refused:
        Wanted.from_request("room", {"rewind": given}, None)
    assert refused.value.code == "invalid_input"
    assert Wanted.from_request("room", {"rewind": "0"}, None).rewind == "0"
