"""Fetching in the client core: pages, broadcasts, histories, contradictions (sync 17.5, 17.6)."""

from pathlib import Path

import pytest

from support.sync.client_core import Bench, committed, page, push, update, value
from tidelog.client.sync import fetching

# Sync engine


def test_pages_follow_until_the_last(bench: Bench) -> None:
    """Next `since` is the page's `next_since_committed_id`; only the first request subscribes."""
    bench.connect()
    bench.sent()
    bench.say("sync_response", page(committed(1, value("a")), through=1, to=9, has_more=True))
    following = {"partitions": ["p"], "since_committed_id": 1, "limit": 500, "max_bytes": 1_048_576}
    assert bench.sent() == [("sync", following)]
    assert bench.store.cursor("p") == 1
    assert not bench.synced()
    bench.say("sync_response", page(committed(9, value("b")), through=9))
    assert bench.sent() == []
    assert bench.store.cursor("p") == 9
    assert bench.synced()
    assert [data["events"] for data in bench.told("sync_page")] == [1, 1]


def test_one_sync_is_in_flight(bench: Bench) -> None:
    """Requests made meanwhile wait, and share one cycle."""
    bench.ready()
    bench.core.sync(["p"])
    bench.core.sync(["q"])
    bench.core.sync(["r"], ["p", "q", "r"])
    assert [payload["partitions"] for _, payload in bench.sent()] == [["p"]]
    bench.say("sync_response", page(through=0))
    [(_, payload)] = bench.sent()
    assert payload["partitions"] == ["q", "r"]
    assert payload["subscription_partitions"] == ["p", "q", "r"]


def test_a_request_already_under_way_is_not_repeated(bench: Bench) -> None:
    """Asking for what the first page is still awaited of changes nothing."""
    bench.connect()
    bench.core.sync(["p"], ["p"])
    bench.core.sync()
    assert bench.kinds() == ["connect", "sync"]
    bench.say("sync_response", page(through=0))
    assert bench.sent() == []


def test_new_partitions_are_fetched_separately(tmp_path: Path) -> None:
    """Sync D58: known ones from their smallest cursor, those without one from 0."""
    bench = Bench(tmp_path / "c.db", partitions=["p", "q", "r"])
    bench.store.store_page([], ["p"], 80)
    bench.store.store_page([], ["q"], 70)
    bench.connect()
    _, payload = bench.sent()[-1]
    assert (payload["partitions"], payload["since_committed_id"]) == (["p", "q"], 70)
    assert payload["subscription_partitions"] == ["p", "q", "r"]
    bench.say("sync_response", page(through=90, partitions=["p", "q"]))
    [(_, payload)] = bench.sent()
    assert (payload["partitions"], payload["since_committed_id"]) == (["r"], 0)
    assert "subscription_partitions" not in payload
    assert not bench.synced()
    bench.say("sync_response", page(through=90, partitions=["r"]))
    assert bench.synced()
    bench.store.close()


def test_broadcasts_wait_for_the_watermark(bench: Bench) -> None:
    """Sync D60: before the first page everything is held back; then only what comes after it."""
    bench.connect()
    bench.broadcast(6, value("f", 6))
    bench.broadcast(3, value("c", 3))
    assert list(bench.store.rows()) == []
    bench.say("sync_response", page(committed(1, value("a")), through=1, to=5, has_more=True))
    bench.broadcast(4, value("d", 4))
    bench.broadcast(7, value("g", 7))
    assert [row.committed_id for row in bench.store.rows()] == [1, 4]
    bench.say("sync_response", page(committed(3, value("c", 3)), through=5))
    assert [row.committed_id for row in bench.store.rows()] == [1, 3, 4, 6, 7]
    assert bench.store.cursor("p") == 5
    positions = [data["committed_id"] for data in bench.told("broadcast")]
    assert positions == [4, 6, 7]


