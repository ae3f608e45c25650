"""`tidelog pipeline forget` and `publish`: what changes more than the lake's own tables."""

from typing import Annotated

import msgspec
import typer

from tidelog.base.errors import ConfigError
from tidelog.base.terminal import printable
from tidelog.cli.options import ConfigOption, DataDirOption, JsonOption, StoreOption
from tidelog.cli.pipeline_place import (
    ConfOption,
    LakeOption,
    MasterOption,
    conf_pairs,
    pipeline_at,
    print_json,
    spark_for,
)
from tidelog.cli.progress import progress_bar
from tidelog.cli.running_server import administration

UrlOption = Annotated[
    str | None, typer.Option("--url", help="Where the server answers; default from the settings.")
]


def forget(
    *,
    messages: Annotated[
        list[str] | None,
        typer.Option(
            "--message",
            metavar="ID",
            help="app/channel/serial, broker message id or event id; may be repeated.",
        ),
    ] = None,
    actors: Annotated[
        list[str] | None,
        typer.Option("--actor", help="Everything this one wrote; may be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    lake: LakeOption = None,
    config: ConfigOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove content from every table, the index and their files; positions and digests stay.

    Without a message or an actor it finishes what was begun. The store of the server is not
    touched: purge there what it still serves.

    Example: tidelog pipeline forget --actor alice --dry-run
    """
    conf_pairs(conf)
    with pipeline_at(config, data_dir, store, lake) as place:
        from tidelog.pipeline.forget import forget as run_forget
        from tidelog.pipeline.forget import is_unfinished

        if not messages and not actors and not is_unfinished(place.lake):
            raise ConfigError("name what to forget with --message ID or --actor NAME")
        if not dry_run and not yes:
            typer.confirm(f"Forget it in {place.lake.root}? It cannot be undone.", abort=True)
        size = place.lake.through("log")
        with (
            place.lake.writing(),
            spark_for(master, conf, size) as spark,
            progress_bar("forgetting"),
        ):
            done = run_forget(
                spark,
                place.lake,
                messages=messages or (),
                actors=actors or (),
                dry_run=dry_run,
            )
    if as_json:
        print_json(msgspec.to_builtins(done))
        return
    verb = "would be forgotten" if done.is_dry_run else "forgotten"
    rows = ", ".join(f"{name} {count}" for name, count in done.rows.items() if count)
    typer.echo(f"{done.entities} {verb}; rows with content: {rows or 'none'}")
    if done.partitions:
        names = ", ".join(printable(name) for name in done.partitions)
        typer.echo(f"no snapshots any more of the partitions {names}")
    if not done.is_dry_run:
        typer.echo(f"{done.deleted_files} files deleted")


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
    with pipeline_at(config, data_dir, None, lake) as place:
        from tidelog.pipeline.publish import publish_snapshots

        server, token = administration(place.settings, url)
        with progress_bar("publishing"):
            done = publish_snapshots(place.lake, server, token)
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
