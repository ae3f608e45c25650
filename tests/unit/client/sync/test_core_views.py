"""Views in the client core: what is shown, checked, saved and rebuilt (sync 17.3, 17.8)."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.sync.client_core import (
    Bench,
    committed,
    page,
    page_of,
    push,
    update,
    value,
)
from tidelog.client.sync import core as sync_core
from tidelog.client.sync.messages import Commit, Json
from tidelog.sync.protocol.profiles import Model

# View and rebase


def test_drafts_lie_on_top_of_later_commits(bench: Bench) -> None:
    """Drafts are never interleaved into the committed stream; the highest position wins."""
    bench.ready()
    bench.draft(value("a", "mine"), "mine")
    bench.broadcast(9, value("a", "theirs"))
    assert bench.settings() == {"a": "mine"}
    bench.result(id="mine", status="committed", committed_id=8)
    assert bench.settings() == {"a": "theirs"}


def test_arrival_order_is_irrelevant(bench: Bench) -> None:
    """A commit below the last one rebuilds the state."""
    bench.core.assume_connected()
    bench.broadcast(5, value("a", 5))
    assert bench.settings() == {"a": 5}
    bench.broadcast(4, value("a", 4))
    assert bench.settings() == {"a": 5}
    bench.broadcast(6, value("b", 6))
    assert bench.settings() == {"a": 5, "b": 6}


def test_a_draft_that_cannot_happen_is_hidden_and_sent(bench: Bench) -> None:
    """Sync D54: its preconditions fail in the overlay, the server still decides."""
    bench.core.assume_connected()
    bench.broadcast(1, push("a"))
    bench.core.disconnected()
    bench.draft(update("a", name="x"), "mine")
    assert bench.nodes() == {"a": {"id": "a", "name": "x"}}
    bench.connect()
    delete = {"type": "treeDelete", "payload": {"target": "explorer", "options": {"id": "a"}}}
    bench.say("sync_response", page(committed(2, delete), through=2))
    assert bench.nodes() == {}
    assert bench.submitted() == [["mine"]]


def test_events_of_another_profile_are_passed_over(bench: Bench) -> None:
    """Sync D45: all rows are stored; unknown types and targets change nothing and harm nothing."""
    bench.ready()
    bench.broadcast(1, {"type": "event", "payload": {"schema": "note", "data": {}}})
    bench.broadcast(2, {"type": "treePush", "payload": {"target": "gone", "value": {"id": "x"}}})
    bench.broadcast(3, value("a"))
    assert bench.settings() == {"a": 1}
    assert len(list(bench.store.rows())) == 3
    assert bench.codes() == []


def test_views_in_memory_are_limited(tmp_path: Path) -> None:
    """A state that was put away is built again from the store."""
    bench = Bench(tmp_path / "c.db", partitions=[f"p{number}" for number in range(70)])
    bench.core.assume_connected()
    for number in range(70):
        bench.broadcast(number + 1, value("n", number), f"p{number}")
    assert len(bench.core._views._views) == 64
    assert bench.settings("p0") == {"n": 0}
    bench.store.close()


# Many partitions


def fetched(path: Path, names: Sequence[str], events: int = 3) -> Bench:
    """A client that has fetched so many events of each partition."""
    bench = Bench(path, partitions=names)
    bench.connect()
    positions = itertools.count(1)
    log = [committed(next(positions), value("a", n), name) for name in names for n in range(events)]
    bench.say("sync_response", page_of(names, *log, through=len(log)))
    assert bench.synced()
    bench.sent()
    return bench


def reconnect(bench: Bench, names: Sequence[str], *events: Json, through: int) -> None:
    """Lose the connection, and get one page with the next."""
    bench.core.disconnected()
    bench.connect()
    bench.say("sync_response", page_of(names, *events, through=through))


NAMES = tuple(sorted(f"p{number:03}" for number in range(150)))
"""More partitions than views are held in memory."""


def test_a_reconnect_costs_what_has_changed(tmp_path: Path) -> None:
    """No question to the store and no state more than a client of three partitions has."""
    asked: dict[int, list[str]] = {}
    for names in (NAMES[:3], NAMES):
        bench = fetched(tmp_path / f"{len(names)}.db", names)
        reconnect(bench, names, through=3 * len(names))  # notes that all of it was checked
        statements = asked[len(names)] = []
        bench.store._file.connection.set_trace_callback(statements.append)
        applied = bench.core._views.applied
        reconnect(bench, names, through=3 * len(names))
        assert bench.synced()
        assert bench.core._views.applied == applied
        bench.store._file.connection.set_trace_callback(None)
        bench.store.close()
    assert len(asked[len(NAMES)]) == len(asked[3])


def test_a_view_reads_the_events_of_its_partition_only(tmp_path: Path) -> None:
    """By an index, whatever else there is."""
    bench = fetched(tmp_path / "c.db", NAMES)
    bench.core._views.clear()
    plan = bench.store._file.connection.execute(
        "EXPLAIN QUERY PLAN " + bench.store._file.queries["sync_committed_after"], ("p000", 0)
    ).fetchall()
    assert all("SEARCH" in detail for *_, detail in plan), plan
    applied = bench.core._views.applied
    assert bench.settings("p000") == {"a": 2}
    assert bench.core._views.applied == applied + 3
    bench.store.close()


def test_what_nobody_looks_at_is_checked_when_it_changes(tmp_path: Path) -> None:
    """Sync D54 holds for every partition that is followed; it costs the changed states only."""
    bench = fetched(tmp_path / "c.db", NAMES)
    applied = bench.core._views.applied
    last = 3 * len(NAMES)
    reconnect(bench, NAMES, committed(last + 1, value("b"), "p007"), through=last + 1)
    assert bench.core._views.applied <= applied + 4
    assert bench.codes() == []
    wrong = committed(last + 2, update("nobody", name="x"), "p008")
    reconnect(bench, NAMES, wrong, through=last + 2)
    assert bench.codes() == ["integrity_violation"]
    bench.store.close()


def test_a_check_that_was_interrupted_is_made_later(tmp_path: Path) -> None:
    """The client was killed between storing a page and looking at what it made of a partition."""
    bench = fetched(tmp_path / "c.db", NAMES)
    last = 3 * len(NAMES)
    wrong = update("nobody", name="x")
    bench.store.store_page([Commit("x", "bo", ("p008",), last + 1, 1, wrong)], NAMES, last + 1)
    bench.store._file.connection.close()
    bench.store._file.lock.release()
    bench = Bench(tmp_path / "c.db", partitions=NAMES)
    bench.connect()
    bench.say("sync_response", page_of(NAMES, through=last + 1))
    assert bench.codes() == ["integrity_violation"]
    bench.store.close()


def test_what_was_checked_is_not_checked_again(tmp_path: Path) -> None:
    """Neither by the next connection nor by the next start."""
    fetched(tmp_path / "c.db", NAMES).store.close()
    bench = Bench(tmp_path / "c.db", partitions=NAMES)
    bench.connect()
    bench.say("sync_response", page_of(NAMES, through=3 * len(NAMES)))
    assert bench.synced()
    assert bench.core._views.applied == 0
    bench.store.close()


def test_what_nobody_looks_at_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every so many events, in each partition."""
    monkeypatch.setattr(sync_core, "SNAPSHOT_EVERY", 3)
    bench = fetched(tmp_path / "c.db", NAMES)
    assert [snapshot.partition for snapshot in bench.store.snapshots()] == list(NAMES)
    bench.store.close()


