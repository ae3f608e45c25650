"""`tidelog serve`, as the command knows it."""

from typing import Annotated, Literal

import typer

from tidelog.cli import serving
from tidelog.cli.shared.options import ConfigOption, DataDirOption, JsonOption, StoreOption


def serve(
    *,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.")] = None,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="N|auto",
            help="Processes that have connections; one more owns the log, unless it is 1. "
            "auto is one less than there are processors.",
        ),
    ] = None,
    dev: Annotated[
        bool,
        typer.Option(
            "--dev",
            help="Development mode, on this machine only: serves a publicly known app "
            "(app-id, app-key, app-secret), accepts the admin token dev-admin-token, and accepts a "
            "PostgreSQL that does not sync.",
        ),
    ] = False,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        typer.Option(help="Least severe level to log."),
    ] = None,
    log_format: Annotated[
        Literal["text", "json"] | None,
        typer.Option(help="Log lines as text for people, or as JSON for collectors."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the server until SIGTERM or Ctrl-C.

    Prints one line on standard output when it is ready; logs go to standard error. Without --dev it
    starts only if TIDELOG_ADMIN_TOKEN and TIDELOG_APP_SECRET, or their settings, are set.

    Example: tidelog serve --dev --data-dir ./data --port 8080
    """
    serving.run(
        host=host,
        port=port,
        data_dir=data_dir,
        store=store,
        config=config,
        workers=workers,
        dev=dev,
        log_level=log_level,
        log_format=log_format,
        as_json=as_json,
    )
