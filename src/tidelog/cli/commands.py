"""All commands."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated

import typer

import tidelog
from tidelog.cli import backup, channels, config, daemon, demo, log, serve, sync
from tidelog.cli.mesh import commands as mesh
from tidelog.cli.monitoring import files as monitoring
from tidelog.cli.monitoring import top
from tidelog.cli.pipeline import commands as pipeline

COMMANDS: Mapping[str, Callable[..., None]] = {
    "serve": serve.serve,
    "demo": demo.demo,
    "top": top.top,
    "backup": backup.backup,
    "restore": backup.restore,
}
GROUPS: Mapping[str, typer.Typer] = {
    "log": log.app,
    "channels": channels.app,
    "sync": sync.app,
    "mesh": mesh.app,
    "daemon": daemon.app,
    "pipeline": pipeline.app,
    "config": config.app,
    "monitoring": monitoring.app,
}


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tidelog {tidelog.__version__}")
        raise typer.Exit


def tidelog_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """A realtime backend on one durable, ordered, idempotent log."""


def _app_of(names: Collection[str]) -> typer.Typer:
    """The program with these commands and groups of commands."""
    made = typer.Typer(
        name="tidelog",
        help="A realtime backend on one durable, ordered, idempotent log.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    made.callback()(tidelog_command)
    for name, command in COMMANDS.items():
        if name in names:
            made.command(name)(command)
    for name, group in GROUPS.items():
        if name in names:
            made.add_typer(group, name=name)
    return made


app = _app_of({*COMMANDS, *GROUPS})


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """What these arguments need of `app`: parsers of all commands take longer than most of them."""
    named = arguments[0] if arguments else ""
    return _app_of({named}) if named in COMMANDS or named in GROUPS else app
