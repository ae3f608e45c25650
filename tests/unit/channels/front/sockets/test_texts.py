"""The texts that a front keeps of messages that may be changed."""

import asyncio
from collections.abc import Container
from typing import Any, cast

import pytest
from msgspec import UNSET, Raw

from tidelog.channels.front.sockets import texts as module
from tidelog.channels.front.sockets.texts import Texts
from tidelog.channels.messages import Erased
from tidelog.channels.protocol import growing_text
from tidelog.channels.protocol.verbs import APPEND, CREATE, UPDATE
from tidelog.channels.protocol.version import EVENT, Version

STREAM = "channels/a/room"


def version(at: int, data: str | None, kind: str = APPEND, *, of: int = 1, **more: Any) -> Version:
    """A version of message `of` at a position."""
    return Version(
        message_id=f"i{at}",
        history_serial=1,
        kind=kind,
        committed_id=at,
        message_serial=f"{0:020d}:log:{of:020d}",
        data=UNSET if data is None else Raw(f'"{data}"'.encode()),
        data_bytes=len(data or ""),
        **more,
    )


def streaming(at: int, data: str) -> Version:
    """A message that begins to be written."""
    return version(at, data, CREATE, of=at, opens=1)


def followed(*versions: Version, room: int = 10**6, streams: Container[str] = (STREAM,)) -> Texts:
    """Texts that have seen these versions, of a channel with subscribers."""
    texts = Texts(cast("Any", None), room, is_followed=lambda stream: stream in streams)
    for each in versions:
        number = int(each.message_serial[-20:])
        texts.follow(STREAM, each, number, is_wanted=True)
    return texts


