"""Commits per second of the committer, beside two references timed in the same run.

For each engine and number of submitters: commits/s, p50 and p99 from submit to answer, and
  per_request   the ratio to one transaction per request, and
  bulk_insert   the ratio to a bare bulk insert of the very same rows in batches of the same size.
The references are as fast as we can write them: prepared rows, no decisions, no answers.

`--writers` compares where SQLite's transaction runs (all on the event loop, all in a thread, or
only COMMIT in a thread), with the loop idle and with the loop kept busy by other work.

`--wal` compares a COMMIT of SQLite that makes the file of its WAL longer with one that overwrites
it, of a few pages and of many; nothing else is in the process.

Example: python bench/commit.py --submitters 1 16 256 1024 --rounds 3
"""

import argparse
import asyncio
import gc
import json
import os
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import uvloop

from tidelog.base.clock import SystemClock
from tidelog.base.garbage_collection import leave_startup_out
from tidelog.base.metrics import Metrics
from tidelog.base.settings.limits import Limits
from tidelog.base.sql.sqlitefile import connect, enable_seals
from tidelog.config.schema import SCHEMA
from tidelog.log.committer import Committer
from tidelog.log.decision import Accept, Answer, Failure, Names, View
from tidelog.log.request import Submission
from tidelog.store import open_store
from tidelog.store.engine import GENESIS_DIGEST, Store
from tidelog.store.postgresql_rows import to_columns
from tidelog.store.rows import Effects, Head, Loaded
from tidelog.store.sqlite import SqliteStore, SqliteWriter, sealed_row
from tidelog.testing.postgresql import create_database, throwaway_postgresql

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # the surface that is timed is the tests'

from support.probe.rules import PutItem, prepare_put
from support.probe.service import EXTENSION
from support.probe.wire import decode_put

WITH_PROBE = SCHEMA.extended([EXTENSION])

STREAMS = 64
VALUE_BYTES = 200
WORK = {1: 1000, 16: 6000, 256: 24_000, 1024: 24_000}
BUSY_SECONDS = 0.0005
WAL_PAGES = {6: 400, 300: 20}
"""Pages of a transaction, and how many transactions there are of it."""


def items(count: int) -> list[PutItem]:
    """Prepared puts with unique keys; the stateless work is not what is measured."""
    salt = os.urandom(4).hex()
    value = "x" * (VALUE_BYTES - 2)
    return [
        prepare_put(
            decode_put(
                json.dumps(
                    {"op": "put", "stream": f"s{n % STREAMS}", "key": f"{salt}-{n}", "value": value}
                )
            )
        )
        for n in range(count)
    ]


@asynccontextmanager
async def committer_on(store: Store) -> AsyncIterator[Committer]:
    """A committer with room for every submitter."""
    committer = await Committer.start(store, SystemClock(), Metrics(), Limits())
    try:
        yield committer
    finally:
        await committer.stop()