def test_checks_take_turns_with_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large fetch is complete at once; its states follow piece by piece, also that of one."""
    monkeypatch.setattr(sync_core, "CHECK_EVENTS", 10)
    bench = fetched(tmp_path / "c.db", NAMES[:2], events=24)
    assert bench.core._views.applied == 10
    turns = 0
    while bench.core.wake_at == bench.clock.now_ms():
        bench.core.tick()
        turns += 1
        assert bench.core._views.applied <= 10 + 10 * turns
    assert bench.core._views.applied == 48
    assert bench.store.unchecked == set()
    assert bench.settings("p001") == {"a": 23}
    bench.store.close()


def test_a_violation_in_a_late_piece_starts_over_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an early one: what fetching anew does not mend is told and passed over."""
    monkeypatch.setattr(sync_core, "CHECK_EVENTS", 10)
    names = NAMES[:2]
    log = [committed(position, value("a", position), "p000") for position in range(1, 30)]
    log.append(committed(30, update("nobody", name="x"), "p001"))
    bench = Bench(tmp_path / "c.db", partitions=names)
    bench.connect()
    for told in (1, 2):
        bench.say("sync_response", page_of(names, *log, through=30))
        while bench.core.wake_at == bench.clock.now_ms():
            bench.core.tick()
        assert bench.codes() == ["integrity_violation"] * told
    assert bench.synced()
    assert bench.kinds()[-1] == "sync"
    bench.store.close()


# Snapshots and model version


def test_snapshots_hold_no_drafts(bench: Bench) -> None:
    """A snapshot is the committed state, tagged with position and model version."""
    bench.ready()
    bench.broadcast(5, value("a"))
    bench.draft(value("b"), "mine")
    assert bench.core.save_snapshot("p") == 5
    assert bench.store.start_of("p").state == {
        "explorer": {"items": {}, "tree": []},
        "settings": {"a": 1},
    }
    assert bench.store.snapshots()[0].model_version == 3
    assert bench.settings() == {"a": 1, "b": 1}


def test_no_snapshot_while_the_partition_is_fetched(bench: Bench) -> None:
    """Sync D62: the state may have a gap that the cycle is about to fill."""
    bench.ready()
    bench.broadcast(5, value("a"))
    bench.core.sync()
    assert bench.core.save_snapshot("p") is None
    assert bench.core.save_snapshot("other") == 0
    bench.say("sync_response", page(through=5))
    assert bench.core.save_snapshot("p") == 5


