"""`tidelog mesh topic` and `tidelog mesh queue`: what messages can be sent to."""

import json
from pathlib import Path
from typing import Annotated

import typer

from tidelog.base.terminal import printable
from tidelog.cli.broker_call import call_as_member
from tidelog.cli.daemon import DaemonDirOption, MeshOption, daemon_dir
from tidelog.cli.options import JsonOption

topic = typer.Typer(help="Topics: every subscriber gets a message.", no_args_is_help=True)
queue = typer.Typer(
    help="Queues: one member, whichever claims it, gets a message.", no_args_is_help=True
)

NameArgument = Annotated[str, typer.Argument(help="Its name: at most 512 bytes.")]


@topic.command("create")
def create_topic(
    name: NameArgument,
    *,
    data_dir: DaemonDirOption = None,
    mesh: MeshOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a topic, as the member whose key is in the directory; the daemon need not run.

    Safe to repeat. Nobody is subscribed by it.

    Example: tidelog mesh topic create alerts --data-dir ./alice
    """
    hint = f"Next: tidelog daemon subscribe {name}"
    _create("topic", name, hint, daemon_dir(data_dir, mesh), as_json=as_json)


@topic.command("list")
def list_topics(
    *, data_dir: DaemonDirOption = None, mesh: MeshOption = None, as_json: JsonOption = False
) -> None:
    """List the topics of the mesh, those this member gets with a star.

    Example: tidelog mesh topic list --data-dir ./alice
    """
    answer = call_as_member(daemon_dir(data_dir, mesh), "GET", "topics", None)
    if as_json:
        typer.echo(json.dumps(answer))
        return
    for found in answer["topics"]:
        typer.echo(printable(f"{found['name']}{' *' if found['subscribed'] else ''}"))


@queue.command("create")
def create_queue(
    name: NameArgument,
    *,
    data_dir: DaemonDirOption = None,
    mesh: MeshOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a queue, as the member whose key is in the directory; the daemon need not run.

    Safe to repeat.

    Example: tidelog mesh queue create thumbs --data-dir ./alice
    """
    hint = f"Next: tidelog daemon send queue:{name} ..."
    _create("queue", name, hint, daemon_dir(data_dir, mesh), as_json=as_json)


@queue.command("list")
def list_queues(
    *, data_dir: DaemonDirOption = None, mesh: MeshOption = None, as_json: JsonOption = False
) -> None:
    """List the queues of the mesh.

    Example: tidelog mesh queue list --data-dir ./alice
    """
    answer = call_as_member(daemon_dir(data_dir, mesh), "GET", "queues", None)
    if as_json:
        typer.echo(json.dumps(answer))
        return
    for found in answer["queues"]:
        typer.echo(printable(found))


def _create(kind: str, name: str, hint: str, directory: Path, *, as_json: bool) -> None:
    answer = call_as_member(directory, "POST", f"{kind}s", {kind: name})
    state = "is there" if answer["created"] else "was there already"
    typer.echo(json.dumps(answer) if as_json else f"{kind} {name} {state}. {hint}")
