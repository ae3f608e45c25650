"""`tidelog log`: look at the log from outside, while a server runs or not."""

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct

from tidelog.base.terminal import counted, printable, printable_lines
from tidelog.cli.shared.given_settings import settings_from
from tidelog.cli.shared.options import ConfigOption, DataDirOption, JsonOption, StoreOption

if TYPE_CHECKING:
    from tidelog.config.settings import Settings
    from tidelog.store.engine import Store
    from tidelog.store.rows import Entry

app = typer.Typer(
    help="Inspect the log: follow, count and verify it; compact its files.",
    no_args_is_help=True,
)

TAIL_ENTRIES = 20
"""Entries `tail` shows when it is not told where to begin."""

BACK_ENTRIES = 500
"""How far `tail` goes back at a time to find the last entries of a surface or stream."""

POLL_SECONDS = 0.2
"""How often `tail --follow` looks at the head of an SQLite log; PostgreSQL wakes it."""

MAX_ID = 2**63 - 1

_SHOWN_BODY_CHARACTERS = 120


async def open_reader(settings: "Settings") -> "Store":
    """The store, for reading only: no lock, no migration."""
    from tidelog.config.schema import SCHEMA
    from tidelog.store import open_store

    return await open_store(SCHEMA, settings.store_location, log_id="", node="", read_only=True)


@app.command()
def tail(
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing entries as they are committed.")
    ] = False,
    start: Annotated[
        int | None, typer.Option("--from", min=1, max=MAX_ID, help="Start at this committed_id.")
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("-n", "--count", min=1, help="So many entries, the last ones without --from."),
    ] = None,
    surface: Annotated[
        str | None,
        typer.Option("--surface", help="Only entries of this surface: channels, sync or mesh."),
    ] = None,
    stream: Annotated[
        str | None,
        typer.Option("--stream", help="Only entries of this stream, such as channels/app-id/room."),
    ] = None,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print entries of the log in order; the last 20 unless --from or -n is given.

    Example: tidelog log tail -n 5 --surface channels --stream channels/app-id/room-7 --json
    """
    settings = settings_from(config, data_dir=data_dir, store=store)
    wanted = Wanted(start, count, surface, stream)
    try:
        asyncio.run(_tail(settings, wanted, follow=follow, as_json=as_json))
    except (BrokenPipeError, KeyboardInterrupt):
        sys.stderr.close()  # whoever read us has gone; Python would complain about it at exit


class Wanted(Struct, frozen=True):
    """Which entries `tail` shows."""

    start: int | None
    count: int | None
    surface: str | None
    stream: str | None

    def has(self, entry: "Entry") -> bool:
        """Whether an entry is one of them."""
        return self.surface in (None, entry.surface) and self.stream in (None, entry.stream)


async def _tail(settings: "Settings", wanted: Wanted, *, follow: bool, as_json: bool) -> None:
    store = await open_reader(settings)
    try:
        moved = asyncio.Event()
        if follow:
            store.watch_head(lambda _head: moved.set())
        head = (await store.head()).committed_id
        at, left = await _beginning(store, head, wanted)
        shown = 0
        while True:
            while left != 0 and (page := await store.entries(at)):
                found = [entry for entry in page if wanted.has(entry)][:left]
                sys.stdout.writelines(_line(entry, as_json=as_json) for entry in found)
                sys.stdout.flush()
                shown += len(found)
                left = None if left is None else left - len(found)
                at = page[-1].committed_id
            if not follow or left == 0:
                if not shown:
                    sys.stderr.write(f"tidelog: nothing to show, the log ends at {head}\n")
                return
            moved.clear()
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await moved.wait()
            except TimeoutError:
                pass
    finally:
        await store.close()


async def _beginning(store: "Store", head: int, wanted: Wanted) -> tuple[int, int | None]:
    """The position after which to show entries, and how many; None for all that come."""
    if wanted.start is not None:
        return wanted.start - 1, wanted.count
    count = TAIL_ENTRIES if wanted.count is None else wanted.count
    if wanted.surface is None and wanted.stream is None:
        return max(0, head - count), None
    # Those wanted may be anywhere: the log is read from its end until there are enough of them.
    before, found = head, 0
    while before and found < count:
        at = max(0, before - BACK_ENTRIES)
        page = await store.entries(at, through=before, limit=BACK_ENTRIES)
        matching = [entry.committed_id for entry in page if wanted.has(entry)]
        found += len(matching)
        if found >= count:
            return matching[found - count] - 1, None
        before = at
    return 0, None


def _line(entry: "Entry", *, as_json: bool) -> str:
    if as_json:
        return json.dumps(_as_json(entry)) + "\n"
    at = time.strftime("%H:%M:%S", time.gmtime(entry.committed_at / 1000))
    body = "(pruned)" if entry.body is None else entry.body.decode("utf-8", "replace")
    if len(body) > _SHOWN_BODY_CHARACTERS:
        body = body[: _SHOWN_BODY_CHARACTERS - 1] + "…"
    position = f"{entry.stream}#{entry.stream_serial}"
    line = f"{entry.committed_id:>8}  {at}Z  {position}  {entry.kind}  {entry.entity}  {body}"
    return f"{printable(line)}\n"


def _as_json(entry: "Entry") -> dict[str, Any]:
    row = entry._asdict()
    row["body"] = None if entry.body is None else entry.body.decode("utf-8", "replace")
    for name in ("data", "body_digest", "digest"):
        row[name] = None if row[name] is None else row[name].hex()
    return row


@app.command()
def stats(
    *,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count the log: entries, streams, pruned entries and bytes, by surface.

    Example: tidelog log stats --data-dir ./data
    """
    settings = settings_from(config, data_dir=data_dir, store=store)
    asyncio.run(_stats(settings, as_json=as_json))


