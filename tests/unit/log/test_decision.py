"""The view that decisions see: what was loaded plus what the batch accepted, all or nothing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.base.data.digest import entry_digest
from tidelog.log.decision import Accept, RowChange, View
from tidelog.log.dedupe import DedupeRow, KeyUse, key_use
from tidelog.log.draft import Draft
from tidelog.log.retention import PRUNE_ENTRIES, empty_bodies
from tidelog.store.engine import GENESIS_DIGEST
from tidelog.store.rows import Becomes, Effects, Head, Loaded


def loaded(*streams: str, committed_id: int = 0, committed_at: int = 0) -> Loaded:
    """What an engine found: the named streams are new, so are the keys `k1` and `k2`."""
    return Loaded(
        head=Head(committed_id, GENESIS_DIGEST, committed_at, "L", "I"),
        others=[],
        dedupe={("scope", "k1"): None, ("scope", "k2"): None},
        serials=dict.fromkeys(streams, 0),
        rows={("query", ("a",)): ((1,),)},
    )


def draft(stream: str, body: bytes = b"{}") -> Draft:
    """Something to append."""
    return Draft(stream, "probe", "put", "e", "", "", body)


def row(key: str, fingerprint: bytes = b"f") -> DedupeRow:
    """A key to remember."""
    return DedupeRow("scope", key, 1, fingerprint, "", b"{}", 1, 0, None)


def state(view: View) -> tuple[Any, ...]:
    """Everything a view holds."""
    effects = view.effects()
    return (
        view.next_committed_id,
        view._digest,
        dict(view._dedupe),
        dict(view._serials),
        dict(view._rows),
        None if effects is None else [list(effects.entries), list(effects.dedupe)],
        None if effects is None else list(effects.changes),
    )


def test_a_fresh_view_has_no_effects() -> None:
    """A batch in which all refuse writes nothing."""
    assert View(loaded("s"), 5).effects() is None


def test_later_decisions_see_earlier_ones() -> None:
    """Serials, positions, keys and rows are as the accepted decision left them."""
    view = View(loaded("s", "t", committed_id=10), 5)
    change = RowChange("statement", (2,), Becomes("query", ("a",), ((2,),)))
    accepted = Accept("ok", (draft("s"), draft("t"), draft("s")), (row("k1"),), (change,))
    entries = view.accept(accepted)
    assert [(e.committed_id, e.stream, e.stream_serial) for e in entries] == [
        *((11, "s", 1), (12, "t", 1), (13, "s", 2)),
    ]
    assert (view.serial("s"), view.serial("t"), view.next_committed_id) == (2, 1, 14)
    assert view.dedupe("scope", "k1") == row("k1")
    assert view.dedupe("scope", "k2") is None
    assert view.rows("query", ("a",)) == ((2,),)
    assert view.effects() == Effects(13, entries[-1].digest, 5, entries, [row("k1")], [], [change])


def test_entries_of_a_batch_are_one_chain() -> None:
    """Each entry's digest is made from the one before it, across decisions."""
    view = View(loaded("s"), 5)
    entries = [view.accept(Accept("ok", (draft("s", b"%d" % n),)))[0] for n in range(3)]
    previous = GENESIS_DIGEST
    for entry in entries:
        assert entry.digest == entry_digest(previous, *entry[:9], entry.body_digest)
        previous = entry.digest


@given(st.lists(st.sampled_from(["s", "t", "unnamed"]), max_size=5))
def test_accept_is_all_or_nothing(streams: list[str]) -> None:
    """A decision that appends to a stream it did not name leaves the view as it was."""
    view = View(loaded("s", "t"), 5)
    view.accept(Accept("ok", (draft("s"),), (row("k1"),)))
    before = state(view)
    change = RowChange("statement", (2,), Becomes("query", ("a",), ((2,),)))
    accepted = Accept("ok", tuple(map(draft, streams)), (row("k2"),), (change,))
    if "unnamed" in streams:
        with pytest.raises(KeyError):
            view.accept(accepted)
        assert state(view) == before
    else:
        view.accept(accepted)
        assert state(view) != before


def test_what_was_not_named_is_not_there() -> None:
    """Asking for anything else is a KeyError, not an empty answer."""
    view = View(loaded("s"), 5)
    for ask in (
        lambda: view.serial("t"),
        lambda: view.dedupe("scope", "k3"),
        lambda: view.rows("query", ("b",)),
    ):
        with pytest.raises(KeyError):
            ask()


@given(st.integers(0, 10), st.integers(0, 10))
def test_time_never_precedes_the_head(now_ms: int, committed_at: int) -> None:
    """The batch is dated by the clock, or by the head if that is later."""
    view = View(loaded("s", committed_at=committed_at), now_ms)
    [entry] = view.accept(Accept("ok", (draft("s"),)))
    assert entry.committed_at == view.now_ms == max(now_ms, committed_at)


def test_a_change_without_entries_keeps_the_position() -> None:
    """Effects that append nothing leave the head where it was."""
    view = View(loaded("s", committed_id=10), 5)
    view.accept(Accept("ok", rows=(RowChange("statement", (1,)),)))
    effects = view.effects()
    assert effects is not None
    assert (effects.committed_id, effects.digest, effects.entries) == (10, GENESIS_DIGEST, [])


@pytest.mark.parametrize(
    ("known", "expected"),
    [(None, KeyUse.NEW), (row("k", b"f"), KeyUse.REPEATED), (row("k", b"g"), KeyUse.CONFLICTING)],
)
def test_what_a_known_key_means(known: DedupeRow | None, expected: KeyUse) -> None:
    """No row: new. Same fingerprint: the stored answer. Another fingerprint: a conflict."""
    assert key_use(known, b"f") is expected


def test_an_expired_key_still_counts() -> None:
    """A row that is present counts until a sweep removes it."""
    assert key_use(row("k")._replace(expires_at=0), b"f") is KeyUse.REPEATED


def test_a_prune_is_bounded() -> None:
    """One step empties no more than the limit: it shares a transaction with others."""
    assert empty_bodies("s", 5, 5 + PRUNE_ENTRIES).values == ("s", 5, 5 + PRUNE_ENTRIES)
    with pytest.raises(AssertionError):
        empty_bodies("s", 5, 6 + PRUNE_ENTRIES)
