"""What a sync client holds in memory, and reading a view without copying all of it (sync 17.11)."""

import asyncio
import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tidelog.client import SyncClient
from tidelog.client.sync.changes import Change, Changes
from tidelog.client.sync.folds import folds_for
from tidelog.client.sync.link import Inbox
from tidelog.client.sync.messages import Commit, Json, Limits
from tidelog.client.sync.store import SyncStore
from tidelog.client.sync.submit_queue import SubmitQueue
from tidelog.client.sync.views import Views
from tidelog.sync.protocol import tree
from tidelog.sync.protocol.profiles import CANONICAL, COMPATIBILITY, Model

MIB = 1024**2
MODEL = Model.parse(
    {
        "t": {"kind": "tree", "actions": ["treePush", "treeMove", "set"]},
        "v": {"kind": "value", "actions": ["set"]},
    },
    {"any": True},
    3,
)


def fill(path: Path, *commits: tuple[str, Json]) -> None:
    """A store with committed events: the partition of each, and the event."""
    store = SyncStore(path, client_id="ada", model_version=3, now=lambda: 1)
    rows = [
        Commit(f"e{place}", "bo", (partition,), place, 1, event)
        for place, (partition, event) in enumerate(commits, 1)
    ]
    store.store_page(rows, {partition for partition, _ in commits}, len(commits))
    store.close()


def opened(path: Path, **settings: Any) -> SyncClient:
    """A client without a server."""
    return SyncClient(None, client_id="ada", store=path, model=MODEL, **settings)


def value(given: object, path: str = "v") -> Json:
    """An event that sets a value."""
    options = {"replace": True} if isinstance(given, list) else {}
    return {"type": "set", "payload": {"target": path, "value": given, "options": options}}


def push(node: str, parent: str = "_root", **members: object) -> Json:
    """An event that adds a node after its siblings."""
    payload = {
        "target": "t",
        "value": {"id": node, **members},
        "options": {"parent": parent, "position": "last"},
    }
    return {"type": "treePush", "payload": payload}


def note(data: object) -> Json:
    """An event of the event profile."""
    return {"type": "event", "payload": {"schema": "any", "data": data}}


def keep(state: Json, event: Json) -> Json:
    """A reducer that keeps everything."""
    return {"all": [*state.get("all", ()), event["payload"]["data"]]}


# Memory


@pytest.mark.parametrize("profile", [COMPATIBILITY, CANONICAL])
async def test_states_in_memory_are_bounded_by_their_size(tmp_path: Path, profile: str) -> None:
    """40 states of half a MiB are looked at in turn; the memory is that of two or three."""
    names = [f"p{number}" for number in range(40)]
    make = value if profile == COMPATIBILITY else note
    given = [f"{number:050}" for number in range(4000)]
    fill(tmp_path / "c.db", *((name, make(given)) for name in names))
    async with opened(
        tmp_path / "c.db", profile=profile, reduce=keep, max_cached_bytes=MIB
    ) as client:
        client.view(names[0])
        gc.collect()
        tracemalloc.start()
        try:
            for name in names:
                assert len(str(client.view(name))) > 200_000
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert held < 4 * MIB


async def test_a_state_larger_than_the_bound_is_held_while_it_is_used(tmp_path: Path) -> None:
    """It is the only one then; looking at parts of it does not build it anew each time."""
    fill(
        tmp_path / "c.db",
        ("small", value(1)),
        *(("large", push(f"n{number}")) for number in range(50)),
    )
    async with opened(tmp_path / "c.db", max_cached_bytes=1) as client:
        views = client._core._views
        assert client.item("large", "t", "n7") == {"id": "n7"}
        applied = views.applied
        for number in range(50):
            assert client.item("large", "t", f"n{number}") is not None
        assert views.applied == applied == 50
        assert client.value("small", "v") == 1
        assert list(views._views) == ["small"]


def test_a_state_that_is_built_step_by_step_is_finished(tmp_path: Path) -> None:
    """Also if another one is looked at after every step, and there is no room for both."""
    commits = [("large", push(f"n{number}")) for number in range(50)]
    fill(tmp_path / "c.db", ("small", value(1)), *commits)
    store = SyncStore(tmp_path / "c.db", client_id="ada", model_version=3, now=lambda: 1)
    views = Views(store, folds_for(COMPATIBILITY, MODEL, keep), max_cached_bytes=1)
    steps = 1
    while not views.is_ready("large", 10):
        assert views.shown("small").fold.value("v") == 1
        steps += 1
    assert steps == 6
    views.shown("small")
    assert list(views._views) == ["small"], "now it may go"
    store.close()


def test_building_a_state_holds_few_events_at_once(tmp_path: Path) -> None:
    """They may have a megabyte each: 60 of 200 kB are read one after another."""
    fill(tmp_path / "c.db", *(("p", note("x" * 200_000)) for _ in range(60)))
    store = SyncStore(tmp_path / "c.db", client_id="ada", model_version=3, now=lambda: 1)
    tracemalloc.start()
    try:
        assert sum(1 for _ in store.committed_after("p", 0)) == 60
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        store.close()
    assert peak < 4 * MIB


