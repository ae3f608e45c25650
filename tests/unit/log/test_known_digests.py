"""By what a node knows its log again."""

import pytest

from tidelog.log.draft import Draft, to_entry
from tidelog.log.known_digests import EACH, LEVELS, RECENT, KnownDigests
from tidelog.store.engine import GENESIS_DIGEST
from tidelog.store.rows import Entry


def log_of(count: int, text: str = "a") -> list[Entry]:
    """The first entries of a log; another text is another log."""
    entries: list[Entry] = []
    for position in range(1, count + 1):
        previous = entries[-1].digest if entries else GENESIS_DIGEST
        draft = Draft("s", "probe", "put", "e", "", "", text.encode())
        entries.append(to_entry(draft, position, position, 1, previous))
    return entries


def seen_of(entries: list[Entry]) -> KnownDigests:
    """What a node has seen that followed a log from its beginning."""
    seen = KnownDigests(0, GENESIS_DIGEST)
    for entry in entries:
        seen.note(entry.committed_id, entry.digest)
    return seen


def test_only_the_next_entry_of_the_same_log_follows() -> None:
    """Not one that is further, earlier, or at the right position of another log."""
    entries, others = log_of(5), log_of(5, "b")
    seen = seen_of(entries[:3])
    assert seen.is_followed_by(entries[3])
    for entry in (entries[4], entries[2], others[3]):
        assert not seen.is_followed_by(entry)
    assert KnownDigests(0, GENESIS_DIGEST).is_followed_by(entries[0])


@pytest.mark.parametrize(
    ("ends_at", "text", "is_missing"),
    [(3, "a", False), (5, "a", False), (5, "b", False), (3, "b", True), (2, "a", True)],
)
def test_a_log_that_ends_earlier_or_otherwise_is_another(
    ends_at: int, text: str, *, is_missing: bool
) -> None:
    """Of one that goes on, only the next entry tells."""
    end = log_of(ends_at, text)[-1]
    assert seen_of(log_of(3)).last.is_missing_from(end.committed_id, end.digest) is is_missing


def test_the_last_places_are_all_kept_and_ever_fewer_before_them() -> None:
    """However far back the log was taken, a position about as far back is known; few are kept."""
    seen = KnownDigests(0, bytes(16))
    for position in range(1, 200_001):
        seen.note(position, position.to_bytes(16, "big"))
    positions = [each.position for each in seen.kept]
    assert positions[0] == 0
    assert positions[-RECENT:] == list(range(200_001 - RECENT, 200_001))
    assert len(positions) <= RECENT + EACH * LEVELS + 1
    assert all(each.digest == each.position.to_bytes(16, "big") for each in seen.kept)
    for lost in (1, 31, 32, 100, 1000, 10_000, 40_000):
        common = max(position for position in positions if position <= 200_000 - lost)
        assert 200_000 - common <= max(RECENT, 5 * lost)