@pytest.fixture(autouse=True)
def soon_collapsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fragments are joined after three."""
    monkeypatch.setattr(growing_text, "COLLAPSE_AT", 3)
    monkeypatch.setattr(growing_text, "COLLAPSE_TO", 1)


def test_a_stream_is_followed_from_its_beginning() -> None:
    """Every append finds the whole text, and so does a version that keeps it."""
    versions = [streaming(1, "a"), version(2, "b"), version(3, "c"), version(4, "d")]
    texts = followed()
    for number, each in enumerate(versions):
        texts.follow(STREAM, each, 1, is_wanted=True)
        assert texts.at(each, 1) == f'"{"abcd"[: number + 1]}"'.encode()
    kept = version(5, None, UPDATE, data_of=1, opens=-1)
    texts.follow(STREAM, kept, 1, is_wanted=True)
    assert texts.at(kept, 1) == b'"abcd"'
    assert texts.at(version(9, "later"), 1) is None, "it has not come"
    texts.follow(STREAM, version(6, "new", UPDATE), 1, is_wanted=True)
    assert texts.at(version(7, "x"), 1) is None
    texts.follow(STREAM, version(7, "x"), 1, is_wanted=True)
    assert texts.at(version(7, "x"), 1) == b'"newx"'


def test_only_what_somebody_may_be_sent_is_kept() -> None:
    """What cannot change, began earlier or has no subscribers costs nothing."""
    texts = followed(version(1, "a", EVENT), version(3, "b", of=2))
    assert texts.at(version(1, "a", EVENT), 1) is None
    assert texts.at(version(3, "b", of=2), 2) is None
    texts.follow(STREAM, streaming(3, "a"), 3, is_wanted=False)
    assert texts.at(streaming(3, "a"), 3) is None


def test_the_least_recently_written_go_when_there_is_no_room() -> None:
    """By their bytes, and by their number."""
    room = 3 * module.TEXT_BYTES
    texts = followed(streaming(1, "a"), streaming(2, "b"), version(3, "c"), room=room)
    texts.follow(STREAM, streaming(4, "d"), 4, is_wanted=True)
    assert texts.at(streaming(2, "b"), 2) is None
    assert texts.at(version(3, "c"), 1) == b'"ac"'
    texts.forget(Erased((STREAM,), through=4))
    assert texts._bytes == 0


def test_what_is_erased_is_forgotten() -> None:
    """By message, or by channel up to one; also while it is being read."""
    first, second, third = streaming(1, "a"), streaming(2, "b"), streaming(3, "c")
    texts = followed(first, second, third)
    texts.forget(Erased((STREAM,), (2,)))
    texts.forget(Erased(("channels/a/other",), through=9))
    assert [texts.at(each, each.committed_id) for each in (first, second, third)] == [
        b'"a"',
        None,
        b'"c"',
    ]
    texts.forget(Erased((STREAM,), through=1))
    assert texts.at(first, 1) is None
    texts.clear()
    assert texts.at(third, 3) is None
    assert texts._bytes == 0


def test_what_is_followed_no_more_is_forgotten() -> None:
    """It would miss what comes meanwhile; a channel that is still followed keeps its texts."""
    streams = [STREAM]
    first = streaming(1, "a")
    texts = followed(first, streams=streams)
    texts.leave(STREAM)
    assert texts.at(first, 1) == b'"a"'
    streams.clear()
    texts.leave(STREAM)
    assert texts.at(first, 1) is None
    texts.follow(STREAM, version(3, "c"), 1, is_wanted=True)
    assert texts.at(version(3, "c"), 1) is None
    assert (texts._bytes, texts._numbers) == (0, {})


def test_fragments_that_were_joined_weigh_nothing_apart() -> None:
    """A long stream must not take the room of others for what it does not hold."""
    texts = followed(streaming(1, "a"), *(version(at, "b") for at in range(2, 200)))
    assert texts._bytes < module.TEXT_BYTES + 200 * len('"b"') + 3 * growing_text.FRAGMENT_BYTES


async def test_what_is_not_followed_is_read_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever resumes before a subscribe is sent it from the store."""

    async def read_data(store: Any, wanted: Version) -> bytes | None:
        del store
        return f'"stored {wanted.committed_id}"'.encode()

    monkeypatch.setattr(module, "read_data", read_data)
    texts = followed(streams=())
    assert await texts.read(STREAM, version(2, "b")) == b'"stored 2"'
    texts.follow(STREAM, version(4, "d"), 1, is_wanted=True)
    assert texts.at(version(4, "d"), 1) is None


@pytest.mark.parametrize("is_erased", [False, True])
async def test_what_comes_while_a_text_is_read_is_not_missed(
    monkeypatch: pytest.MonkeyPatch, is_erased: bool
) -> None:
    """It is included when the text is there; one that was erased meanwhile is not kept."""
    reading, go_on = asyncio.Event(), asyncio.Event()
    reads: list[int] = []

    async def read_message(store: Any, stream: str, number: int) -> Any:
        del store, stream
        reads.append(number)
        reading.set()
        await go_on.wait()
        return version(2, "ab", CREATE), 2, 2

    async def read_data(store: Any, wanted: Version) -> bytes | None:
        del store
        return f'"stored {wanted.committed_id}"'.encode()

    monkeypatch.setattr(module, "read_message", read_message)
    monkeypatch.setattr(module, "read_data", read_data)
    texts = followed()
    both = [asyncio.create_task(texts.read(STREAM, version(2, "b"))) for _ in range(2)]
    await reading.wait()
    texts.follow(STREAM, version(2, "b"), 1, is_wanted=True)
    texts.follow(STREAM, version(3, "c"), 1, is_wanted=True)
    if is_erased:
        texts.forget(Erased((STREAM,), (1,)))
    go_on.set()
    expected = b'"stored 2"' if is_erased else b'"ab"'
    assert await asyncio.gather(*both) == [expected, expected]
    assert reads == [1]
    assert texts.at(version(3, "c"), 1) == (None if is_erased else b'"abc"')
    earlier = await texts.read(STREAM, version(1, "a"))
    assert earlier == (b'"stored 1"')
