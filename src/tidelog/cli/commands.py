"""All commands."""

from typing import Annotated

import typer

import tidelog
from tidelog.cli import backup, channels, config, daemon, demo, log, serve, sync
from tidelog.cli.mesh import commands as mesh
from tidelog.cli.monitoring import files as monitoring
from tidelog.cli.monitoring import top
from tidelog.cli.pipeline import commands as pipeline

app = typer.Typer(
    name="tidelog",
    help="A realtime backend on one durable, ordered, idempotent log.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("serve")(serve.serve)
app.command("demo")(demo.demo)
app.command("top")(top.top)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.add_typer(log.app, name="log")
app.add_typer(channels.app, name="channels")
app.add_typer(sync.app, name="sync")
app.add_typer(mesh.app, name="mesh")
app.add_typer(daemon.app, name="daemon")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(config.app, name="config")
app.add_typer(monitoring.app, name="monitoring")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tidelog {tidelog.__version__}")
        raise typer.Exit


@app.callback()
def tidelog_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """A realtime backend on one durable, ordered, idempotent log."""
