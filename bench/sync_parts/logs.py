"""Tidelog servers on stores of their own: catching up with a log, and cold starts on it."""

import asyncio
import gc
import json
import statistics
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import uvloop

from by_part import SampledServer
from sync_parts.wire import (
    EVENT_BYTES,
    SCHEMA,
    SECRET,
    TIMEOUT_SECONDS,
    TREE_PARTITION,
    Tidelog,
    encode,
)
from tidelog.base.clock import SystemClock
from tidelog.base.metrics import Metrics
from tidelog.base.settings.limits import Limits
from tidelog.config import schema
from tidelog.log.committer import Committer
from tidelog.store import open_store
from tidelog.sync import messages
from tidelog.sync.front.service import SyncService
from tidelog.sync.protocol.actions import Submit
from tidelog.sync.protocol.items import PreparedItem, prepare
from tidelog.sync.protocol.profiles import COMPATIBILITY, Model
from tidelog.sync.protocol.wire import Committed
from tidelog.sync.settings import SyncSettings

PAGE = 1000
FAN_OUT = 10
"""Children of each node of a balanced tree."""
ADMIN_TOKEN = "an-admin-token-for-the-bench"
TARGET = "tasks"
MODEL: dict[str, Any] = {
    "model_version": 1,
    "schemas": {
        SCHEMA: {
            "type": "object",
            "required": ["number", "text"],
            "properties": {"number": {"type": "integer"}, "text": {"type": "string"}},
            "additionalProperties": False,
        }
    },
    "tree_targets": {
        TARGET: {"kind": "tree", "actions": ["treePush", "treeMove", "treeUpdate", "treeDelete"]}
    },
}


class Place:
    """Where one tidelog server keeps its things."""

    def __init__(self, home: Path, store: str | None) -> None:
        home.mkdir(parents=True)
        self.home = home
        self.store = store
        model_file = home / "model.json"
        model_file.write_text(json.dumps(MODEL), encoding="utf-8")
        self.sync = SyncSettings(
            jwt_secret=SECRET,
            model_file=str(model_file),
            heartbeat_timeout_ms=86_400_000,
            max_messages_per_second=1_000_000,
        )
        self.config = home / "tidelog.toml"
        self.config.write_text(
            "[limits]\nsend_buffer_messages = 100000\n[sync]\n"
            + "".join(
                f"{name} = {json.dumps(getattr(self.sync, name))}\n"
                for name in (
                    *("jwt_secret", "model_file", "heartbeat_timeout_ms"),
                    "max_messages_per_second",
                )
            ),
            encoding="utf-8",
        )

    @property
    def location(self) -> str:
        """What `open_store` opens."""
        return self.store or str(self.home / "data" / "tidelog.db")

    @contextmanager
    def server(self) -> Iterator[SampledServer]:
        """A running server."""
        process = SampledServer(
            data_dir=self.home / "data",
            store=self.store,
            environment={"TIDELOG_ADMIN_TOKEN": ADMIN_TOKEN},
            arguments=("--config", str(self.config), "--log-level", "warning"),
        )
        with process:
            process.start()
            yield process
            process.terminate()


def _push(number: int) -> dict[str, Any]:
    """A tree event, as long as the other events; the tree is balanced."""
    options: dict[str, Any] = {"position": "last"}
    if number:
        options["parent"] = f"n{(number - 1) // FAN_OUT}"
    value = {"id": f"n{number}", "title": ""}
    made = {
        "type": "treePush",
        "payload": {"target": TARGET, "value": value, "options": options},
    }
    value["title"] = "x" * max(0, EVENT_BYTES - len(encode(made)))
    return made


def _tree_items(first: int, count: int, model: Model) -> tuple[PreparedItem, ...]:
    items = []
    for number in range(first, first + count):
        made = _push(number)
        items.append(
            prepare(
                {"id": f"tree-{number}", "partitions": [TREE_PARTITION], "event": made},
                encode(made),
                client_id="writer",
                profile=COMPATIBILITY,
                model=model,
                allows=lambda _: True,
            )
        )
    return tuple(items)


