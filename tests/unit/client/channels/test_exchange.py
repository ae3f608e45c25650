"""What a publisher makes of the bytes that a server returns."""

import pytest

from tidelog.client.channels.exchange import MAX_HEAD_BYTES, AnswerReader

HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize("piece", [b"y" * 4096, b"name: value\r\n" * 300], ids=["one", "many"])
def test_headers_without_an_end_are_given_up(piece: bytes) -> None:
    """As a body is that has none."""
    reader = AnswerReader()
    reader.feed(HEAD + (b"x: " if piece.startswith(b"y") else b""))
    for _ in range(MAX_HEAD_BYTES // len(piece) - 1):
        assert reader.feed(piece) is None
    with pytest.raises(OSError, match="too large"):
        reader.feed(piece + piece)


def test_a_response_in_pieces() -> None:
    """Byte by byte it is the same."""
    reader = AnswerReader()
    whole = HEAD + b"retry-after: 3\r\ncontent-length: 2\r\n\r\n{}"
    *before, answer = [reader.feed(whole[at : at + 1]) for at in range(len(whole))]
    assert before == [None] * len(before)
    assert answer is not None
    assert (answer.status, answer.retry_after, answer.body) == (200, "3", b"{}")
