"""`tidelog pipeline deliver`: changes of all surfaces for somebody else's server."""

import re
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tidelog.base.errors import ConfigError
from tidelog.base.terminal import printable
from tidelog.cli.pipeline.workspace import LakeOption, print_json, waiting, workspace_at
from tidelog.cli.shared.options import ConfigOption, DataDirOption, JsonOption

if TYPE_CHECKING:
    from tidelog.pipeline.deliver import Progress

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def deliver(
    *,
    to: Annotated[str, typer.Option("--to", metavar="URL", help="Where batches are posted.")],
    name: Annotated[
        str | None,
        typer.Option("--name", help="What its progress is noted under; default by the URL."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as the table `changes` grows.")
    ] = False,
    attempts: Annotated[
        int, typer.Option("--attempts", min=1, help="Posts of a batch before it is given up.")
    ] = 8,
    restart_at: Annotated[
        int | None,
        typer.Option("--restart-at", metavar="POSITION", min=0, help="Begin after this position."),
    ] = None,
    data_dir: DataDirOption = None,
    lake: LakeOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Post the table `changes` to a server, in order, each batch under its key; starts no JVM.

    Continues where the receiver is, even after a kill. Batches are signed with `deliver_secret` of
    `[pipeline]`, as webhooks of a mesh are. A receiver that keeps the position of the last change
    it has applied applies each exactly once.

    Example: tidelog pipeline deliver --to https://HOST/changes --follow
    """
    if not to.startswith(("http://", "https://")):
        raise ConfigError("--to: give an http:// or https:// URL")
    if name is not None and not _NAME.fullmatch(name):
        raise ConfigError("--name: use letters, digits, dots, dashes and underscores")
    with workspace_at(config, data_dir, None, lake) as workspace:
        from tidelog.pipeline.deliver import Receiver
        from tidelog.pipeline.deliver import deliver as post

        secret = workspace.settings.pipeline.deliver_secret
        if not secret:
            raise ConfigError(
                "set deliver_secret in [pipeline], or TIDELOG_PIPELINE_DELIVER_SECRET: batches are "
                "signed with it, so that the receiver knows who posts"
            )
        with waiting("delivering", is_silent=as_json) as show:

            def told(progress: "Progress", head: int, trouble: str) -> None:
                show(progress.through, head)
                if trouble:
                    typer.echo(f"tidelog: {printable(trouble)}; it is tried again", err=True)

            done = post(
                workspace.lake,
                Receiver.at(to, secret, name),
                follow=follow,
                restart_at=restart_at,
                attempts=attempts,
                told=told,
            )
    if as_json:
        print_json(msgspec.to_builtins(done))
    else:
        typer.echo(
            f"{done.changes:,} changes delivered in {done.batches:,} batches; "
            f"the receiver is at {done.through:,}"
        )
