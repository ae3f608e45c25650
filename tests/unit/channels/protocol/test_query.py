"""What part of a history is asked for."""

from collections.abc import Mapping
from typing import Any

import pytest

from tidelog.channels.protocol.query import (
    DIRECTIONS,
    MAX_CURSOR_BYTES,
    MAX_FRAME_LIMIT,
    MAX_INTEGER,
    HistoryQuery,
)


def test_nothing_given() -> None:
    """Without parameters a query asks for the newest hundred."""
    assert HistoryQuery.from_parameters({}, 100) == HistoryQuery()
    assert HistoryQuery.from_frame({"channel": "lab"}, 100) == HistoryQuery()
    assert HistoryQuery.from_parameters({}, 7).limit == 7


def test_everything_given() -> None:
    """Numbers come as text over HTTP and as numbers over a socket, and mean the same."""
    text = {
        "limit": "5",
        "direction": "oldest_first",
        "cursor": "abc",
        "start_serial": "0",
        "end_serial": "9",
        "start_time_ms": "10",
        "end_time_ms": str(MAX_INTEGER),
    }
    whole = HistoryQuery(
        limit=5,
        direction="oldest_first",
        cursor="abc",
        start_serial=0,
        end_serial=9,
        start_time_ms=10,
        end_time_ms=MAX_INTEGER,
    )
    assert HistoryQuery.from_parameters({**text, "auth_key": "k"}, 100) == whole
    assert HistoryQuery.from_frame(text, 100) == whole
    numbers = {key: int(value) if value.isdecimal() else value for key, value in text.items()}
    assert HistoryQuery.from_frame(numbers, 100) == whole
    assert HistoryQuery.from_frame({"channel": "lab", "params": numbers}, 100) == whole


def test_short_names_of_times() -> None:
    """`start` and `end` are times; the long names win over them."""
    query = HistoryQuery.from_parameters({"start": "1", "end": "2", "end_time_ms": "3"}, 100)
    assert (query.start_time_ms, query.end_time_ms) == (1, 3)


def test_limit_is_lowered_to_the_largest_page() -> None:
    """A larger wish is no fault; sockets have a cap of their own."""
    assert HistoryQuery.from_parameters({"limit": "1000"}, 100).limit == 100
    assert HistoryQuery.from_frame({"limit": 5000}, 9000).limit == MAX_FRAME_LIMIT


@pytest.mark.parametrize(("spelling", "meaning"), DIRECTIONS.items())
def test_spellings_of_directions(spelling: str, meaning: str) -> None:
    """Aliases mean what the contract says."""
    assert HistoryQuery.from_parameters({"direction": spelling}, 100).direction == meaning


@pytest.mark.parametrize("name", ["until_attach", "untilAttach"])
def test_until_attach(name: str) -> None:
    """Only a socket has attached to anything; over HTTP the parameter means nothing."""
    assert HistoryQuery.from_frame({name: True}, 100).until_attach
    assert not HistoryQuery.from_frame({name: False}, 100).until_attach
    assert HistoryQuery.from_frame({"params": {name: True}}, 100).until_attach
    assert not HistoryQuery.from_parameters({name: "true"}, 100).until_attach


def test_null_is_absent_in_a_frame() -> None:
    """Clients send null for what they do not ask."""
    given = dict.fromkeys(
        ["limit", "direction", "cursor", "start_serial", "end", "until_attach", "params"]
    )
    assert HistoryQuery.from_frame(given, 100) == HistoryQuery()


@pytest.mark.parametrize(
    "given",
    [
        {"limit": "0"},
        {"limit": ""},
        {"limit": "-1"},
        {"limit": "ten"},
        {"limit": "1.5"},
        {"limit": "\u0661"},
        {"limit": " 1"},
        {"limit": "9" * 5000},
        {"direction": ""},
        {"direction": "up"},
        {"direction": "Newest_First"},
        {"cursor": "x" * (MAX_CURSOR_BYTES + 1)},
        {"start_serial": "-1"},
        {"end_serial": str(MAX_INTEGER + 1)},
        {"start_serial": "2", "end_serial": "1"},
        {"start": "2", "end_time_ms": "1"},
    ],
)
def test_malformed_parameters(given: Mapping[str, str]) -> None:
    """A value that is no number, out of range or contradicting is refused, not guessed."""
    with pytest.raises(ValueError):
        HistoryQuery.from_parameters(given, 100)
    with pytest.raises(ValueError):
        HistoryQuery.from_frame(given, 100)


@pytest.mark.parametrize(
    "given",
    [
        {"limit": 0},
        {"limit": True},
        {"limit": 1.5},
        {"limit": []},
        {"direction": 5},
        {"direction": []},
        {"cursor": 5},
        {"start_serial": -1},
        {"end_serial": MAX_INTEGER + 1},
        {"until_attach": "true"},
        {"until_attach": 1},
        {"params": []},
        {"params": "{}"},
    ],
)
def test_malformed_values_of_a_frame(given: Mapping[str, Any]) -> None:
    """Values of another type are refused."""
    with pytest.raises(ValueError):
        HistoryQuery.from_frame(given, 100)