async def _stats(settings: "Settings", *, as_json: bool) -> None:
    store = await open_reader(settings)
    try:
        head, surfaces = await store.head(), await store.stats()
        keys = await store.dedupe_count()
        incarnation = (await store.incarnations())[-1]
    finally:
        await store.close()
    if as_json:
        summary = {
            "log_id": head.log_id,
            "incarnation": incarnation._asdict(),
            "head": head.committed_id,
            "digest": head.digest.hex(),
            "dedupe_keys": keys,
            "surfaces": [surface._asdict() for surface in surfaces],
        }
        typer.echo(json.dumps(summary))
        return
    from rich.console import Console
    from rich.table import Table

    typer.echo(f"log {head.log_id}: head {head.committed_id}, {keys} keys remembered")
    typer.echo(f"incarnation {incarnation.id}, since position {incarnation.began}")
    table = Table()
    for name in ("surface", "entries", "streams", "pruned", "content bytes"):
        table.add_column(name, justify="left" if name == "surface" else "right")
    for surface in surfaces:
        table.add_row(surface.surface, *(f"{number:,}" for number in surface[1:5]))
    Console().print(table)


@app.command()
def verify(
    *,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Verify every entry and every row stored beside the log; exit 1 and show what is damaged.

    Example: tidelog log verify --data-dir ./data
    """
    settings = settings_from(config, data_dir=data_dir, store=store)
    if not asyncio.run(_verify(settings, as_json=as_json)):
        raise typer.Exit(1)


async def _verify(settings: "Settings", *, as_json: bool) -> bool:
    from tidelog.cli.verification import unsealed_text, verify_store

    store = await open_reader(settings)
    try:
        verdict = await verify_store(store)
    finally:
        await store.close()
    log = verdict.log
    if as_json:
        typer.echo(json.dumps(verdict.as_json()))
    elif log.finding:
        typer.echo(
            f"DAMAGED at {log.finding.committed_id}: {log.finding.problem}. "
            f"Entries 1 to {log.verified} are sound. Restore a backup with `tidelog restore`."
        )
    else:
        typer.echo(f"sound: {log.verified} entries verified, {log.pruned} of them pruned")
        if verdict.damaged:
            typer.echo(
                f"DAMAGED beside the log, {counted(verdict.damaged, 'finding')}:\n"
                f"{printable_lines(verdict.damage_text())}\n"
                "Restore a backup with `tidelog restore`."
            )
        else:
            typer.echo(
                f"sound: {verdict.rows} rows beside the log verified{unsealed_text(verdict)}"
            )
    return verdict.is_sound


@app.command()
def compact(
    *,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rewrite the store's files: they shrink, and no trace is left of what was removed.

    SQLite: stop the server first; a second copy of the file is written, which then replaces it.
    PostgreSQL: this is VACUUM FULL of tidelog's tables; every server waits until it is done.

    Example: tidelog log compact --data-dir ./data
    """
    from tidelog.cli.shared.progress import progress_bar
    from tidelog.config.schema import SCHEMA
    from tidelog.store.compaction import compact as write_anew

    settings = settings_from(config, data_dir=data_dir, store=store)
    with progress_bar("compacting") as show:
        done = asyncio.run(write_anew(SCHEMA, settings.store_location, show))
    if as_json:
        typer.echo(json.dumps(done._asdict()))
    else:
        typer.echo(f"{done.before_bytes:,} bytes before, {done.after_bytes:,} after")


@app.command()
def vacuum(
    *,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """The former name of `tidelog log compact`.

    Example: tidelog log vacuum --data-dir ./data
    """
    sys.stderr.write("tidelog: `log vacuum` is now called `tidelog log compact`; use that name\n")
    compact(data_dir=data_dir, store=store, config=config, as_json=as_json)
