"""Versions that keep the data: how they are folded, kept in memory and filled in."""

import pytest
from msgspec import UNSET, Raw, UnsetType

from tidelog.channels.decide.state import ENDED_VERSIONS, UNFOLDED_BYTES, MessageState
from tidelog.channels.front.reads import version_data as module
from tidelog.channels.front.reads.version_data import DataFollower
from tidelog.channels.protocol.verbs import APPEND, CREATE, DELETE, UPDATE
from tidelog.channels.protocol.version import Version, fold, origin_of

SERIAL = f"{0:020d}:log:{1:020d}"


def version(
    number: int,
    kind: str,
    data: str | None = None,
    *,
    data_of: int = 0,
    data_bytes: int = 1,
    opens: int = 0,
    message: str = SERIAL,
) -> Version:
    """A version at this position."""
    return Version(
        kind=kind,
        message_id=f"m{number}",
        history_serial=1,
        data=UNSET if data is None else Raw(b'"%s"' % data.encode()),
        data_of=data_of,
        data_bytes=data_bytes,
        opens=opens,
        committed_id=number,
        message_serial=message,
    )


def text(data: Raw | UnsetType | bytes | None) -> str | None:
    """What some data says."""
    return None if data is None or isinstance(data, UnsetType) else bytes(data).decode()[1:-1]


STORY = (
    version(1, CREATE, "a"),
    version(2, UPDATE, data_of=1),
    version(3, APPEND, "b"),
    version(4, DELETE, data_of=1),
    version(5, UPDATE, "c"),
    version(6, APPEND, "d"),
    version(7, UPDATE, data_of=5),
    version(8, UPDATE),
    version(9, APPEND, "e"),
    version(10, DELETE, data_of=8),
)
SAID = ("a", "a", "ab", "ab", "c", "cd", "cd", None, "e", "e")
ORIGINS = (1, 1, 1, 1, 5, 5, 5, 8, 8, 8)


def test_a_fold_keeps_what_is_kept() -> None:
    """Wherever it begins, and it says which version said the data."""
    for begin in range(len(STORY)):
        base = fold(None, STORY[:begin])
        for end in range(begin, len(STORY)):
            folded = fold(base, STORY[begin : end + 1])
            assert folded is not None
            assert (text(folded.data), origin_of(folded)) == (SAID[end], ORIGINS[end])


def test_a_state_in_memory_follows_and_can_be_taken_back() -> None:
    """It knows the data at every version since the one that said it."""
    state = MessageState("s", 1, STORY[0])
    undone = []
    for number, each in enumerate(STORY[1:], start=1):
        undone.append(state.advance(each, is_folded=False))
        assert (text(state.folded().data), origin_of(state.latest)) == (
            SAID[number],
            ORIGINS[number],
        )
        assert state.has_data is (SAID[number] is not None)
        for earlier in range(number + 1):
            if state.knows(earlier + 1):
                assert text(state.data_at(earlier + 1)) == SAID[earlier]
        assert state.knows(ORIGINS[number])
    for number, before in reversed(list(enumerate(undone))):
        state.take_back(before)
        assert (text(state.folded().data), origin_of(state.latest)) == (
            SAID[number],
            ORIGINS[number],
        )


def test_a_state_from_before_does_not_know_its_origin() -> None:
    """It was stored after an append, without a word of what that built on."""
    base = version(6, APPEND, "cd")
    assert origin_of(base) == 0
    kept = fold(base, [version(7, UPDATE, data_of=1)])
    assert kept is not None
    assert (text(kept.data), origin_of(kept)) == ("cd", 1)


def test_a_change_of_status_is_written_back_for_much_and_not_for_little() -> None:
    """A message that was streamed is stored as a whole at its end; one that is large is not."""
    size = 100 * UNFOLDED_BYTES
    large = MessageState("s", 1, version(1, CREATE, "a", data_bytes=size))
    toggles = 0
    while toggles < ENDED_VERSIONS - 2:
        toggle = version(2 + toggles, UPDATE, data_of=1, data_bytes=size, opens=1)
        assert not large.is_fold_due(toggle)
        assert large.bytes_to_write(0, is_other_status=True) == 0
        large.advance(toggle, is_folded=False)
        toggles += 1
    last = version(2 + toggles, UPDATE, data_of=1, data_bytes=size, opens=-1)
    assert large.is_fold_due(last)
    assert large.bytes_to_write(5, is_other_status=True) == size + 10
    streamed = MessageState("s", 1, version(1, CREATE, "a", opens=1))
    streamed.advance(version(2, APPEND, "b", data_bytes=2), is_folded=False)
    assert streamed.is_fold_due(version(3, UPDATE, data_of=1, data_bytes=2, opens=-1))


class Reads:
    """Reads of whole data, counted."""

    def __init__(self) -> None:
        self.of: list[int] = []

    async def __call__(self, version: Version) -> bytes | None:
        """See `tidelog.channels.front.reads.version_data.Read`."""
        self.of.append(version.committed_id)
        said = SAID[version.committed_id - 1]
        return None if said is None else b'"%s"' % said.encode()


async def test_a_reader_reads_data_once_for_all_that_keep_it() -> None:
    """Wherever it begins, what it says is what the message was then."""
    for begin in range(len(STORY)):
        reads = Reads()
        follower = DataFollower(reads)
        for number, each in enumerate(STORY[begin:], start=begin):
            follower.follow(each)
            if each.keeps_data or each.kind == APPEND:
                assert text(await follower.whole(each)) == SAID[number]
        assert len(reads.of) <= 2, "where it begins, and after the data was cleared"
    assert await DataFollower(Reads()).whole(STORY[7]) is None


async def test_a_reader_keeps_few_messages_in_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one it passed first is read again; the last one is kept, however large."""
    monkeypatch.setattr(module, "KNOWN_BYTES", 7)
    reads = Reads()
    follower = DataFollower(reads)
    for message in ("m1", "m2", "m3"):
        follower.follow(version(1, CREATE, "a", message=message))
    for message, count in (("m3", 0), ("m2", 0), ("m1", 1), ("m1", 1), ("m2", 2)):
        await follower.whole(version(2, UPDATE, data_of=1, message=message))
        assert len(reads.of) == count, message
    follower.follow(version(3, UPDATE, "much too long", message="m3"))
    assert (
        text(await follower.whole(version(4, UPDATE, data_of=3, message="m3"))) == "much too long"
    )
