"""`tidelog mesh topic` and `tidelog mesh queue`: what messages can be sent to."""

import json
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from tidelog.base.terminal import printable
from tidelog.cli.daemon import DaemonDirOption, MeshOption, daemon_dir
from tidelog.cli.mesh.broker_call import BrokerUrlOption, call_as_admin, call_as_member
from tidelog.cli.shared.options import ConfigOption, JsonOption

topic = typer.Typer(help="Topics: each message goes to every subscriber.", no_args_is_help=True)
queue = typer.Typer(
    help="Queues: each message goes to one member, whichever claims it.", no_args_is_help=True
)

AdminOption = Annotated[
    str | None,
    typer.Option(
        "--admin-of",
        metavar="SLUG",
        help="Delete it from this mesh as an administrator, whoever made it.",
    ),
]
NameArgument = Annotated[str, typer.Argument(help="Its name: at most 512 bytes.")]


@topic.command("create")
def create_topic(
    name: NameArgument,
    *,
    data_dir: DaemonDirOption = None,
    mesh: MeshOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a topic, as the member whose key is in the directory; needs no running daemon.

    Safe to repeat. It subscribes nobody.

    Example: tidelog mesh topic create alerts --data-dir ./alice
    """
    hint = f"Next: tidelog daemon subscribe {name}"
    _create("topic", name, hint, daemon_dir(data_dir, mesh), as_json=as_json)


@topic.command("list")
def list_topics(
    *, data_dir: DaemonDirOption = None, mesh: MeshOption = None, as_json: JsonOption = False
) -> None:
    """List the topics of the mesh; a star marks those this member is subscribed to.

    Example: tidelog mesh topic list --data-dir ./alice
    """
    answer = call_as_member(daemon_dir(data_dir, mesh), "GET", "topics", None)
    if as_json:
        typer.echo(json.dumps(answer))
        return
    for found in answer["topics"]:
        typer.echo(printable(f"{found['name']}{' *' if found['subscribed'] else ''}"))


@topic.command("delete")
def delete_topic(
    name: NameArgument,
    *,
    admin_of: AdminOption = None,
    url: BrokerUrlOption = None,
    config: ConfigOption = None,
    data_dir: DaemonDirOption = None,
    mesh: MeshOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a topic that this member made; with --admin-of and the admin token any topic.

    What was posted before is still delivered. Subscriptions end, and the name can be used again.

    Example: tidelog mesh topic delete alerts --data-dir ./alice
    """
    resource = f"topics/{quote(name, safe='')}"
    if admin_of is None:
        answer = call_as_member(daemon_dir(data_dir, mesh), "DELETE", resource, None)
    else:
        answer = call_as_admin(admin_of, "DELETE", resource, url, config)
    typer.echo(json.dumps(answer) if as_json else f"topic {name} is deleted")


@queue.command("create")
def create_queue(
    name: NameArgument,
    *,
    data_dir: DaemonDirOption = None,
    mesh: MeshOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a queue, as the member whose key is in the directory; needs no running daemon.

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


@queue.command("delete")
def delete_queue(
    name: NameArgument,
    *,
    admin_of: AdminOption = None,
    url: BrokerUrlOption = None,
    config: ConfigOption = None,
    data_dir: DaemonDirOption = None,
    mesh: MeshOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a queue that this member made; with --admin-of and the admin token any queue.

    Messages that still wait in it are delivered to nobody.

    Example: tidelog mesh queue delete thumbs --data-dir ./alice
    """
    resource = f"queues/{quote(name, safe='')}"
    if admin_of is None:
        answer = call_as_member(daemon_dir(data_dir, mesh), "DELETE", resource, None)
    else:
        answer = call_as_admin(admin_of, "DELETE", resource, url, config)
    typer.echo(json.dumps(answer) if as_json else f"queue {name} is deleted")


def _create(kind: str, name: str, hint: str, directory: Path, *, as_json: bool) -> None:
    answer = call_as_member(directory, "POST", f"{kind}s", {kind: name})
    state = "is there" if answer["created"] else "was there already"
    typer.echo(json.dumps(answer) if as_json else f"{kind} {name} {state}. {hint}")
