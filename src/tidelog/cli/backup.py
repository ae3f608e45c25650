"""`tidelog backup` and `tidelog restore`."""

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.base.errors import StoreDamaged
from tidelog.base.terminal import counted, printable_lines
from tidelog.cli.shared.given_settings import settings_from
from tidelog.cli.shared.options import (
    ConfigOption,
    DataDirOption,
    JsonOption,
    StoreOption,
    masked_location,
)
from tidelog.cli.shared.progress import progress_bar
from tidelog.cli.verification import unsealed_text

if TYPE_CHECKING:
    from tidelog.cli.verification import Verdict

VERIFIED = "the schema, every page, the digests of the log, every row beside the log"
"""What a restore has looked at."""


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

    async def run() -> "Verdict":
        from tidelog.config.schema import SCHEMA
        from tidelog.store.backup import back_up

        verdicts = []
        with ExitStack() as copying:

            async def check(copy: Path) -> None:
                copying.close()  # verification has a bar of its own
                verdicts.append(await _verified(str(copy)))

            show = copying.enter_context(progress_bar("copying"))
            await back_up(SCHEMA, settings.store_location, target, show, check)
        return verdicts[0]

    verdict = asyncio.run(run())
    if verdict.is_sound:
        _report("backed up", verdict, target, as_json=as_json)
        return
    # Better a copy with a damaged row than none; whoever waits for it must hear of it.
    if as_json:
        _report("backed up", verdict, target, as_json=True)
    else:
        typer.echo(
            f"backed up: head {verdict.log.head}, {target}\n"
            "DAMAGED beside the log, in the store as in the copy, "
            f"{counted(verdict.damaged, 'finding')}:\n"
            f"{printable_lines(verdict.damage_text())}\n"
            "The entries of the log are sound. `tidelog restore` refuses this copy; keep the one "
            "before it."
        )
    raise typer.Exit(1)


def restore(
    source: Annotated[Path, typer.Argument(help="A file that `tidelog backup` wrote.")],
    *,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a store from a backup; never overwrites an existing one. Works across engines.

    Example: tidelog restore ./backups/monday.db --data-dir ./data
    """
    settings = settings_from(config, data_dir=data_dir, store=store)

    async def run() -> "Verdict":
        from tidelog.config.schema import SCHEMA
        from tidelog.store.backup import restore as restore_store

        async def check(copy: Path) -> None:
            _require_sound(source, await _verified(str(copy)))

        with progress_bar("restoring") as show:
            await restore_store(SCHEMA, source, settings.store_location, show, check)
        verdict = await _verified(settings.store_location)
        _require_sound(source, verdict)
        return verdict

    verdict = asyncio.run(run())
    where = masked_location(settings)
    if as_json:
        _report("restored", verdict, source, as_json=True)
    else:
        head = verdict.log.head
        typer.echo(f"restored and verified: head {head}, from {source} to {where}")
        typer.echo(f"verified: {VERIFIED}{unsealed_text(verdict)}")


async def _verified(location: str) -> "Verdict":
    """Verify a copy; its log must be sound."""
    from tidelog.cli.verification import verify_store
    from tidelog.config.schema import SCHEMA
    from tidelog.store import open_store

    store = await open_store(SCHEMA, location, log_id="", node="", read_only=True)
    try:
        verdict = await verify_store(store)
    finally:
        await store.close()
    if finding := verdict.log.finding:
        raise StoreDamaged(
            f"the copy is damaged at {finding.committed_id}: {finding.problem}. "
            "Run `tidelog log verify` on its source."
        )
    return verdict


def _require_sound(backup: Path, verdict: "Verdict") -> None:
    """Refuse a backup with rows that are not what the log or their seals say."""
    if verdict.damaged:
        first = verdict.damage[0]
        raise StoreDamaged(
            f"{backup} has damaged rows beside the log, {counted(verdict.damaged, 'finding')}; the "
            f"first: {first.table} {first.key}: {first.problem}. Restore another backup; "
            f"`tidelog log verify --store {backup}` lists them."
        )


def _report(done: str, verdict: "Verdict", file: Path, *, as_json: bool) -> None:
    head = verdict.log.head
    if as_json:
        answer = {"done": done, "head": head, "file": str(file), "verified": verdict.is_sound}
        if not verdict.is_sound:
            answer |= {"damaged": verdict.damaged, "damage": verdict.as_json()["damage"]}
        typer.echo(json.dumps(answer))
    else:
        typer.echo(f"{done} and verified: head {head}, {file}")
