"""permessage-deflate: what is agreed on, and messages judged by `websockets`' own extension."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import Frame, Opcode

from tidelog.base.net.frame import PING, TEXT, frame, text_frame
from tidelog.web.deflate import MAX_BYTES, MIN_BYTES, agree, deflated, inflated
from tidelog.web.reader import (
    COMPRESSED,
    CONTINUATION,
    INVALID_TEXT,
    PROTOCOL_ERROR,
    TOO_BIG,
    FrameReader,
    Violation,
)
from unit.web.recording import client_frame, server_frames

AGREED = b"permessage-deflate; server_no_context_takeover; client_no_context_takeover"
WINDOW = b"; server_max_window_bits=12"


def peer() -> PerMessageDeflate:
    """The extension as a client has it after such a reply."""
    return PerMessageDeflate(True, True, 12, 15)


def compressed(message: bytes) -> bytes:
    """A message as a client sends it."""
    return bytes(peer().encode(Frame(Opcode.TEXT, message)).data)


@pytest.mark.parametrize(
    ("offers", "agreed"),
    [
        ([], None),
        ([b"permessage-bzip2"], None),
        ([b"permessage-deflate"], AGREED),
        ([b"Permessage-Deflate ; Client_Max_Window_Bits"], AGREED),
        ([b'permessage-deflate; client_max_window_bits="10"'], AGREED),
        ([b"permessage-deflate; server_no_context_takeover; client_no_context_takeover"], AGREED),
        (
            [b"permessage-deflate; server_max_window_bits=15"],
            AGREED + b"; server_max_window_bits=12",
        ),
        ([b"permessage-deflate; server_max_window_bits=9"], None),
        ([b"permessage-deflate; server_max_window_bits"], None),
        ([b"permessage-deflate; server_max_window_bits=16"], None),
        ([b"permessage-deflate; client_max_window_bits=08"], None),
        ([b"permessage-deflate; server_no_context_takeover=1"], None),
        ([b"permessage-deflate; client_max_window_bits; client_max_window_bits"], None),
        ([b"permessage-deflate; unknown"], None),
        ([b"permessage-deflate; server_max_window_bits=9, permessage-deflate"], AGREED),
        ([b"other; x=1", b"permessage-deflate"], AGREED),
    ],
)
def test_the_first_offer_that_can_be_met_is_agreed_on(
    offers: list[bytes], agreed: bytes | None
) -> None:
    """A malformed offer, or one that asks for a smaller window than ours, is passed over."""
    assert agree(offers) == agreed


@given(st.lists(st.binary(max_size=400) | st.text(max_size=400).map(str.encode), max_size=5))
def test_a_client_restores_what_was_compressed(messages: list[bytes]) -> None:
    """Several frames in one buffer stay apart; none becomes larger."""
    frames = b"".join(frame(TEXT, each * 3) for each in messages)
    made = deflated(frames)
    assert len(made) <= len(frames)
    restored, at = [], 0
    for opcode, payload in server_frames(made):
        is_compressed = bool(made[at] & COMPRESSED)
        at += len(frame(opcode, payload))
        read = Frame(Opcode(opcode), payload, rsv1=is_compressed)
        restored.append(bytes(peer().decode(read).data))
    assert restored == [each * 3 for each in messages]


@pytest.mark.parametrize(
    "plain",
    [
        text_frame(b"a" * (MIN_BYTES - 1)),
        text_frame(b"a" * (MAX_BYTES + 1)),
        frame(PING, b"a" * 125),
        text_frame(zlib.compress(bytes(range(256)) * 4)[:200]),
    ],
    ids=["small", "large", "control", "dense"],
)
def test_what_is_not_worth_it_stays_as_it_is(plain: bytes) -> None:
    """Too small, too large, a control frame, or no smaller for it."""
    assert deflated(plain) == plain


@given(st.binary(max_size=5000), st.integers(min_value=1, max_value=5))
def test_the_reader_restores_what_a_client_compressed(message: bytes, parts: int) -> None:
    """Whole or in fragments, beside messages that are not compressed."""
    data = compressed(message)
    step = len(data) // parts + 1
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    sent = b"".join(
        client_frame(
            0x2 if number == 0 else CONTINUATION,
            piece,
            fin=number == len(pieces) - 1,
            reserved=4 if number == 0 else 0,
        )
        for number, piece in enumerate(pieces)
    )
    reader = FrameReader(5000, inflated)
    reader.feed(client_frame(TEXT, b"before") + sent + client_frame(TEXT, b"after"))
    taken = [reader.take() for _ in range(3)]
    assert taken == [(TEXT, b"before"), (0x2, message), (TEXT, b"after")]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (client_frame(TEXT, compressed(b"\0" * 1_000_000), reserved=4), TOO_BIG),
        (client_frame(TEXT, compressed(b"a" * 1001), reserved=4), TOO_BIG),
        (client_frame(TEXT, b"\xff\xff\xff", reserved=4), INVALID_TEXT),
        (client_frame(TEXT, compressed(b"\xff" * 500), reserved=4), INVALID_TEXT),
        (client_frame(PING, b"", reserved=4), PROTOCOL_ERROR),
        (client_frame(TEXT, b"", reserved=2), PROTOCOL_ERROR),
        (client_frame(TEXT, b"", reserved=6), PROTOCOL_ERROR),
        (client_frame(TEXT, b"x", fin=False) + client_frame(0, b"", reserved=4), PROTOCOL_ERROR),
    ],
    ids=["bomb", "one more", "garbage", "no text", "control", "bit 2", "two bits", "continuation"],
)
def test_what_a_client_may_not_send(sent: bytes, code: int) -> None:
    """A message that becomes too large is refused with no more of it restored."""
    reader = FrameReader(1000, inflated)
    reader.feed(sent)
    with pytest.raises(Violation) as refused:
        reader.take()
    assert refused.value.code == code


def test_nothing_is_compressed_without_an_agreement() -> None:
    """The bit is a violation then, as any reserved one."""
    reader = FrameReader(1000)
    reader.feed(client_frame(TEXT, compressed(b"a" * 200), reserved=4))
    with pytest.raises(Violation) as refused:
        reader.take()
    assert refused.value.code == PROTOCOL_ERROR


def test_a_message_of_exactly_the_largest_size_is_taken() -> None:
    """The limit is what the message has when it is restored."""
    assert inflated(compressed(b"a" * 1000), 1000) == b"a" * 1000