def test_a_batch_of_drafts_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """Not a hundred drafts of 200 kB for a message that has room for five."""
    store = SyncStore(tmp_path / "c.db", client_id="ada", model_version=3, now=lambda: 1)
    for number in range(60):
        store.add_draft(f"d{number}", ["p"], note("x" * 200_000))
    queue = SubmitQueue(store)
    tracemalloc.start()
    try:
        taken = queue.take(Limits(max_message_bytes=MIB))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        store.close()
    assert len(taken.items) == 5
    assert peak < 5 * MIB


async def test_messages_wait_for_the_store_in_the_socket() -> None:
    """What was read ahead of it is bounded by its bytes, but for a single message."""
    inbox = Inbox()

    async def read() -> None:
        for number in range(20):
            await inbox.put({"n": number}, MIB)

    reader = asyncio.create_task(read())
    taken: list[Json] = []
    while len(taken) < 20:
        await asyncio.sleep(0)
        messages = inbox.take()
        assert len(messages) <= 4
        taken += [message for message, _ in messages]
    await reader
    assert taken == [{"n": number} for number in range(20)]
    async with asyncio.timeout(5):
        await inbox.put({}, 100 * MIB)


def test_a_consumer_that_is_behind_holds_so_many_bytes() -> None:
    """The oldest changes go first, and it is told how many they were."""
    changes = Changes()
    for number in range(100):
        changes.add(Change("broadcast", ("p",), {"id": str(number), "event": "x" * MIB}))
    held = sum(len(change.data["event"]) for change in changes._waiting)
    assert MIB <= held <= 16 * MIB
    assert changes._missed + len(changes._waiting) == 100
    assert changes._waiting[-1].data["id"] == "99"


# Parts of a view


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many values of states were copied so far."""
    count = [0]
    original = tree._copied

    def counted(given: Any) -> Any:
        count[0] += 1
        return original(given)

    monkeypatch.setattr(tree, "_copied", counted)
    return count


async def test_parts_of_a_view_cost_what_they_are(tmp_path: Path, copied: list[int]) -> None:
    """One item, the children of a node, a range: nothing else of 500 items is copied."""
    events = [push(f"n{n}", f"n{n - 1}" if n % 10 else "_root", text=str(n)) for n in range(500)]
    fill(tmp_path / "c.db", *(("p", event) for event in events), ("p", value({"x": [1, 2]})))
    async with opened(tmp_path / "c.db", partitions=["p"]) as client:
        client.item("p", "t", "n0")
        copied[0] = 0
        assert client.item("p", "t", "n33") == {"id": "n33", "text": "33"}
        assert client.item("p", "t", "nobody") is None
        assert client.children("p", "t", "n3") == ["n4"]
        assert client.children("p", "t", "n9") == []
        assert client.children("p", "t", limit=3) == ["n0", "n10", "n20"]
        assert client.children("p", "t", after="n470", limit=9) == ["n480", "n490"]
        some = client.nodes("p", "t", after="n8", limit=3)
        assert [(node.id, node.parent, node.depth) for node in some] == [
            ("n9", "n8", 9),
            ("n10", "_root", 0),
            ("n11", "n10", 1),
        ]
        assert some[1].item == {"id": "n10", "text": "10"}
        assert client.value("p", "v.x") == [1, 2]
        assert client.value("p", "v.nothing") is None
        assert copied[0] < 40
        client.view("p")
        assert copied[0] > 500
        whole = client.nodes("p", "t", limit=1000)
        assert [node.id for node in whole] == [f"n{n}" for n in range(500)]
        assert client.nodes("p", "t", after="n499") == []
        assert len(client.nodes("p", "t")) == 100


async def test_parts_of_a_view_show_drafts_and_are_the_callers_own(tmp_path: Path) -> None:
    """What is read is what `view` would show, and may be changed."""
    fill(tmp_path / "c.db", ("p", push("a")))
    async with opened(tmp_path / "c.db", partitions=["p"]) as client:
        await client.submit(partitions=["p"], event=push("b", "a", tags=["x"]))
        assert client.children("p", "t", "a") == ["b"]
        item = client.item("p", "t", "b")
        assert item is not None
        item["tags"].append("y")
        client.nodes("p", "t")[1].item["tags"].append("z")
        assert client.item("p", "t", "b") == {"id": "b", "tags": ["x"]}


async def test_what_there_is_not_is_told(tmp_path: Path) -> None:
    """A target that is none, a place that is none, a profile without trees."""
    fill(tmp_path / "c.db", ("p", push("a")), ("q", note({"n": 1})))
    async with opened(tmp_path / "c.db") as client:
        for look in (
            lambda: client.item("p", "nothing", "a"),
            lambda: client.children("p", "v"),
            lambda: client.children("p", "t", after="nobody"),
            lambda: client.nodes("p", "t", after="nobody"),
            lambda: client.value("p", "t"),
        ):
            with pytest.raises(KeyError):
                look()
        assert client.children("p", "t", "nobody") == []
    async with opened(tmp_path / "c.db", profile=CANONICAL, reduce=keep) as client:
        assert client.value("q", "all.0.n") == 1
        assert client.value("q", "all.1") is None
        assert client.value("q", "none.of.these") is None
        with pytest.raises(ValueError, match=r"no trees.*value\(\)"):
            client.item("q", "t", "a")