def _submitted(service: SyncService, submit: Submit) -> asyncio.Future[Any]:
    """What is answered to a submit; all come from one connection, and keep their order."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    question = messages.Submit(submit.items, submit.size_bytes, submit.stops_at_rejection, 1)
    service.link.ask(question, answer.set_result)
    return answer


async def write_tree(place: Place, count: int) -> float:
    """Write `count` tree events through the committer and the rules of sync; events per second."""
    (place.home / "data").mkdir(exist_ok=True)
    store = await open_store(schema.SCHEMA, place.location, log_id="bench", node="bench")
    try:
        committer = await Committer.start(store, SystemClock(), Metrics(), Limits())
        try:
            # Only here: trees before the seam, whose submits before_after.py measures, have none.
            from tidelog.sync.surface import open_halves

            _, service = await open_halves(committer, store, place.sync, SystemClock())
            started = time.perf_counter()
            for begin in range(0, count, PAGE):
                end = min(count, begin + PAGE)
                submits = [
                    Submit(_tree_items(first, min(100, end - first), service.model), 30_000)
                    for first in range(begin, end, 100)
                ]
                for answer in [_submitted(service, submit) for submit in submits]:
                    results = (await answer).results
                    assert all(isinstance(each, Committed) for each in results), results
            return count / (time.perf_counter() - started)
        finally:
            await committer.stop()
    finally:
        await store.close()


class _PagePayload(msgspec.Struct):
    events: list[msgspec.Raw]
    next_since_committed_id: int
    has_more: bool


class _PageMessage(msgspec.Struct):
    payload: _PagePayload


_decode_page = msgspec.json.Decoder(_PageMessage).decode


def catch_up(process: SampledServer, count: int) -> dict[str, float]:
    """Page through the tree partition."""
    dialect = Tidelog()
    channel = dialect.connect(process.port, "reader")
    server = psutil.Process(process.pid)
    before = server.cpu_times()
    own, started = time.process_time(), time.perf_counter()
    since, seen, has_more = 0, 0, True
    while has_more:
        payload = {"partitions": [TREE_PARTITION], "since_committed_id": since, "limit": PAGE}
        page = _decode_page(channel.ask(dialect.message("sync", payload), "sync_response")).payload
        since, has_more = page.next_since_committed_id, page.has_more
        seen += len(page.events)
    took = time.perf_counter() - started
    own = time.process_time() - own
    after = server.cpu_times()
    channel.close()
    if seen < count:
        raise AssertionError(f"{seen} events instead of {count}")
    return {
        "seconds": took,
        "events_per_s": seen / took,
        "server_cpu_share": (after.user + after.system - before.user - before.system) / took,
        "client_cpu_share": own / took,
    }


def first_submit(process: SampledServer, number: int) -> float:
    """Seconds from submit to result of a tree event, on a connection that is already there."""
    dialect = Tidelog()
    channel = dialect.connect(process.port, "writer", COMPATIBILITY)
    made = _push(number)
    item = {"id": f"tree-{number}", "partitions": [TREE_PARTITION], "event": made}
    started = time.perf_counter()
    answer = channel.ask(
        dialect.message("submit_events", {"events": [item]}), "submit_events_result"
    )
    took = time.perf_counter() - started
    channel.close()
    if b'"committed"' not in answer:
        raise AssertionError(answer)
    return took


def put_snapshot(process: SampledServer) -> float:
    """Let the server store a snapshot of the tree; seconds."""
    request = urllib.request.Request(
        f"{process.url}/sync/admin/snapshot",
        data=json.dumps({"partition": TREE_PARTITION}).encode(),
        headers={"authorization": f"Bearer {ADMIN_TOKEN}"},
        method="PUT",
    )
    started = time.perf_counter()
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        answer.read()
    return time.perf_counter() - started


def measure_log(place: Place, count: int, repeats: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Catching up with a log of `count` tree events, and cold starts on it."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        written = runner.run(write_tree(place, count))
    gc.collect()
    number, pages, starts = count, [], []
    without, snapshots, loaded = [], [], []
    for repeat in range(repeats):
        started = time.perf_counter()
        with place.server() as process:
            starts.append(time.perf_counter() - started)
            without.append(first_submit(process, number))
            number += 1
            pages.append(catch_up(process, count))
            if repeat == repeats - 1:
                snapshots.append(put_snapshot(process))
    for _ in range(repeats):
        with place.server() as process:
            loaded.append(first_submit(process, number))
            number += 1
    caught_up = {
        "events": count,
        **{name: median([page[name] for page in pages]) for name in pages[0]},
        "seconds_runs": [round(page["seconds"], 2) for page in pages],
        "aim_seconds": 3,
    }
    cold = {
        "events": count,
        "first_submit_without_snapshot_s": median(without, 3),
        "first_submit_with_snapshot_s": median(loaded, 3),
        "with_snapshot_runs": [round(one, 3) for one in loaded],
        "put_snapshot_s": median(snapshots, 3),
        "server_start_s": median(starts),
        "written_in_process_per_s": round(written),
        "aim_with_snapshot_s": 1,
    }
    return caught_up, cold


def median(values: Sequence[float], digits: int = 2) -> float:
    """The median, rounded."""
    return round(statistics.median(values), digits)
