"""`tidelog pipeline forget` and `publish`: what changes more than the lake's own tables."""

import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tidelog.base.errors import ConfigError, TidelogError
from tidelog.base.terminal import printable
from tidelog.cli.pipeline.workspace import (
    ConfOption,
    LakeOption,
    MasterOption,
    conf_pairs,
    print_json,
    spark_for,
    workspace_at,
)
from tidelog.cli.shared.admin_api import UrlOption
from tidelog.cli.shared.options import ConfigOption, DataDirOption, JsonOption, StoreOption
from tidelog.cli.shared.progress import progress_bar
from tidelog.cli.shared.running_server import administration

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.cli.pipeline.workspace import Workspace

_NAME_IT = "name what to forget with --message ID or --actor APP/NAME"


def forget(
    *,
    messages: Annotated[
        list[str] | None,
        typer.Option(
            "--message",
            metavar="ID",
            help="APP/CHANNEL/SERIAL, broker message id or event id; may be repeated.",
        ),
    ] = None,
    actors: Annotated[
        list[str] | None,
        typer.Option(
            "--actor",
            metavar="APP/NAME",
            help="Everything this actor wrote in channels of the app; NAME alone: whoever is "
            "called that, in every app and on every surface. May be repeated.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be removed.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    lake: LakeOption = None,
    config: ConfigOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove content from every table, the index and their files; positions and digests stay.

    What was erased in the server's store (`tidelog channels forget`, purge, reset) is always
    removed too. Without --message or --actor only that is removed, and an interrupted run is
    finished. The store is not changed: erase there what it still serves.

    The question and --dry-run say how much it is of each app, mesh and of sync. An event id with
    two slashes, and an actor with a slash in the name, are given after another one: /a/b/c.

    Example: tidelog pipeline forget --actor APP/alice --dry-run
    """
    conf_pairs(conf)
    with workspace_at(config, data_dir, store, lake) as workspace:
        from tidelog.pipeline.forget import forget as run_forget
        from tidelog.pipeline.forget import places_of
        from tidelog.pipeline.lake.forgetting import is_unfinished

        is_named = bool(messages or actors)
        erased = _erased_in_store(
            workspace, is_needed=not is_named and not is_unfinished(workspace.lake)
        )
        has_erased = erased is not None and erased.num_rows > 0
        if not is_named and not has_erased and not is_unfinished(workspace.lake):
            raise ConfigError(f"{_NAME_IT}: the store has erased nothing")
        is_asking = not dry_run and not yes
        if is_asking and not is_named:
            _confirm(workspace, "it")
        size = workspace.lake.through("log")
        with contextlib.ExitStack() as lock:
            lock.enter_context(workspace.lake.writing())
            with spark_for(master, conf, size) as spark:
                if is_asking and is_named:
                    with progress_bar("looking"):
                        places = places_of(
                            spark, workspace.lake, messages=messages or (), actors=actors or ()
                        )
                    lock.close()  # others may write until somebody answers
                    _warn_of_namesakes(actors or (), places)
                    _confirm(workspace, f"{sum(places.values())} ({_listed(places)})")
                    lock.enter_context(workspace.lake.writing())
                with progress_bar("forgetting"):
                    done = run_forget(
                        spark,
                        workspace.lake,
                        messages=messages or (),
                        actors=actors or (),
                        erased_in_store=erased,
                        dry_run=dry_run,
                    )
    if dry_run:
        _warn_of_namesakes(actors or (), done.places)
    if as_json:
        print_json(msgspec.to_builtins(done))
        return
    verb = "would be forgotten" if done.is_dry_run else "forgotten"
    rows = ", ".join(f"{name} {count}" for name, count in done.rows.items() if count)
    from_store = f" and {done.erased} that the store has erased" if done.erased else ""
    where = f" ({_listed(done.places)})" if done.places else ""
    typer.echo(f"{done.entities} {verb}{where}{from_store}; rows with content: {rows or 'none'}")
    if done.partitions:
        names = ", ".join(printable(name) for name in done.partitions)
        typer.echo(f"partitions that have no snapshots any more: {names}")
    if not done.is_dry_run:
        typer.echo(f"{done.deleted_files} files deleted")


def _confirm(workspace: "Workspace", what: str) -> None:
    typer.confirm(f"Forget {what} in {workspace.lake.name}? It cannot be undone.", abort=True)


def _listed(places: Mapping[str, int]) -> str:
    return ", ".join(f"{printable(place)} {count}" for place, count in places.items())


def _warn_of_namesakes(actors: Iterable[str], places: Mapping[str, int]) -> None:
    """Say how to mean one of those who have the same name, if there may be several."""
    from tidelog.pipeline.forget import is_anywhere

    names = [actor.removeprefix("/") for actor in actors if is_anywhere(actor)]
    if names and len(places) > 1:
        typer.echo(
            "tidelog: an actor without an app is whoever has that name, in every app and on every "
            f"surface; --actor APP/{printable(names[0])} is the one in channels of that app alone",
            err=True,
        )


def _erased_in_store(workspace: "Workspace", *, is_needed: bool) -> "pa.Table | None":
    """What the store of this lake has erased; None, with a warning, if it cannot be read."""
    from tidelog.pipeline.source.relations import read_relations

    try:
        workspace.require_same_log()
        return read_relations(workspace.store, ("channel_erasure",)).tables["channel_erasure"]
    except TidelogError as error:
        if is_needed:
            raise ConfigError(f"{_NAME_IT}: {error}") from error
        typer.echo(
            f"tidelog: what the store has erased is not forgotten here: {printable(str(error))}",
            err=True,
        )
        return None


def publish(
    *,
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    lake: LakeOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give the lake's snapshots to the running server, so that it starts cold partitions from them.

    Example: tidelog pipeline publish --url http://127.0.0.1:8080
    """
    with workspace_at(config, data_dir, None, lake) as workspace:
        from tidelog.pipeline.publish import publish_snapshots

        server, token = administration(workspace.settings, url)
        with progress_bar("publishing"):
            done = publish_snapshots(workspace.lake, server, token)
    if as_json:
        print_json(msgspec.to_builtins(done))
    else:
        typer.echo(
            f"{done.stored} stored, {done.newer} newer on the server, "
            f"{done.forgotten} held back because an event is forgotten"
        )
        for refused in done.refused:
            typer.echo(printable(f"  refused: {refused.partition}: {refused.reason}"))
    if done.refused:
        raise typer.Exit(1)
