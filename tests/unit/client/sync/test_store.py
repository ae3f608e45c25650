"""The sync client's file: draft lifecycle, upsert, cursors, snapshots, pruning, reset."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import pytest

from tidelog.base.errors import QueueFull, StoreDamaged, StoreInUse, StoreUnavailable
from tidelog.client.sync import store as sync_store
from tidelog.client.sync.messages import Commit, Decision, Json
from tidelog.client.sync.store import IntegrityViolation, SyncStore


def value(name: str, given: object = 1) -> Json:
    """An event that sets a value."""
    return {"type": "set", "payload": {"target": f"settings.{name}", "value": given}}


def commit(place: int, *partitions: str, id: str = "", by: str = "bo") -> Commit:  # noqa: A002
    """A committed event of another client."""
    names = partitions or ("p",)
    return Commit(id or f"e{place}", by, names, place, 1000 + place, value(f"v{place}"))


def committed(event_id: str, place: int) -> Decision:
    """The server's yes to a draft."""
    return Decision(event_id, "committed", 5000, place)


def rejected(event_id: str) -> Decision:
    """The server's no to a draft."""
    errors = ({"field": "event", "message": "no"},)
    return Decision(event_id, "rejected", 6000, None, "validation_failed", errors)


def open_store(path: Path, client_id: str = "ada", model_version: int = 3) -> SyncStore:
    """The store at `path`."""
    return SyncStore(path, client_id=client_id, model_version=model_version, now=lambda: 7)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file is; its folder does not exist yet."""
    return tmp_path / "below" / "client.db"


@pytest.fixture
def store(path: Path) -> Iterator[SyncStore]:
    """An empty store."""
    store = open_store(path)
    yield store
    store.close()


def test_a_draft_is_stored_with_the_next_clock(store: SyncStore) -> None:
    """Creating: `draft_clock += 1`, status `draft`, no committed id."""
    first = store.add_draft("a", ["p"], value("x"))
    second = store.add_draft("b", ["p", "q"], value("y"))
    assert (first.draft_clock, second.draft_clock) == (1, 2)
    assert second == store.row("b")
    assert second.status == "draft"
    assert second.committed_id is None
    assert second.partitions == ("p", "q")
    assert second.client_id == "ada"
    assert second.created_at == 7
    assert second.event == value("y")


def test_all_members_of_an_event_are_kept(store: SyncStore) -> None:
    """A retry must have the content that was submitted, unknown members included."""
    event = value("x", 1.5) | {"note": ["ü", None]}
    assert store.add_draft("a", ["p"], event).event == event


def test_a_committed_draft_keeps_its_row(store: SyncStore) -> None:
    """Committed: the same row gets place and time and keeps its clock."""
    store.add_draft("a", ["p"], value("x"))
    applied = store.store_results([committed("a", 101)])
    row = store.row("a")
    assert (row.status, row.committed_id, row.status_updated_at) == ("committed", 101, 5000)
    assert row.draft_clock == 1
    [arrival] = applied.arrivals
    assert arrival == ("a", 101, ("p",), True)


def test_a_rejected_draft_says_why(store: SyncStore) -> None:
    """Rejected: the same row gets time, reason and errors."""
    store.add_draft("a", ["p"], value("x"))
    assert store.store_results([rejected("a")]).rejected == ["a"]
    row = store.row("a")
    assert (row.status, row.status_updated_at) == ("rejected", 6000)
    assert row.reject_reason == "validation_failed"
    assert row.errors == ({"field": "event", "message": "no"},)
    assert store.drafts() == []


def test_a_remote_commit_has_no_clock(store: SyncStore) -> None:
    """Remote commits are inserted without a draft clock and never touch the local one."""
    store.store_commits([commit(5)])
    assert store.row("e5").draft_clock is None
    assert store.row("e5").client_id == "bo"
    assert store.add_draft("a", ["p"], value("x")).draft_clock == 1


def test_the_clock_goes_on_after_a_restart(path: Path) -> None:
    """At start the clock is the highest of this client's own rows, whatever became of them."""
    store = open_store(path)
    store.add_draft("a", ["p"], value("x"))
    store.add_draft("b", ["p"], value("x"))
    store.store_results([committed("b", 9)])
    store.close()
    store = open_store(path)
    assert store.add_draft("c", ["p"], value("x")).draft_clock == 3
    store.close()


