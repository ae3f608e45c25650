"""`tidelog backup` and `tidelog restore`."""

import asyncio
import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from tidelog.base.errors import StoreDamaged
from tidelog.cli.options import (
    ConfigOption,
    DataDirOption,
    JsonOption,
    StoreOption,
    masked_location,
    settings_from,
)
from tidelog.cli.progress import progress_bar

VERIFIED = "the schema, every page, the digests of the log, the relations of the mesh"
"""What a restore has looked at; other rows beside the log it cannot judge."""


def backup(
    target: Annotated[Path, typer.Argument(help="New file to write the backup to.")],
    *,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the whole log to one file, while the server runs, and verify the copy.

    Example: tidelog backup ./backups/monday.db --data-dir ./data
    """
    settings = settings_from(config, data_dir=data_dir, store=store)

    async def run() -> int:
        from tidelog.store.backup import back_up

        heads = []
        with ExitStack() as copying:

            async def check(copy: Path) -> None:
                copying.close()  # verification has a bar of its own
                heads.append(await _verified(str(copy)))

            show = copying.enter_context(progress_bar("copying"))
            await back_up(settings.store_location, target, show, check)
        return heads[0]

    _report("backed up", asyncio.run(run()), target, as_json=as_json)


def restore(
    source: Annotated[Path, typer.Argument(help="A file that `tidelog backup` wrote.")],
    *,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a store from a backup; never over an existing one. Works across engines.

    Example: tidelog restore ./backups/monday.db --data-dir ./data
    """
    settings = settings_from(config, data_dir=data_dir, store=store)

    async def run() -> int:
        from tidelog.store.backup import restore as restore_store

        async def check(copy: Path) -> None:
            await _verified(str(copy))
            await _require_relations(source, copy)

        with progress_bar("restoring") as show:
            await restore_store(source, settings.store_location, show, check)
        return await _verified(settings.store_location)

    head = asyncio.run(run())
    where = masked_location(settings)
    if as_json:
        _report("restored", head, source, as_json=True)
    else:
        typer.echo(f"restored and verified: head {head}, from {source} to {where}")
        typer.echo(f"verified: {VERIFIED}")


async def _verified(location: str) -> int:
    """Walk the digest chain of a copy; answers its head."""
    from tidelog.log.verify import verify
    from tidelog.store import open_store

    store = await open_store(location, log_id="", node="", read_only=True)
    head = 0
    try:
        with progress_bar("verifying") as show:
            async for progress in verify(store):
                if progress.finding:
                    raise StoreDamaged(
                        f"the copy is damaged at {progress.finding.committed_id}: "
                        f"{progress.finding.problem}. Run `tidelog log verify` on its source."
                    )
                show(progress.verified, progress.head)
                head = progress.head
    finally:
        await store.close()
    return head


async def _require_relations(backup: Path, copy: Path) -> None:
    """Refuse a backup in which a row of the mesh lacks its counterpart, as `mesh check` finds."""
    from tidelog.mesh.orphans import find_orphans
    from tidelog.store import open_store

    store = await open_store(str(copy), log_id="", node="", read_only=True)
    first, count = None, 0
    try:
        async for finding in find_orphans(store, time.time_ns() // 1_000_000):
            first, count = first or finding, count + 1
    finally:
        await store.close()
    if first is not None:
        raise StoreDamaged(
            f"{backup} lacks rows that belong together, {count} findings; the first: "
            f"{first.relation} {first.key} of mesh {first.mesh_id}: {first.problem}. Restore "
            f"another backup; `tidelog mesh check --store {backup}` lists all of them."
        )


def _report(done: str, head: int, file: Path, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"done": done, "head": head, "file": str(file), "verified": True}))
    else:
        typer.echo(f"{done} and verified: head {head}, {file}")