async def commit_all(
    committer: Committer, work: Sequence[PutItem], submitters: int
) -> dict[str, Any]:
    """Let `submitters` share the work, each submitting its next when it has its answer.

    They are driven by callbacks, as WebSocket sessions are: a task per submitter would measure the
    event loop.
    """
    done = asyncio.get_running_loop().create_future()
    pending = iter(work)
    latencies: list[float] = []
    now = time.perf_counter

    class Submitter:
        """One request at a time."""

        __slots__ = ("submitted_at",)

        def submit(self) -> None:
            item = next(pending, None)
            if item is not None:
                self.submitted_at = now()
                committer.submit(Submission(item.names(), len(item.body), (item,), self.answered))

        def answered(self, answers: Sequence[Answer | Failure]) -> None:
            [answer] = answers
            assert not isinstance(answer, Failure), answer
            assert answer.status == "committed", answer
            latencies.append(now() - self.submitted_at)
            if len(latencies) == len(work):
                done.set_result(None)
            else:
                self.submit()

    leave_startup_out()  # as `tidelog serve` does; the prepared work is the bench's, no server's
    started, cpu = now(), time.process_time()
    for _ in range(submitters):
        Submitter().submit()
    await done
    took = now() - started
    gc.unfreeze()
    latencies.sort()
    return {
        "commits_per_s": len(work) / took,
        "cpu_us_per_commit": (time.process_time() - cpu) / len(work) * 1e6,
        "p50_ms": latencies[len(latencies) // 2] * 1000,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1000,
    }


def effects_of(work: Sequence[PutItem], batch: int) -> list[Effects]:
    """The very rows that committing `work` writes, in batches."""
    head = Head(0, GENESIS_DIGEST, 0, "", "")
    state: dict[str, Any] = {}
    serials: dict[str, int] = {}
    result = []
    for start in range(0, len(work), batch):
        part = work[start : start + batch]
        names = [item.names() for item in part]
        loaded = Loaded(
            head=head,
            others=[],
            dedupe=dict.fromkeys(key for name in names for key in name.dedupe),
            serials={s: serials.get(s, 0) for name in names for s in name.streams},
            rows={row: state.get(row[1][0], ()) for name in names for row in name.rows},
        )
        view = View(loaded, time.time_ns() // 1_000_000)
        for item in part:
            decision = item.decide(view)
            assert isinstance(decision, Accept)
            for entry in view.accept(decision):
                serials[entry.stream] = entry.stream_serial
            for change in decision.rows:
                assert change.becomes is not None
                state[change.values[0]] = change.becomes.rows
        effects = view.effects()
        assert effects is not None
        head = Head(effects.committed_id, effects.digest, effects.committed_at, "", "")
        result.append(effects)
    return result


def reference_sqlite(path: Path, work: Sequence[PutItem], batch: int) -> float:
    """Bare inserts of the same rows, `batch` of them per transaction; commits per second.

    With a batch of one it also reads what a request must read: its key, its serial, its state.
    """
    queries = WITH_PROBE.queries("sqlite")
    prepared = effects_of(work, batch)
    connection = connect(path)
    enable_seals(connection)
    execute, executemany = connection.execute, connection.executemany
    started = time.perf_counter()
    for effects, item in zip(prepared, work[::batch], strict=True):
        execute("BEGIN IMMEDIATE")
        if batch == 1:
            execute(queries["dedupe_row"], ("probe", item.key)).fetchone()
            execute(queries["stream_serial"], (effects.entries[0].stream,)).fetchone()
            execute(queries["probe_stream"], (item.stream,)).fetchone()
        executemany(queries["insert_entry"], effects.entries)
        executemany(queries["insert_dedupe"], map(sealed_row, effects.dedupe))
        executemany(queries["put_probe_stream"], [change.values for change in effects.changes])
        head = (effects.committed_id, effects.digest, effects.committed_at)
        execute(queries["advance_head"], head)
        execute("COMMIT")
    took = time.perf_counter() - started
    connection.close()
    return len(work) / took


async def reference_postgresql(url: str, work: Sequence[PutItem], batch: int) -> float:
    """The same on PostgreSQL: one `unnest` for each kind of row; commits per second."""
    queries = WITH_PROBE.queries("postgresql")
    advance = "UPDATE tidelog.head SET committed_id = $1, digest = $2, committed_at = $3"
    prepared = []
    for effects in effects_of(work, batch):
        written = (
            (queries["write_entries"], to_columns(effects.entries, 13)),
            (queries["write_keys"], to_columns(effects.dedupe, 9)),
            (
                queries["put_probe_stream"],
                to_columns([change.values for change in effects.changes], 4),
            ),
            (advance, (effects.committed_id, effects.digest, effects.committed_at)),
        )
        prepared.append((written, effects))
    connection = await asyncpg.connect(url)
    started = time.perf_counter()
    for (written, effects), item in zip(prepared, work[::batch], strict=True):
        await connection.execute(queries["lock_head"])
        if batch == 1:
            await connection.fetch(queries["dedupe_rows"], ["probe"], [item.key])
            await connection.fetch(queries["stream_serials"], [effects.entries[0].stream])
            await connection.fetch(queries["probe_stream"], [item.stream])
        for statement, values in written:
            await connection.execute(statement, *values)
        await connection.execute("COMMIT")
    took = time.perf_counter() - started
    await connection.close()
    return len(work) / took


class _Location:
    """Makes empty stores of one engine."""

    def __init__(self, engine: str, directory: Path, server: str | None) -> None:
        self.engine = engine
        self._directory = directory
        self._server = server
        self._count = 0

    async def new(self) -> str:
        """An empty store with the probe's table."""
        self._count += 1
        if self._server is None:
            location = str(self._directory / f"{self._count}.db")
        else:
            location = await create_database(self._server)
        store = await open_store(WITH_PROBE, location, log_id="bench", node="bench")
        await store.close()
        return location

    async def reference(self, work: Sequence[PutItem], batch: int) -> float:
        """Commits per second of the reference."""
        location = await self.new()
        if self._server is None:
            return reference_sqlite(Path(location), work, batch)
        return await reference_postgresql(location, work, batch)


async def measure(places: _Location, submitters: int, rounds: int) -> dict[str, Any]:
    """Medians over the rounds; in each round the three are timed one after another."""
    batch = min(submitters, Limits().commit_batch_requests)
    results, per_request, bulk = [], [], []
    for _ in range(rounds):
        work = items(WORK[submitters])
        location = await places.new()
        store = await open_store(WITH_PROBE, location, log_id="b", node="b")
        try:
            async with committer_on(store) as committer:
                results.append(await commit_all(committer, work, submitters))
        finally:
            await store.close()
        per_request.append(await places.reference(work[: WORK[1]], 1))
        bulk.append(await places.reference(work[: len(work) // batch * batch], batch))

    def median(values: Sequence[float]) -> float:
        return round(statistics.median(values), 2)

    return {
        "engine": places.engine,
        "submitters": submitters,
        **{name: median([result[name] for result in results]) for name in results[0]},
        "one_transaction_per_request_per_s": median(per_request),
        "bulk_insert_rows_per_s": median(bulk),
        "ratio_to_per_request": median(
            [r["commits_per_s"] / p for r, p in zip(results, per_request, strict=True)]
        ),
        "ratio_to_bulk_insert": median(
            [r["commits_per_s"] / b for r, b in zip(results, bulk, strict=True)]
        ),
    }


_THREAD = ThreadPoolExecutor(1)


class CommitThreadWriter(SqliteWriter):
    """Reading and inserting on the loop, COMMIT in a thread."""

    async def commit(self, batch_id: bytes, effects: Effects) -> None:
        """See `Writer.commit`."""
        del batch_id
        with self._as_store_errors():
            self._write(effects)
            await asyncio.get_running_loop().run_in_executor(_THREAD, self._commit)


class ThreadWriter(SqliteWriter):
    """Everything in a thread."""

    async def begin(self, names: Names, seen: int) -> Loaded:
        """See `Writer.begin`."""
        del seen

        def work() -> Loaded:
            self._connection.execute("BEGIN IMMEDIATE")
            return self._load(names)

        return await asyncio.get_running_loop().run_in_executor(_THREAD, work)

    async def commit(self, batch_id: bytes, effects: Effects) -> None:
        """See `Writer.commit`."""
        del batch_id

        def work() -> None:
            self._write(effects)
            self._commit()

        with self._as_store_errors():
            await asyncio.get_running_loop().run_in_executor(_THREAD, work)


async def compare_writers(places: _Location, submitters: int, rounds: int) -> list[dict[str, Any]]:
    """Where the transaction runs, with the loop idle and with the loop kept busy."""
    rows = []
    for busy in (False, True):
        for name, kind in (
            ("all on the loop", SqliteWriter),
            ("commit in a thread", CommitThreadWriter),
            ("all in a thread", ThreadWriter),
        ):
            results, other_work = [], []
            for _ in range(rounds):
                store = SqliteStore(WITH_PROBE, Path(await places.new()), log_id="b")
                store.writer.__class__ = kind
                turns, spinning = _keep_busy() if busy else (lambda: 0.0, None)
                try:
                    async with committer_on(store) as committer:
                        work = items(WORK[submitters] // (8 if busy else 1))
                        results.append(await commit_all(committer, work, submitters))
                finally:
                    if spinning is not None:
                        spinning.cancel()
                    await store.close()
                other_work.append(turns())
            rows.append(
                {
                    "writer": name,
                    "loop": "busy" if busy else "idle",
                    "submitters": submitters,
                    **{
                        key: round(statistics.median(result[key] for result in results), 2)
                        for key in results[0]
                    },
                    "other_work_share": round(statistics.median(other_work), 2),
                }
            )
    return rows


def _keep_busy() -> tuple[Callable[[], float], "asyncio.Task[None]"]:
    """Work of 0.5 ms in every turn of the loop; returns which share of the time it got."""
    spent, began = 0.0, time.perf_counter()

    async def spin() -> None:
        nonlocal spent
        while True:
            started = time.perf_counter()
            while time.perf_counter() - started < BUSY_SECONDS:
                pass
            spent += time.perf_counter() - started
            await asyncio.sleep(0)

    task = asyncio.create_task(spin())
    return (lambda: spent / (time.perf_counter() - began)), task


def compare_wal(directory: Path, pages: int, transactions: int, rounds: int) -> dict[str, Any]:
    """Medians of COMMIT, on the clock and of CPU, with a WAL that grows and one that is reused."""
    path = directory / f"wal-{pages}.db"
    connection = connect(path)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute(f"PRAGMA journal_size_limit = {1 << 30}")
    connection.execute("CREATE TABLE page (number INTEGER PRIMARY KEY, filled BLOB)")
    row = (bytes(3800),)  # one of these fills a page

    def commits() -> tuple[float, float]:
        took = used = 0.0
        for _ in range(transactions):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO page (filled) VALUES (?)", [row] * (pages - 1))
            began, cpu = time.perf_counter(), time.process_time()
            connection.execute("COMMIT")
            took += time.perf_counter() - began
            used += time.process_time() - cpu
        return took / transactions * 1e6, used / transactions * 1e6

    found: dict[str, list[tuple[float, float]]] = {"made_longer": [], "overwritten": []}
    for _ in range(rounds):
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        found["made_longer"].append(commits())
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        found["overwritten"].append(commits())
    connection.close()
    medians = {
        name: {
            "commit_us": round(statistics.median(took for took, _ in each)),
            "cpu_us": round(statistics.median(used for _, used in each)),
        }
        for name, each in found.items()
    }
    return {"pages": pages, "transactions": transactions, **medians}


async def main(options: argparse.Namespace) -> None:
    """Measure what was asked for and print it."""
    document: dict[str, Any] = {
        "bench": "commit",
        "conditions": {
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "sqlite": sqlite3.sqlite_version,
            "event_loop": "uvloop",
            "fsync": True,
            "rounds": options.rounds,
            "value_bytes": VALUE_BYTES,
            "streams": STREAMS,
            "rows_per_commit": "one log entry, one dedupe row, one state row",
        },
    }
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=options.directory) as directory:
        sqlite = _Location("sqlite", Path(directory), None)
        if options.wal:
            document["wal"] = [
                compare_wal(Path(directory), pages, count, options.rounds)
                for pages, count in WAL_PAGES.items()
            ]
        elif options.writers:
            document["writers"] = [
                row
                for submitters in options.submitters
                for row in await compare_writers(sqlite, submitters, options.rounds)
            ]
        else:
            document["results"] = [
                await measure(sqlite, submitters, options.rounds)
                for submitters in options.submitters
            ]
            if not options.sqlite_only:
                with throwaway_postgresql() as server:
                    postgresql = _Location("postgresql", Path(directory), server)
                    document["results"] += [
                        await measure(postgresql, submitters, options.rounds)
                        for submitters in options.submitters
                    ]
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--submitters", type=int, nargs="+", default=list(WORK), choices=WORK)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--writers", action="store_true", help="compare where COMMIT runs")
    parser.add_argument("--wal", action="store_true", help="compare what COMMIT does to its WAL")
    parser.add_argument("--sqlite-only", action="store_true")
    parser.add_argument("--directory", default=str(Path.cwd()), help="where the files are made")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(arguments))
    sys.exit(0)