def test_drafts_come_in_their_order(store: SyncStore) -> None:
    """Drafts are ordered by clock, overall and per partition."""
    for name, partitions in (("z", ["p"]), ("y", ["q"]), ("x", ["p", "q"])):
        store.add_draft(name, partitions, value(name))
    assert [draft.id for draft in store.drafts()] == ["z", "y", "x"]
    assert [draft.id for draft in store.drafts(limit=2)] == ["z", "y"]
    assert [draft.id for draft in store.drafts_of("q")] == ["y", "x"]


def test_drafts_are_limited(store: SyncStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that never finds its server does not fill the disk."""
    monkeypatch.setattr(sync_store, "MAX_DRAFTS", 1)
    store.add_draft("a", ["p"], value("x"))
    with pytest.raises(QueueFull):
        store.add_draft("b", ["p"], value("x"))


def test_the_same_commit_twice_changes_nothing(store: SyncStore) -> None:
    """Upsert rule 1: a row already committed at that place is left alone."""
    assert len(store.store_commits([commit(5)]).arrivals) == 1
    assert store.store_commits([commit(5)]).arrivals == []
    assert len(list(store.rows())) == 1


def test_a_commit_finds_its_draft(store: SyncStore) -> None:
    """A page or broadcast of an own event updates the draft's row, and the result is a no-op."""
    store.add_draft("e5", ["p"], value("v5"))
    [arrival] = store.store_commits([commit(5, by="ada")]).arrivals
    assert arrival.was_local
    assert store.store_results([committed("e5", 5)]).arrivals == []
    [row] = store.rows()
    assert (row.status, row.committed_id, row.draft_clock) == ("committed", 5, 1)


def test_two_events_in_one_place_are_a_violation(store: SyncStore) -> None:
    """Upsert rule 4: another id at the same place; the transaction leaves no trace."""
    store.store_commits([commit(5)])
    with pytest.raises(IntegrityViolation):
        store.store_commits([commit(6), commit(5, id="impostor")])
    assert [row.id for row in store.rows()] == ["e5"]
    store.add_draft("mine", ["p"], value("x"))
    with pytest.raises(IntegrityViolation):
        store.store_results([committed("mine", 5)])
    assert store.row("mine").status == "draft"


def test_one_event_in_two_places_is_a_violation(store: SyncStore) -> None:
    """Upsert rule 4: a committed row whose place differs from the one delivered."""
    store.store_commits([commit(5)])
    with pytest.raises(IntegrityViolation):
        store.store_commits([commit(6, id="e5")])
    with pytest.raises(IntegrityViolation):
        store.store_results([committed("e5", 7)])


def test_the_log_wins_over_a_rejection(store: SyncStore) -> None:
    """Sync D59: a commit upgrades a rejected row and brings the log's content."""
    store.add_draft("e5", ["q"], value("other"))
    store.store_results([rejected("e5")])
    store.store_commits([commit(5)])
    row = store.row("e5")
    assert (row.status, row.reject_reason, row.errors) == ("committed", None, ())
    assert (row.event, row.partitions, row.client_id) == (value("v5"), ("p",), "bo")


def test_a_rejection_does_not_undo_a_commit(store: SyncStore) -> None:
    """Sync D59: a rejection for a row already committed is ignored."""
    store.store_commits([commit(5)])
    assert store.store_results([rejected("e5")]).rejected == []
    assert store.row("e5").status == "committed"


def test_a_result_for_an_unknown_row_is_ignored(store: SyncStore) -> None:
    """The row may have been pruned since."""
    applied = store.store_results([committed("gone", 5), rejected("never")])
    assert applied == ([], [], frozenset())


def test_pages_raise_cursors_and_nothing_else_does(store: SyncStore) -> None:
    """Sync D61: broadcasts and results leave cursors alone; a page never lowers one."""
    store.store_commits([commit(5)])
    store.add_draft("a", ["p"], value("x"))
    store.store_results([committed("a", 6)])
    assert store.cursor("p") == 0
    store.store_page([commit(7)], ["p", "q"], 10)
    assert (store.cursor("p"), store.cursor("q"), store.cursor("r")) == (10, 10, 0)
    store.store_page([], ["p"], 8)
    assert store.cursor("p") == 10


def test_a_page_is_stored_whole_or_not_at_all(store: SyncStore) -> None:
    """Events and cursors share a transaction."""
    store.store_commits([commit(5)])
    with pytest.raises(IntegrityViolation):
        store.store_page([commit(4), commit(5, id="impostor")], ["p"], 5)
    assert store.cursor("p") == 0
    assert [row.id for row in store.rows()] == ["e5"]


def test_committed_events_are_read_by_place(store: SyncStore) -> None:
    """Whatever the order of arrival, a partition's events come ascending."""
    store.store_commits([commit(9), commit(3, "p", "q"), commit(7, "q"), commit(5), commit(11)])
    assert [place for place, _ in store.committed_after("p", 0)] == [3, 5, 9, 11]
    assert [place for place, _ in store.committed_after("p", 5)] == [9, 11]
    assert [place for place, _ in store.committed_after("q", 0)] == [3, 7]


def test_pruning_waits_for_all_partitions(store: SyncStore) -> None:
    """A row goes when every one of its partitions has a snapshot at or beyond it; drafts never."""
    events = [commit(1), commit(2, "p", "q"), commit(3), commit(4)]
    store.store_page(events, ["p", "q"], 4)
    store.add_draft("d", ["p"], value("x"))
    store.save_snapshot("p", {"s": 1}, 3)
    assert store.prune() == 2
    assert [row.id for row in store.rows()] == ["e2", "e4", "d"]
    store.save_snapshot("q", {}, 2)
    assert store.prune() == 1
    assert [row.id for row in store.rows()] == ["e4", "d"]


def test_pruning_waits_for_the_cursor(store: SyncStore) -> None:
    """What would be fetched again stays, or it would be taken for something the snapshot lacks."""
    store.store_page([commit(1)], ["p"], 1)
    store.store_commits([commit(2), commit(3)])
    store.save_snapshot("p", {"s": 1}, 3)
    assert store.prune() == 1
    assert [row.id for row in store.rows()] == ["e2", "e3"]
    assert store.store_page([commit(2), commit(3)], ["p"], 3).lost == frozenset()
    assert store.prune() == 2
    assert store.start_of("p") == ({"s": 1}, 3, False)


def test_what_lacks_nothing_need_not_be_fetched_again(store: SyncStore) -> None:
    """A partition that is complete was fetched as far as its snapshot goes, also if it is new."""
    store.store_page([commit(1)], ["p"], 1)
    store.store_commits([commit(2), commit(3, "q"), commit(4)])
    store.save_snapshot("p", {"s": 1}, 2)
    store.save_snapshot("q", {}, 3)
    assert store.prune(["p", "q", "none"]) == 3
    assert [row.id for row in store.rows()] == ["e4"]
    assert store.cursors(["p", "q", "none"]) == {"p": 2, "q": 3, "none": 0}
    store.store_page([], ["p"], 9)
    store.prune(["p"])
    assert store.cursor("p") == 9


def test_a_snapshot_is_where_building_starts(store: SyncStore) -> None:
    """A valid snapshot gives state and place; without one everything is replayed."""
    assert store.start_of("p") == (None, 0, False)
    store.save_snapshot("p", {"s": 1}, 3)
    assert store.start_of("p") == ({"s": 1}, 3, False)
    assert [(info.partition, info.model_version) for info in store.snapshots()] == [("p", 3)]


@pytest.mark.parametrize("is_pruned", [False, True])
def test_an_unreadable_snapshot_is_replaced(store: SyncStore, *, is_pruned: bool) -> None:
    """Unparsable: full replay; if rows were pruned the partition is fetched from 0 again."""
    store.store_page([commit(1)], ["p"], 1)
    store.save_snapshot("p", {}, 1)
    if is_pruned:
        store.prune()
    store._file.connection.execute("UPDATE snapshots SET state = '{'")
    assert store.start_of("p") == (None, 0, is_pruned)
    assert store.snapshots() == []
    assert store.cursor("p") == (0 if is_pruned else 1)


def test_a_state_too_deep_for_json_has_no_snapshot(store: SyncStore) -> None:
    """Such a state is replayed instead."""
    state: Json = {}
    for _ in range(2000):
        state = {"a": state}
    assert not store.save_snapshot("p", state, 3)
    assert store.snapshots() == []


def test_a_late_commit_invalidates_a_snapshot(store: SyncStore) -> None:
    """A commit at or before the snapshot that was not part of it makes the snapshot false."""
    store.store_commits([commit(5)])
    store.save_snapshot("p", {}, 5)
    store.save_snapshot("q", {}, 5)
    assert store.store_commits([commit(4)]).lost == frozenset()
    assert [info.partition for info in store.snapshots()] == ["q"]


def test_a_draft_committed_before_the_snapshot_invalidates_it(store: SyncStore) -> None:
    """Snapshots hold no drafts, so this one cannot have been part of it, whatever the cursor."""
    store.add_draft("a", ["p"], value("x"))
    store.store_page([commit(5)], ["p"], 5)
    store.save_snapshot("p", {}, 5)
    store.store_results([committed("a", 4)])
    assert store.snapshots() == []


def test_an_invalid_snapshot_of_pruned_rows_loses_the_partition(store: SyncStore) -> None:
    """The rows after the snapshot are gone, so the page that broke it raises no cursor."""
    store.add_draft("mine", ["p", "q"], value("x"))
    store.store_page([commit(5)], ["p"], 5)
    store.save_snapshot("p", {}, 5)
    assert store.prune() == 1
    applied = store.store_page([commit(4, "p", "q", id="mine")], ["p", "q"], 6)
    assert applied.lost == {"p"}
    assert (store.cursor("p"), store.cursor("q")) == (0, 6)


def test_a_pruned_row_that_returns_was_part_of_the_snapshot(store: SyncStore) -> None:
    """Fetching another partition delivers it again; the cursor proves that it was included."""
    store.store_page([commit(4, "p", "q"), commit(5)], ["p", "q"], 5)
    store.save_snapshot("p", {}, 5)
    store.save_snapshot("q", {}, 4)
    assert store.prune() == 2
    assert store.store_commits([commit(4, "p", "q")]).lost == frozenset()
    assert len(store.snapshots()) == 2


def test_a_violation_forgets_the_log_and_keeps_the_drafts(store: SyncStore) -> None:
    """17.6: no snapshots, no committed rows, cursors at 0; drafts and rejections stay."""
    store.store_page([commit(5)], ["p"], 5)
    store.save_snapshot("p", {}, 5)
    store.add_draft("a", ["p"], value("x"))
    store.add_draft("b", ["p"], value("x"))
    store.store_results([rejected("b")])
    store.reset()
    assert [row.id for row in store.rows()] == ["a", "b"]
    assert store.snapshots() == []
    assert store.cursor("p") == 0
    store.store_commits([commit(5, id="another")])


def test_a_model_version_voids_what_is_derived(store: SyncStore) -> None:
    """17.8: snapshots go, cursors of the partitions in use and of pruned ones go, rows stay."""
    store.store_page([commit(1, "p"), commit(2, "q"), commit(3, "r")], ["p", "q", "r"], 3)
    store.save_snapshot("q", {}, 2)
    store.prune()
    store.change_model_version(4, ["p"])
    assert store.model_version == 4
    assert store.snapshots() == []
    assert [store.cursor(name) for name in "pqr"] == [0, 0, 3]
    assert [row.id for row in store.rows()] == ["e1", "e3"]


def test_the_model_version_in_use_survives_a_restart(path: Path) -> None:
    """What the server announced counts, not what the application was built with."""
    store = open_store(path)
    store.change_model_version(4, [])
    store.save_snapshot("p", {}, 5)
    store.close()
    store = open_store(path)
    assert store.model_version == 4
    assert len(store.snapshots()) == 1
    store.close()


def test_new_reducers_void_the_snapshots(path: Path) -> None:
    """Snapshots came from the reducers of the model the application had then."""
    store = open_store(path)
    store.save_snapshot("p", {}, 5)
    store.close()
    store = open_store(path, model_version=4)
    assert store.snapshots() == []
    assert store.model_version == 3
    store.close()


def test_rejected_rows_go_on_request(store: SyncStore) -> None:
    """Pruning leaves rejections; the application asks for their end."""
    store.add_draft("a", ["p"], value("x"))
    store.store_results([rejected("a")])
    assert store.prune() == 0
    assert store.forget_rejected() == 1
    assert list(store.rows()) == []


def test_one_process_has_the_file(path: Path) -> None:
    """Two clients on one file would give the same clocks."""
    store = open_store(path)
    with pytest.raises(StoreInUse, match="another sync client"):
        open_store(path)
    store.close()
    open_store(path).close()


def test_a_file_of_another_application_is_refused(path: Path) -> None:
    """Nothing is written into it, and its lock is not kept."""
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="another application"):
            open_store(path)