def test_broadcasts_next_to_each_other_share_a_transaction(bench: Bench) -> None:
    """A burst costs one sync of the disk; the order of messages is kept."""
    bench.ready()
    mine = bench.draft(value("m"), "mine")
    before = bench.store._file.connection.total_changes
    messages = [
        {"type": "event_broadcast", "payload": committed(position, value("a", position))}
        for position in range(1, 101)
    ]
    results = [{"id": mine.id, "status": "committed", "committed_id": 101, "status_updated_at": 1}]
    messages.append({"type": "submit_events_result", "payload": {"results": results}})
    bench.core.receive_all((message, 0) for message in messages)
    # Each event is a row and a position in its partition; the partition is to be checked.
    assert bench.store._file.connection.total_changes - before == 2 * 101 + 1
    assert bench.settings() == {"a": 100, "m": 1}


@pytest.mark.parametrize("limit", ["MAX_BUFFERED", "MAX_BUFFERED_BYTES"])
def test_a_full_buffer_is_dropped_and_fetched(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Beyond the cap nothing is kept in memory; another cycle brings it all."""
    monkeypatch.setattr(fetching, limit, 2)
    bench.connect()
    bench.sent()
    for position in (6, 7, 8, 9):
        message = {"type": "event_broadcast", "payload": committed(position, value("a", position))}
        bench.core.receive(message, size=1)
    bench.say("sync_response", page(through=5))
    assert list(bench.store.rows()) == []
    [(kind, payload)] = bench.sent()
    assert (kind, payload["since_committed_id"]) == ("sync", 5)
    assert not bench.synced()


def test_a_lost_connection_forgets_the_buffer(bench: Bench) -> None:
    """The buffer is memory only: after a drop the cursors decide."""
    bench.connect()
    bench.broadcast(6, value("a"))
    bench.core.disconnected()
    bench.connect()
    bench.say("sync_response", page(through=5))
    assert list(bench.store.rows()) == []


def test_a_page_nobody_asked_for_is_ignored(bench: Bench) -> None:
    """Its lower bound is unknown, so it proves nothing about cursors."""
    bench.ready()
    bench.say("sync_response", page(committed(1, value("a")), through=1))
    assert bench.store.cursor("p") == 0


def test_a_page_that_goes_nowhere_ends_the_connection(bench: Bench) -> None:
    """A server that promises more without going on would be asked for ever."""
    bench.connect()
    bench.sent()
    bench.say("sync_response", page(through=0, to=9, has_more=True))
    assert bench.kinds() == ["close"]


def test_a_forbidden_partition_is_left_out(tmp_path: Path) -> None:
    """Retried without the denied names; the next connection asks for them again."""
    bench = Bench(tmp_path / "c.db", partitions=["p", "q"])
    bench.connect()
    bench.error("forbidden", partitions=["q"])
    _, payload = bench.sent()[-1]
    assert payload["partitions"] == payload["subscription_partitions"] == ["p"]
    bench.say("sync_response", page(through=0))
    assert bench.synced()
    assert "q" not in bench.core.partitions
    bench.core.disconnected()
    assert "q" in bench.core.partitions
    bench.store.close()


def test_a_refused_sync_is_not_repeated(bench: Bench) -> None:
    """`bad_request` without a batch in flight means the sync: no loop, and drafts still go."""
    bench.connect()
    bench.draft(value("a"), "mine")
    bench.sent()
    bench.error("bad_request")
    assert bench.submitted() == [["mine"]]


def test_leaving_replaces_the_subscriptions(tmp_path: Path) -> None:
    """Leave P: a subscription set without P; leaving the last one is an empty set."""
    bench = Bench(tmp_path / "c.db", partitions=["p", "q"])
    bench.connect()
    bench.say("sync_response", page(through=0, partitions=["p", "q"]))
    bench.sent()
    bench.core.leave(["q"])
    [(_, payload)] = bench.sent()
    assert payload["partitions"] == payload["subscription_partitions"] == ["p"]
    bench.say("sync_response", page(through=0))
    bench.core.leave(["p"])
    [(_, payload)] = bench.sent()
    assert (payload["partitions"], payload["subscription_partitions"]) == (["p"], [])
    assert bench.core.partitions == ()
    bench.store.close()


# Histories: a log that is not the one that was followed


def test_the_history_is_remembered_and_named(bench: Bench) -> None:
    """The first one is taken as it is; from then on `connect` names it."""
    bench.store.store_page([], ["p"], 8)
    bench.connect(incarnation="one", began=0)
    assert bench.store.incarnation == "one"
    assert bench.sent()[-1][1]["since_committed_id"] == 8
    bench.core.disconnected()
    bench.connect(incarnation="one", began=8)
    messages = dict(bench.sent())
    assert messages["connect"]["incarnation"] == "one"
    assert messages["sync"]["since_committed_id"] == 8
    assert bench.told("history_reset") == []


def test_a_server_that_names_no_history_resets_nothing(bench: Bench) -> None:
    """One of an earlier version: absent means unknown."""
    bench.store.follow("one")
    bench.store.store_page([], ["p"], 8)
    bench.connect()
    assert bench.sent()[-1][1]["since_committed_id"] == 8
    assert bench.store.incarnation == "one"
    assert bench.told("history_reset") == []


@pytest.mark.parametrize(
    ("cursor", "began", "since", "kept"),
    [(8, 3, 3, [2, 3]), (8, 0, 0, []), (2, 3, 2, [2]), (5, 3, 3, [2, 3]), (3, 9, 3, [2, 3])],
)
def test_another_history_is_fetched_from_where_they_part(
    bench: Bench, cursor: int, began: int, since: int, kept: list[int]
) -> None:
    """Events after it go, from the views too; drafts and what was rejected stay."""
    bench.store.follow("one")
    positions = [position for position in (2, 3, 5, 8) if position <= cursor]
    bench.connect(incarnation="one")
    bench.say(
        "sync_response",
        page(
            *(committed(position, value(f"v{position}")) for position in positions), through=cursor
        ),
    )
    bench.draft(value("refused"), "refused")
    bench.result(id="refused", status="rejected", reason="forbidden")
    assert bench.settings() == {f"v{position}": 1 for position in positions}
    bench.core.disconnected()
    bench.draft(value("mine"), "mine")
    bench.sent()
    bench.connect(incarnation="two", began=began)
    kind, payload = bench.sent()[-1]
    assert (kind, payload["since_committed_id"]) == ("sync", since)
    assert bench.told("history_reset") == [
        {"incarnation": "two", "began": began, "dropped": len(positions) - len(kept)}
    ]
    assert bench.settings() == {f"v{position}": 1 for position in kept} | {"mine": 1}
    events = [
        committed(position, value(f"n{position}"), id=f"n{position}") for position in (11, 12)
    ]
    bench.say("sync_response", page(*events, through=12))
    assert bench.settings() == {f"v{position}": 1 for position in kept} | {
        "n11": 1,
        "n12": 1,
        "mine": 1,
    }
    assert bench.submitted() == [["mine"]]
    assert bench.store.row("refused").status == "rejected"
    assert bench.codes() == []


def test_a_snapshot_of_another_history_is_dropped(bench: Bench) -> None:
    """One that ends before they part is kept; one that hides pruned rows makes all be fetched."""
    bench.store.follow("one")
    bench.core.sync(["q"])
    bench.connect(incarnation="one")
    both = {"partitions": ["p", "q"], "effective_subscriptions": ["p", "q"]}
    events = [
        committed(2, value("a"), "p", "q"),
        committed(3, value("b"), "q"),
        committed(8, value("c"), "p"),
    ]
    bench.say("sync_response", page(*events, through=8) | both)
    assert bench.core.save_snapshot("p") == 8
    assert bench.core.save_snapshot("q") == 3
    assert bench.store.prune() == 3
    bench.core.disconnected()
    bench.sent()
    bench.connect(incarnation="two", began=5)
    [snapshot] = bench.store.snapshots()
    assert (snapshot.partition, snapshot.committed_id) == ("q", 3)
    _, payload = bench.sent()[-1]
    assert (payload["partitions"], payload["since_committed_id"]) == (["q"], 5)
    bench.say("sync_response", page(through=9) | both | {"partitions": ["q"]})
    _, payload = bench.sent()[-1]
    assert (payload["partitions"], payload["since_committed_id"]) == (["p"], 0)
    events = [committed(2, value("a"), "p", "q"), committed(9, value("d"), "p")]
    bench.say("sync_response", page(*events, through=9) | both | {"partitions": ["p"]})
    assert bench.settings("p") == {"a": 1, "d": 1}
    assert bench.settings("q") == {"a": 1, "b": 1}


# Integrity


def test_a_contradiction_starts_over(bench: Bench) -> None:
    """17.6: told as an error, log forgotten, drafts kept, fetched from 0, then resubmitted."""
    bench.ready()
    bench.broadcast(5, value("a"))
    bench.draft(value("mine"), "mine")
    bench.sent()
    bench.broadcast(5, value("z"), id="impostor")
    assert bench.codes() == ["integrity_violation"]
    assert [row.id for row in bench.store.rows()] == ["mine"]
    [(kind, payload)] = bench.sent()
    assert (kind, payload["since_committed_id"]) == ("sync", 0)
    bench.say("sync_response", page(committed(5, value("z"), id="impostor"), through=5))
    assert bench.settings() == {"z": 1, "mine": 1}
    bench.core.disconnected()
    bench.connect()
    bench.say("sync_response", page(through=5))
    assert bench.submitted() == [["mine"]]


def test_a_future_cursor_starts_over(bench: Bench) -> None:
    """The server's log ends before our cursor: it lost history or is another server."""
    bench.store.store_page([], ["p"], 900)
    bench.connect()
    bench.sent()
    bench.say("sync_response", page(through=12))
    assert bench.codes() == ["integrity_violation"]
    [(_, payload)] = bench.sent()
    assert payload["since_committed_id"] == 0
    assert bench.store.cursor("p") == 0


def test_a_violation_during_a_cycle_waits_for_its_answer(bench: Bench) -> None:
    """Requests are not pipelined: the answer in flight is thrown away, then it starts over."""
    bench.ready()
    bench.broadcast(5, value("a"))
    bench.core.sync()
    bench.sent()
    bench.say("submit_events_result", {"results": []})
    bench.core.submit(["p"], value("b"), "mine")
    bench.result(id="mine", status="committed", committed_id=5)
    assert bench.codes() == ["integrity_violation"]
    assert "sync" not in bench.kinds()
    bench.say("sync_response", page(committed(6, value("c")), through=6))
    assert [row.id for row in bench.store.rows()] == ["mine"]
    _, payload = bench.sent()[-1]
    assert payload["since_committed_id"] == 0


def test_a_commit_that_cannot_happen_starts_over_once(bench: Bench) -> None:
    """Sync D54: fetched anew; if that does not mend it, it is told and passed over."""
    bench.ready()
    bench.broadcast(5, update("nobody", name="x"))
    assert bench.codes() == ["integrity_violation"]
    assert bench.kinds() == ["sync"]
    bench.say("sync_response", page(committed(5, update("nobody", name="x")), through=5))
    assert bench.codes() == ["integrity_violation"] * 2
    assert bench.sent() == []
    assert bench.synced()
    bench.broadcast(6, value("a"))
    assert bench.settings() == {"a": 1}
    assert bench.sent() == []


def test_a_gap_during_a_cycle_is_no_violation(bench: Bench) -> None:
    """A broadcast below the watermark may need an event of a page that has not come yet."""
    bench.connect()
    bench.say("sync_response", page(committed(1, value("a")), through=1, to=5, has_more=True))
    bench.broadcast(4, update("n", name="x"))
    assert bench.nodes() == {}
    bench.say("sync_response", page(committed(3, push("n")), through=5))
    assert bench.nodes() == {"n": {"id": "n", "name": "x"}}
    assert bench.codes() == []


def test_own_commits_beyond_held_broadcasts_are_no_violation(bench: Bench) -> None:
    """A result is stored while the broadcasts before it wait for the end of the cycle."""
    bench.ready()
    bench.draft(push("n"), "mine")
    bench.core.sync()
    bench.broadcast(2, push("m"))
    bench.result(id="mine", status="committed", committed_id=3)
    assert list(bench.nodes()) == ["n"]
    bench.say("sync_response", page(through=1))
    assert sorted(bench.nodes()) == ["m", "n"]
    assert bench.codes() == []


def test_a_second_contradiction_drops_the_connection(bench: Bench) -> None:
    """A server that contradicts itself is not fetched from in a tight loop."""
    bench.ready()
    bench.broadcast(5, value("a"))
    bench.broadcast(5, value("a"), id="impostor")
    bench.sent()
    events = [committed(1, value("a")), committed(1, value("a"), id="impostor")]
    bench.say("sync_response", page(*events, through=1))
    assert bench.kinds() == ["close"]