def test_snapshots_are_saved_by_themselves(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every so many committed events of a partition."""
    monkeypatch.setattr(sync_core, "SNAPSHOT_EVERY", 10)
    bench.ready()
    for position in range(1, 10):
        bench.broadcast(position, value("a", position))
    assert bench.store.snapshots() == []
    bench.broadcast(10, value("a", 10))
    assert bench.store.snapshots()[0].committed_id == 10
    bench.broadcast(11, value("a", 11))
    assert bench.store.snapshots()[0].committed_id == 10


def test_a_lost_snapshot_of_pruned_rows_is_fetched(bench: Bench) -> None:
    """Full replay is impossible, so the partition is fetched from 0."""
    bench.ready()
    bench.draft(value("a", 4), "e4")
    bench.broadcast(5, value("a", 5))
    bench.core.save_snapshot("p")
    assert bench.core.prune() == 1
    bench.sent()
    bench.result(id="e4", status="committed", committed_id=4)
    [(kind, payload)] = bench.sent()
    assert (kind, payload["since_committed_id"]) == ("sync", 0)
    bench.say(
        "sync_response",
        page(committed(4, value("a", 4)), committed(5, value("a", 5)), through=5),
    )
    assert bench.settings() == {"a": 5}
    assert bench.synced()


def test_pruning_during_a_cycle_keeps_what_it_may_bring(bench: Bench) -> None:
    """Whether something is missing before the snapshot is known when the cycle is over."""
    bench.ready()
    bench.broadcast(5, value("a", 5))
    bench.core.save_snapshot("p")
    bench.core.sync()
    assert bench.core.prune() == 0
    bench.say("sync_response", page(committed(5, value("a", 5)), through=5))
    assert bench.core.prune() == 1
    bench.core.disconnected()
    assert bench.core.prune() == 0
    bench.sent()
    bench.connect()
    assert bench.sent()[-1][1]["since_committed_id"] == 5


def test_a_new_model_version_fetches_everything_anew(bench: Bench) -> None:
    """Snapshots go, cursors go to 0, drafts stay; when it is done new snapshots are stored."""
    bench.ready()
    bench.broadcast(5, value("a"))
    bench.core.save_snapshot("p")
    bench.draft(value("b"), "mine")
    bench.sent()
    bench.say("version_changed", {"old_model_version": 3, "new_model_version": 4})
    assert bench.store.snapshots() == []
    [(kind, payload)] = bench.sent()
    assert (kind, payload["since_committed_id"]) == ("sync", 0)
    assert bench.store.row("mine").status == "draft"
    bench.say("sync_response", page(committed(5, value("a")), through=5, model_version=4))
    assert [info.model_version for info in bench.store.snapshots()] == [4]
    assert bench.told("version_changed") == [{"old_model_version": 3, "new_model_version": 4}]


def test_the_version_in_use_is_no_news(bench: Bench) -> None:
    """Repeated announcements do nothing, whichever message carries them."""
    bench.connect(model_version=3)
    bench.say("sync_response", page(through=7, model_version=3))
    bench.sent()
    bench.say("version_changed", {"old_model_version": 2, "new_model_version": 3})
    assert bench.sent() == []
    assert bench.told("version_changed") == []
    assert bench.store.cursor("p") == 7


def test_the_handshake_can_announce_a_version(bench: Bench) -> None:
    """`connected.model_version` differing from the stored one voids the cursors before the sync."""
    bench.store.store_page([], ["p"], 7)
    bench.connect(model_version=4)
    _, payload = bench.sent()[-1]
    assert payload["since_committed_id"] == 0
    assert bench.store.model_version == 4


def test_a_page_can_announce_a_version(bench: Bench) -> None:
    """Its events are fetched again from 0 with everything else."""
    bench.store.store_page([], ["p"], 7)
    bench.connect()
    bench.sent()
    bench.say("sync_response", page(through=9, model_version=4))
    [(_, payload)] = bench.sent()
    assert payload["since_committed_id"] == 0
    assert bench.store.cursor("p") == 0


def test_a_version_announced_during_a_cycle_waits_for_its_answer(bench: Bench) -> None:
    """The answer in flight may still carry the old version; it is thrown away unread."""
    bench.connect()
    bench.sent()
    bench.say("version_changed", {"old_model_version": 3, "new_model_version": 4})
    assert bench.sent() == []
    bench.say("sync_response", page(through=9, model_version=3))
    [(_, payload)] = bench.sent()
    assert payload["since_committed_id"] == 0
    assert bench.store.model_version == 4


def test_a_new_model_rebuilds_the_views(bench: Bench) -> None:
    """The application brings the reducers that the version needs."""
    bench.ready()
    bench.broadcast(1, value("a"))
    bench.core.save_snapshot("p")
    model = Model.parse({"other": {"kind": "value", "actions": ["set"]}}, {}, 4)
    bench.core.use_model(model)
    assert bench.core.view("p") == {}
    assert bench.store.snapshots() == []