def test_a_full_disk_is_a_store_error(store: SyncStore) -> None:
    """The transaction is undone and the next one works."""
    [(pages,)] = store._file.connection.execute("PRAGMA page_count")
    store._file.connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        store.add_draft("a", ["p"], value("x", "y" * 100_000))
    store._file.connection.execute("PRAGMA max_page_count = 100000")
    assert store.add_draft("a", ["p"], value("x")).draft_clock == 1


def test_the_file_is_durable(store: SyncStore) -> None:
    """WAL with synchronous=FULL, like every durable file."""
    assert store._file.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._file.connection.execute("PRAGMA synchronous").fetchone() == (2,)


# Whose file it is: 17.1


def legacy_store(path: Path, *drafts: tuple[str, str]) -> None:
    """A file of the first version, with drafts as (id, client)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    script = files("tidelog.client.sync") / "migrations" / "0001.sql"
    with closing(sqlite3.connect(path)) as file, file:
        file.executescript(script.read_text(encoding="utf-8"))
        file.execute("PRAGMA user_version = 1")
        file.execute(
            "INSERT INTO events (id, committed_id, type, payload, partitions, client_id, status,"
            " created_at) VALUES ('e1', 1, 'set', '{}', '[\"p\"]', 'cy', 'committed', 1)"
        )
        for clock, (event_id, client_id) in enumerate(drafts, start=1):
            file.execute(
                "INSERT INTO events (id, type, payload, partitions, client_id, status, draft_clock,"
                " created_at) VALUES (?, 'set', '{}', '[\"p\"]', ?, 'draft', ?, ?)",
                (event_id, client_id, clock, clock),
            )


def test_a_file_belongs_to_its_client(path: Path) -> None:
    """Opened as another one it is refused: its drafts would be committed under that name."""
    open_store(path).close()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"belongs to the client 'ada'.*another file"):
            open_store(path, client_id="bo")
    store = open_store(path)
    assert store.add_draft("a", ["p"], value("x")).client_id == "ada"
    store.close()


def test_a_file_of_an_earlier_version_is_bound_when_it_is_opened(path: Path) -> None:
    """Without drafts nobody is harmed; what it holds stays."""
    legacy_store(path)
    store = open_store(path, client_id="bo")
    assert [row.id for row in store.rows()] == ["e1"]
    assert [place for place, _ in store.committed_after("p", 0)] == [1]
    assert store.unchecked == {"p"}
    store.close()
    with pytest.raises(StoreUnavailable, match="belongs to the client 'bo'"):
        open_store(path)


def test_a_file_of_an_earlier_version_belongs_to_who_wrote_its_drafts(path: Path) -> None:
    """Drafts written offline are committed under the name of their writer, or not at all."""
    legacy_store(path, ("d1", "ada"), ("d2", "bo"), ("d3", "ada"))
    with pytest.raises(StoreUnavailable, match="belongs to the client 'ada'"):
        open_store(path, client_id="bo")
    store = open_store(path)
    assert [draft.id for draft in store.drafts()] == ["d1", "d3"]
    assert [draft.id for draft in store.drafts_of("p")] == ["d1", "d3"]
    [note] = store.notes
    assert note.code == "foreign_drafts"
    assert " 1 drafts " in note.message
    store.close()


# A damaged file: 17.10


def damaged_store(path: Path, drafts: int) -> None:
    """A store of many drafts, of which one page in the middle of the table is overwritten."""
    store = open_store(path)
    for number in range(drafts):
        store.add_draft(f"d{number:03}", ["p"], value("x", f"<{number:03}>" + "y" * 300))
    store.store_results([rejected("d000")])
    store.close()
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[16:18], "big")
    start = content.index(b"<%03d>" % (drafts // 2)) // size * size
    content[start : start + size] = b"\xa5" * size
    path.write_bytes(content)


def test_a_damaged_file_loses_the_drafts_of_its_damaged_pages_only(path: Path) -> None:
    """All others are taken over with their order, on both sides of the damage; it is told."""
    damaged_store(path, 100)
    store = open_store(path)
    kept = [draft.id for draft in store.drafts()]
    assert "d050" not in kept
    assert kept[0] == "d001"
    assert kept[-1] == "d099"
    assert len(kept) > 80
    assert store.row("d000").status == "rejected"
    assert store.add_draft("next", ["p"], value("x")).draft_clock == 101
    [note] = store.notes
    assert note.code == "store_damaged"
    assert f"has {len(kept) + 1} drafts" in note.message
    assert f"; {99 - len(kept)} could not be read" in note.message
    store.close()
    with pytest.raises(StoreUnavailable, match="belongs to the client 'ada'"):
        open_store(path, client_id="bo")


@pytest.mark.parametrize("step", ["link", "rename", "unlink", "replace"])
def test_a_replacement_can_be_interrupted(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Whatever the last step was: the next start has all that the first would have had."""
    damaged_store(path, 100)
    with monkeypatch.context() as patched:

        def killed(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        owner: object = os if step == "link" else Path
        patched.setattr(owner, step, killed)
        with pytest.raises(KeyboardInterrupt):
            open_store(path)
    store = open_store(path)
    assert len(store.drafts()) > 80
    store.close()
    store = open_store(path)
    assert store.notes == []
    store.close()


def test_a_file_without_a_head_is_refused_with_a_way_out(path: Path) -> None:
    """Nothing of it can be read, so nothing is done with it."""
    open_store(path).close()
    content = bytearray(path.read_bytes())
    content[100:4096] = b"\xa5" * 3996
    path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="Move it aside"):
            open_store(path)
    assert path.read_bytes() == content


def test_a_file_is_replaced_once(path: Path) -> None:
    """A disk that spoils everything must not fill up with what it spoilt."""
    damaged_store(path, 100)
    store = open_store(path)
    with pytest.raises(StoreDamaged, match="check the disk"):
        store.replace("again")
    store.close()


def test_a_damaged_draft_is_left_out(path: Path) -> None:
    """The others are submitted; a question for that one says what is wrong."""
    store = open_store(path)
    for name in ("a", "b", "c"):
        store.add_draft(name, ["p"], value("x"))
    store._file.connection.execute("UPDATE events SET payload = '{' WHERE id = 'b'")
    assert [draft.id for draft in store.drafts()] == ["a", "c"]
    store._file.connection.execute("UPDATE events SET partitions = '[' WHERE id = 'b'")
    assert [draft.id for draft in store.drafts_of("p")] == ["a", "c"]
    assert store.unreadable == {"b"}
    with pytest.raises(StoreDamaged, match="b cannot be read"):
        store.row("b")
    store.close()
