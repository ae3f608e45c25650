"""FrameReader: messages out of bytes, and every violation of RFC 6455 found."""

import pytest

from tidelog.base.net.frame import BINARY, CLOSE, PING, PONG, TEXT
from tidelog.web.reader import CONTINUATION, FrameReader, Violation, close_code
from unit.web.recording import client_frame


def read(reader: FrameReader, *chunks: bytes) -> list[tuple[int, bytes]]:
    """Everything that can be taken while the chunks are fed one by one."""
    taken = []
    for chunk in chunks:
        reader.feed(chunk)
        while (item := reader.take()) is not None:
            taken.append(item)
    return taken


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536, 100_000])
@pytest.mark.parametrize("step", [1, 7, 4096, 1 << 20])
def test_every_length_in_any_pieces(size: int, step: int) -> None:
    """A message of any length form arrives intact however its bytes are cut."""
    if size > 1000 and step < 4096:
        step = 1021
    payload = bytes(i % 251 for i in range(size))
    stream = client_frame(BINARY, payload) + client_frame(TEXT, b"next")
    chunks = [stream[at : at + step] for at in range(0, len(stream), step)]
    assert read(FrameReader(1 << 20), *chunks) == [(BINARY, payload), (TEXT, b"next")]


def test_fragments_with_control_frames_between() -> None:
    """Fragments become one message; control frames between them come out at once, before it."""
    stream = (
        client_frame(TEXT, "gr\u00fc".encode()[:3], fin=False)
        + client_frame(PING, b"now")
        + client_frame(CONTINUATION, b"", fin=False)
        + client_frame(PONG)
        + client_frame(CONTINUATION, "gr\u00fcn".encode()[3:])
    )
    expected = [(PING, b"now"), (PONG, b""), (TEXT, "gr\u00fcn".encode())]
    assert read(FrameReader(100), stream) == expected
    assert read(FrameReader(100), *(bytes((byte,)) for byte in stream)) == expected


def test_taking_may_stop_in_the_middle_of_a_chunk() -> None:
    """What was fed and not taken is kept when more is fed."""
    reader = FrameReader(100)
    reader.feed(client_frame(TEXT, b"1") + client_frame(TEXT, b"2"))
    assert reader.take() == (TEXT, b"1")
    assert read(reader, client_frame(TEXT, b"3")) == [(TEXT, b"2"), (TEXT, b"3")]


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        pytest.param(client_frame(TEXT, reserved=4), 1002, id="rsv1"),
        pytest.param(client_frame(TEXT, reserved=2), 1002, id="rsv2"),
        pytest.param(client_frame(PING, reserved=1), 1002, id="rsv3"),
        pytest.param(client_frame(3), 1002, id="reserved data opcode"),
        pytest.param(client_frame(0xB), 1002, id="reserved control opcode"),
        pytest.param(client_frame(TEXT, b"x", mask=None), 1002, id="unmasked"),
        pytest.param(client_frame(PING, b"x" * 126), 1002, id="long ping"),
        pytest.param(client_frame(CLOSE, fin=False), 1002, id="fragmented close"),
        pytest.param(client_frame(CONTINUATION), 1002, id="continuation alone"),
        pytest.param(
            client_frame(TEXT, fin=False) + client_frame(BINARY), 1002, id="message in message"
        ),
        pytest.param(b"\x82\xfe\x00\x7d", 1002, id="16-bit length of a short frame"),
        pytest.param(b"\x82\xff" + (65535).to_bytes(8, "big"), 1002, id="64-bit length, too small"),
        pytest.param(b"\x82\xff\x80" + bytes(7), 1002, id="64-bit length, top bit"),
        pytest.param(client_frame(TEXT, b"\xed\xa0\x80"), 1007, id="surrogate"),
        pytest.param(client_frame(TEXT, b"\xc3"), 1007, id="cut UTF-8"),
        pytest.param(
            client_frame(TEXT, b"\xc3", fin=False) + client_frame(CONTINUATION, b"\xc3"),
            1007,
            id="UTF-8 broken across fragments",
        ),
        pytest.param(client_frame(BINARY, bytes(200))[:4], 1009, id="too large, header only"),
        pytest.param(
            client_frame(BINARY, bytes(60), fin=False) + client_frame(CONTINUATION, bytes(60))[:2],
            1009,
            id="fragments too large, header only",
        ),
        pytest.param(b"\x82\xff\x7f" + bytes(7), 1009, id="2**63 - 1 bytes announced"),
    ],
)
def test_violations(stream: bytes, code: int) -> None:
    """Each violation is found with the RFC's close code as soon as its header is complete."""
    with pytest.raises(Violation) as caught:
        read(FrameReader(100), *(bytes((byte,)) for byte in stream))
    assert caught.value.code == code


def test_the_largest_message_is_allowed() -> None:
    """A message of exactly the limit passes, whole or in fragments."""
    reader = FrameReader(100)
    stream = client_frame(BINARY, bytes(40), fin=False) + client_frame(CONTINUATION, bytes(60))
    assert read(reader, client_frame(BINARY, bytes(100)), stream) == [(BINARY, bytes(100))] * 2


@pytest.mark.parametrize("code", [1000, 1001, 1003, 1007, 1011, 1014, 3000, 4999])
def test_close_codes_that_may_be_sent(code: int) -> None:
    """A close frame's code is read, with and without a reason."""
    assert close_code(code.to_bytes(2, "big")) == code
    assert close_code(code.to_bytes(2, "big") + "schl\u00fcss".encode()) == code


def test_close_without_a_code() -> None:
    """An empty close frame reads as 1005."""
    assert close_code(b"") == 1005


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"\x03", 1002),
        *((code.to_bytes(2, "big"), 1002) for code in (0, 999, 1004, 1005, 1006, 1015, 2999, 5000)),
        (b"\x03\xe8\xff", 1007),
    ],
)
def test_close_payloads_that_may_not(payload: bytes, code: int) -> None:
    """A one-byte payload, a code that must not be sent and a reason that is not UTF-8 are found."""
    with pytest.raises(Violation) as caught:
        close_code(payload)
    assert caught.value.code == code
