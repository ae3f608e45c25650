"""Channel names: which are names, and what they say about the channel."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.channels.protocol.names import (
    CHARACTERS,
    ChannelKind,
    is_cache,
    is_socket_id,
    kind_of,
    name_fault,
    needs_auth,
    split_stream,
    stream_name,
    takes_client_events,
    user_of,
)

NAMES = st.text(st.sampled_from(sorted(CHARACTERS)), min_size=1, max_size=200)


@pytest.mark.parametrize(
    ("channel", "kind", "auth", "events"),
    [
        ("lab", ChannelKind.PUBLIC, False, False),
        ("private", ChannelKind.PUBLIC, False, False),
        ("Private-x", ChannelKind.PUBLIC, False, False),
        ("cache-x", ChannelKind.PUBLIC, False, False),
        ("#server-to-users", ChannelKind.PUBLIC, False, False),
        ("private-", ChannelKind.PRIVATE, True, True),
        ("private-ai:user-42:x", ChannelKind.PRIVATE, True, True),
        ("private-cache-x", ChannelKind.PRIVATE, True, True),
        ("presence-lab", ChannelKind.PRESENCE, True, True),
        ("private-encrypted-x", ChannelKind.ENCRYPTED, True, False),
        ("#server-to-user-ana", ChannelKind.USER, False, False),
    ],
)
def test_the_beginning_decides_the_kind(
    channel: str, kind: ChannelKind, auth: bool, events: bool
) -> None:
    """The prefix alone says who may subscribe and whether clients may send events."""
    assert kind_of(channel) is kind
    assert needs_auth(kind) is auth
    assert takes_client_events(kind) is events


@pytest.mark.parametrize(
    ("channel", "expected"),
    [
        ("cache-x", True),
        ("private-cache-x", True),
        ("presence-cache-x", True),
        ("private-encrypted-cache-x", True),
        ("x-cache-", False),
        ("cache", False),
        ("private-x", False),
    ],
)
def test_cache_channels(channel: str, expected: bool) -> None:
    """Four beginnings make a cache channel, and nothing else does."""
    assert is_cache(channel) is expected


@given(NAMES)
def test_every_allowed_name_is_a_name_and_names_a_stream(channel: str) -> None:
    """A name of allowed characters is accepted, and its stream leads back to it."""
    assert name_fault(channel, 200) is None
    assert split_stream(stream_name("app-1", channel)) == ("app-1", channel)


@pytest.mark.parametrize(
    "channel",
    ["", "a b", "a/b", "a*", "orders.*", "a\n", "\n", "caf\u00e9", "a%3A", "a+b", "\u0661", "a\0"],
)
def test_other_characters_make_no_name(channel: str) -> None:
    """Slashes, stars, white space and everything beyond ASCII are refused."""
    assert name_fault(channel, 200) is not None


def test_a_name_has_a_length() -> None:
    """The limit itself is allowed, one more is not."""
    assert name_fault("x" * 200, 200) is None
    assert name_fault("x" * 201, 200) == (
        "a channel name has at most 200 bytes (setting channels.max_channel_name_bytes)"
    )


@pytest.mark.parametrize("stream", ["", "channels", "channels/a", "sync/a/b", "channels/a/b/c"])
def test_other_streams_hold_no_channel(stream: str) -> None:
    """A stream of another surface is not taken for a channel's."""
    with pytest.raises(ValueError):
        split_stream(stream)


def test_whose_channel_it_is() -> None:
    """Only a user's channel has a user, and an empty one is nobody's."""
    assert user_of("#server-to-user-ana") == "ana"
    assert user_of("#server-to-user-") is None
    assert user_of("private-ana") is None


@pytest.mark.parametrize("text", ["0.0", "8123.44", "10000000000.10000000000", "007.1"])
def test_socket_ids(text: str) -> None:
    """Two numbers up to 10^10 with a dot between them."""
    assert is_socket_id(text)


@pytest.mark.parametrize(
    "text",
    ["", "1", "1.", ".1", "1.2.3", "-1.2", "1.2 ", "1.2\n", "10000000001.1", "\u0661.1", "1e3.1"],
)
def test_what_is_no_socket_id(text: str) -> None:
    """Everything else is refused, also digits of other scripts."""
    assert not is_socket_id(text)
