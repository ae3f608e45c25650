"""The digest chain: different entries never give the same bytes to the hash."""

from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tidelog.base.data.digest import SIZE_BYTES, body_digest, entry_digest
from tidelog.log.draft import Draft, to_entry
from tidelog.store.engine import GENESIS_DIGEST
from tidelog.store.rows import Entry

texts = st.text(st.sampled_from("01 a\0\ue000\U0001f600"), max_size=4)
numbers = st.integers(0, 130)
digests = st.binary(min_size=SIZE_BYTES, max_size=SIZE_BYTES)
contents = st.tuples(st.binary(max_size=12), st.none() | st.binary(max_size=12))
places = st.tuples(
    st.just(GENESIS_DIGEST),
    *(numbers, texts, numbers, texts, texts, texts, texts, texts, numbers),
    st.just(GENESIS_DIGEST),
)
drafts = st.builds(
    Draft, texts, texts, texts, texts, texts, texts, st.binary(), st.none() | st.binary()
)


@given(contents, contents)
def test_different_contents_have_different_digests(one: Any, other: Any) -> None:
    """Body and data are told apart wherever the border between them lies."""
    assert (body_digest(*one) == body_digest(*other)) == (one == other)


@given(st.binary(max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_the_border_between_body_and_data_counts(whole: bytes, here: int, there: int) -> None:
    """The same bytes, divided elsewhere, are another content."""
    assume(min(here, len(whole)) != min(there, len(whole)))
    assert body_digest(whole[:here], whole[here:]) != body_digest(whole[:there], whole[there:])


def test_empty_data_is_not_no_data() -> None:
    """None and b"" are two contents."""
    assert body_digest(b"{}", None) != body_digest(b"{}", b"")


@given(places, places)
def test_different_places_have_different_digests(one: Any, other: Any) -> None:
    """No two different entries share a digest, whatever characters their texts hold."""
    assert (entry_digest(*one) == entry_digest(*other)) == (one == other)


@given(st.lists(texts, min_size=6, max_size=6), st.data())
def test_the_borders_between_texts_count(columns: list[str], data: st.DataObject) -> None:
    """The same characters, divided otherwise among the columns, are another entry."""
    whole = "".join(columns)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), min_size=5, max_size=5)))
    other = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assume(other != columns)

    def digest(texts: Any) -> bytes:
        stream, surface, kind, entity, ref, actor = texts
        return entry_digest(
            *(GENESIS_DIGEST, 1, stream, 1, surface, kind, entity, ref, actor, 1, GENESIS_DIGEST)
        )

    assert digest(columns) != digest(other)


@given(places, digests, digests)
def test_the_chain_and_the_content_count(placed: Any, previous: bytes, content: bytes) -> None:
    """Another predecessor or another content gives another digest."""
    assume(GENESIS_DIGEST not in (previous, content))
    digest = entry_digest(*placed)
    assert digest != entry_digest(previous, *placed[1:])
    with_content: Any = (*placed[:-1], content)
    assert digest != entry_digest(*with_content)
    assert len(digest) == SIZE_BYTES


@given(drafts, digests)
def test_pruning_keeps_the_digests(draft: Draft, previous: bytes) -> None:
    """The place's digest is made of the content's digest, so it verifies without the content."""
    entry = to_entry(draft, 7, 3, 1000, previous)
    pruned = entry._replace(body=None, data=None)
    assert entry.body_digest == body_digest(draft.body, draft.data)
    assert pruned.digest == entry_digest(
        *(previous, pruned.committed_id, pruned.stream, pruned.stream_serial, pruned.surface),
        *(pruned.kind, pruned.entity, pruned.ref, pruned.actor, pruned.committed_at),
        pruned.body_digest,
    )


@given(drafts)
def test_a_placed_draft_keeps_its_columns(draft: Draft) -> None:
    """Placing adds positions, time and digests and changes nothing else."""
    entry = to_entry(draft, 7, 3, 1000, GENESIS_DIGEST)
    assert isinstance(entry, Entry)
    assert (entry.committed_id, entry.stream_serial, entry.committed_at) == (7, 3, 1000)
    assert entry == entry._replace(**draft._asdict())


def test_the_bytes_are_those_that_are_documented() -> None:
    """Logs outlive programs: the hashed bytes never change."""
    assert body_digest(b"{}", b"\0") == blake2b(b"2+{}\0", digest_size=16).digest()
    assert body_digest(b"{}", None) == blake2b(b"2:{}", digest_size=16).digest()
    previous, content = bytes(range(16)), bytes(range(16, 32))
    written = "5 2 1000 8 5 3 1 0 2 stream/\u00e9probeputeab".encode()
    expected = blake2b(previous + content + written, digest_size=16).digest()
    assert (
        entry_digest(previous, 5, "stream/\u00e9", 2, "probe", "put", "e", "", "ab", 1000, content)
        == expected
    )


def test_a_lone_surrogate_has_no_digest() -> None:
    """A text that is not Unicode is refused before anything is stored."""
    with pytest.raises(UnicodeEncodeError):
        entry_digest(GENESIS_DIGEST, 1, "\ud800", 1, "", "", "", "", "", 1, GENESIS_DIGEST)
