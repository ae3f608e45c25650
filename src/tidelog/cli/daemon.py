"""`tidelog daemon`: run the mesh daemon of this machine, and talk through it."""

import json
import os
import shlex
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tidelog.base.errors import TidelogError
from tidelog.base.own_program import own_program
from tidelog.base.terminal import printable
from tidelog.cli.shared.options import JsonOption

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidelog.client.mesh.blocking import BlockingMeshClient
    from tidelog.client.mesh.client import InboxMessage

app = typer.Typer(
    help="Run the mesh daemon of this machine, and talk through it.", no_args_is_help=True
)

DaemonDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="Directory of the daemon; default ~/.local/state/tidelog/mesh/MESH."
    ),
]
MeshOption = Annotated[
    str | None, typer.Option("--mesh", help="Slug of the mesh; not needed if there is only one.")
]

PATIENCE_S = 2.0
"""How long a command waits for a daemon that is away or busy."""

SEND_PATIENCE_S = 15.0
"""How long a send does: the daemon may just be starting, and the message is wanted."""


EXIT_LATE = 3
"""Exit code of `send --wait` when the time is over and the message still waits."""


def daemon_dir(data_dir: Path | None, mesh: str | None) -> Path:
    """The directory a command means."""
    from tidelog.client.mesh import daemon_directory

    return daemon_directory.find(data_dir, mesh)


def client(
    data_dir: Path | None, mesh: str | None, patience_s: float = PATIENCE_S
) -> "BlockingMeshClient":
    """The daemon a command means; use it as `with`."""
    from tidelog.client.mesh.blocking import BlockingMeshClient

    return BlockingMeshClient(daemon_dir(data_dir, mesh), patience_s=patience_s)


@app.command()
def up(
    *,
    data_dir: DaemonDirOption = None,
    mesh: MeshOption = None,
    broker: Annotated[
        str | None, typer.Option(help="URL of the broker; default as joined.")
    ] = None,
    tcp_port: Annotated[
        int | None, typer.Option(help="Also listen on 127.0.0.1, with the token in DIR/token.")
    ] = None,
    container: Annotated[
        bool, typer.Option("--container", help="This is a container: Unix socket only.")
    ] = False,
    hello_version: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2,
            help="1 for a broker that does not support 2; default from daemon.toml, or 2.",
        ),
    ] = None,
    invite: Annotated[
        str | None,
        typer.Option(envvar="TIDELOG_INVITE", help="Join first, with what `mesh invite` printed."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="With --invite: the name of this member, as others see it.")
    ] = None,
    ephemeral: Annotated[
        bool | None,
        typer.Option(
            "--ephemeral/--persistent",
            help="Keep the key in memory and remove the directory at the end, or keep both. "
            "Default: persistent; in CI, with --invite, ephemeral.",
        ),
    ] = None,
    ttl: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds after which it stops by itself.")
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(help="Least severe level to log."),
    ] = "info",
    as_json: JsonOption = False,
) -> None:
    """Run the daemon in the foreground until SIGTERM or Ctrl-C.

    Prints one line on standard output when its socket is open, with --json as JSON; logs go to
    standard error.

    An ephemeral daemon joins when it starts and leaves the mesh when it ends, after it has sent
    what it accepted. Its directory is a new one, or the one named, which must not exist.

    Example: tidelog daemon up --data-dir ./alice

    Example: tidelog daemon up --ephemeral --invite "$INVITE" --name ci-17 --ttl 600
    """
    from tidelog.client.mesh.daemon_directory import require_joined
    from tidelog.daemon.continuous_integration import is_ci
    from tidelog.daemon.settings import FILE_NAME

    if ephemeral is None:
        ephemeral = invite is not None and is_ci(os.environ)
    command = own_program("tidelog.daemon", "--log-level", log_level)
    if ephemeral:
        command.append("--ephemeral")
        if data_dir is not None:
            command += ["--data-dir", str(data_dir)]
        if name is not None:
            command += ["--name", name]
        if invite is not None:  # not as an argument, which others could read as long as it runs
            os.environ["TIDELOG_INVITE"] = invite
    else:
        if invite is not None:
            mesh = _join(data_dir, invite, name)
        directory = daemon_dir(data_dir, mesh)
        if not (directory / FILE_NAME).exists():  # it may name a key elsewhere
            require_joined(directory)
        command += ["--data-dir", str(directory)]
        if mesh is not None:
            command += ["--mesh", mesh]
    if not as_json:
        command.append("--text")
    if ttl is not None:
        command += ["--ttl", str(ttl)]
    if broker is not None:
        command += ["--broker", broker]
    if tcp_port is not None:
        command += ["--tcp-port", str(tcp_port)]
    if container:
        command.append("--container")
    if hello_version is not None:
        command += ["--hello-version", str(hello_version)]
    sys.stdout.flush()
    # A process of its own, not a call: the daemon must not carry this command's libraries.
    os.execv(sys.executable, command)  # noqa: S606 - our own module


def _join(data_dir: Path | None, link: str, name: str | None) -> str:
    """Join before the daemon starts, as `tidelog mesh join` does; returns the slug."""
    from tidelog.client.mesh.daemon_directory import KEY_NAME
    from tidelog.daemon.uplink import joining

    if name is None:
        raise typer.BadParameter("--invite needs --name, which the other members see")
    invite = joining.read_invite(link)
    directory = daemon_dir(data_dir, invite.slug)
    joining.join(directory, directory / KEY_NAME, invite, name)
    return invite.slug


@app.command()
def status(
    *, data_dir: DaemonDirOption = None, mesh: MeshOption = None, as_json: JsonOption = False
) -> None:
    """Show whether the daemon is running and connected, or why not, and what waits in its outbox.

    Exits with 1 if it does not respond.

    Example: tidelog daemon status --data-dir ./alice
    """
    with client(data_dir, mesh) as daemon:
        health = daemon.health()
    if as_json:
        typer.echo(json.dumps(health))
        return
    connection = "connected" if health["connected"] else "NOT connected; sends are kept"
    typer.echo(
        f"{health['mesh']}: {connection}; {health['queue_depth']} waiting, "
        f"{health['inflight']} under way, storage {health['pressure']}, "
        f"up {health['uptime_s']} s\nmember {health['member_pubkey']}"
    )
    if not health["connected"]:
        typer.echo(printable(_why_not_connected(health)))
    if health.get("dead"):
        typer.echo(
            f"{health['dead']} messages were refused for good and wait for you. See: "
            "tidelog mesh outbox --failed"
        )
    if health.get("possibly_lost"):
        typer.echo(
            f"{health['possibly_lost']} messages that the broker had may be lost, because its log "
            "was restored or failed over. See: tidelog mesh outbox --lost"
        )


def _why_not_connected(health: dict[str, Any]) -> str:
    """For people; a daemon of an earlier version does not say."""
    why = health.get("connection_error") or "it has not been tried yet; ask again in a moment"
    return f"not connected because: {why}"


@app.command()
def send(
    to: Annotated[str, typer.Argument(help="dm:NAME, dm:KEY, topic:NAME or queue:ID.")],
    message: Annotated[str, typer.Argument(help="The text; - reads standard input.")],
    *,
    key: Annotated[
        str | None,
        typer.Option("--key", help="Idempotency key: the same key and text is the same message."),
    ] = None,
    priority: Annotated[
        Literal["now", "next", "low"] | None, typer.Option(help="How urgent it is; default next.")
    ] = None,
    meta: Annotated[
        str | None, typer.Option(help="A JSON object that travels with the message.")
    ] = None,
    reply_to: Annotated[
        str | None, typer.Option(help="broker_message_id of the message being answered.")
    ] = None,
    wait: Annotated[
        float | None, typer.Option(help="Seconds to wait until the broker has it.")
    ] = None,
    data_dir: DaemonDirOption = None,
    mesh: MeshOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a message through the daemon; when this returns, the message is on the disk.

    With --wait it exits with 0 when the broker has the message, with 1 when it was refused, and
    with 3 when neither is known in time: the message then stays in the outbox and is still sent.

    Example: tidelog daemon send dm:bob "the tide is in" --key tide-17 --wait 10
    """
    text = sys.stdin.read() if message == "-" else message
    with client(data_dir, mesh, SEND_PATIENCE_S) as daemon:
        sent = daemon.send(
            to,
            text,
            idempotency_key=key,
            priority=priority,
            meta=None if meta is None else _object(meta),
            reply_to=reply_to,
        )
        shown: dict[str, Any] = dict(sent._asdict())
        is_late = False
        if wait is not None:
            shown |= _waited(daemon, sent.client_message_id, wait)
            is_late = shown["status"] in ("pending", "inflight")
        health = daemon.health() if is_late else None
    if as_json:
        typer.echo(json.dumps(shown))
    else:
        typer.echo(f"{shown['client_message_id']} {shown['status']}")
    if health is not None:
        typer.echo(printable(_late(shown, health)), err=True)
        raise typer.Exit(EXIT_LATE)
    if shown["status"] in ("dead", "aborted"):
        raise typer.Exit(1)


def _late(shown: dict[str, Any], health: dict[str, Any]) -> str:
    """What to say of a message that the broker does not have in time."""
    why = f"its last attempt: {shown['last_error']}" if shown["last_error"] else "no answer yet"
    if not health["connected"]:
        why = _why_not_connected(health)
    return (
        f"the broker does not have it yet ({why}). It stays in the outbox and is sent when that "
        f"is possible: tidelog mesh outbox inspect {shown['client_message_id']}"
    )


def _waited(daemon: "BlockingMeshClient", client_message_id: str, wait_s: float) -> dict[str, Any]:
    try:
        row = daemon.wait(client_message_id, timeout=wait_s)
    except TimeoutError:
        row = daemon.outcome(client_message_id)
    names = ("status", "broker_message_id", "history_id", "last_error", "attempts")
    return {name: row[name] for name in names}


def _object(text: str) -> dict[str, Any]:
    from tidelog.base.data.strictjson import read
    from tidelog.base.errors import InvalidJson

    try:
        value = read(text)
    except InvalidJson as error:
        raise TidelogError(f"--meta is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise TidelogError("--meta is not a JSON object. Write it as '{\"job\": 17}'.")
    return value


@app.command()
def inbox(
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep showing messages as they arrive.")
    ] = False,
    after: Annotated[
        str | None, typer.Option(help="Only messages after this cursor; --json shows cursors.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
    limit: Annotated[int, typer.Option(help="Messages per page, at most 1000.")] = 100,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait for a message if there is none.")
    ] = 0.0,
    data_dir: DaemonDirOption = None,
    mesh: MeshOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what the daemon has received, oldest first; with --json one object per line.

    Example: tidelog daemon inbox --follow --topic alerts
    """
    with client(data_dir, mesh, max(wait, PATIENCE_S)) as daemon:
        messages: Iterable[InboxMessage]
        if follow:
            messages = daemon.inbox(after, topic=topic)
        else:
            messages = daemon.received(after=after, topic=topic, limit=limit)
            if not messages and wait > 0:
                messages = islice(daemon.inbox(after, topic=topic, timeout=wait), 1)
        for message in messages:
            if as_json:
                typer.echo(json.dumps(message._asdict()))
            else:
                where = f" #{message.topic}" if message.topic else ""
                said = f"{message.sender_name}{where}: {message.body}"
                typer.echo(printable(f"{message.received_at} {said}"))
            sys.stdout.flush()


@app.command()
def subscribe(
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    *,
    data_dir: DaemonDirOption = None,
    mesh: MeshOption = None,
    as_json: JsonOption = False,
) -> None:
    """Receive a topic from now on.

    Example: tidelog daemon subscribe alerts
    """
    with client(data_dir, mesh) as daemon:
        daemon.subscribe(topic)
    typer.echo(json.dumps({"subscribed": topic}) if as_json else f"subscribed to {topic}")


@app.command()
def peers(
    *, data_dir: DaemonDirOption = None, mesh: MeshOption = None, as_json: JsonOption = False
) -> None:
    """List the members of the mesh, by name, each with its key.

    Example: tidelog daemon peers --data-dir ./alice
    """
    with client(data_dir, mesh) as daemon:
        answer = daemon.ask("GET", "/v1/peers")
    if as_json:
        typer.echo(json.dumps(answer))
        return
    for peer in answer["items"]:
        typer.echo(printable(f"{peer['member_pubkey']} {peer['name']}"))


@app.command()
def profile(
    *, data_dir: DaemonDirOption = None, mesh: MeshOption = None, as_json: JsonOption = False
) -> None:
    """Show who this machine is in the mesh: its name, its key, what it is subscribed to.

    Example: tidelog daemon profile --data-dir ./alice
    """
    with client(data_dir, mesh) as daemon:
        answer = daemon.ask("GET", "/v1/profile")
    if as_json:
        typer.echo(json.dumps(answer))
        return
    subscriptions = answer["subscriptions"]
    unknown = "not known while the broker is away"
    typer.echo(
        f"{answer['name'] or unknown}\nkey {answer['member_pubkey']}\n"
        f"mesh {answer['mesh']} at {answer['broker']}\n"
        f"subscribed to {unknown if subscriptions is None else ', '.join(subscriptions) or 'none'}"
    )


UNIT = """\
[Unit]
Description=tidelog mesh daemon ({directory})
After=network-online.target

[Service]
Type=exec
ExecStart={command}
Restart=on-failure
RestartSec=2
# The configuration is wrong, broker and daemon cannot work together, or a newer daemon has taken
# this one's place.
RestartPreventExitStatus=2 3 4
TimeoutStopSec=15
UMask=0077
MemoryMax=256M
LimitNOFILE=1024
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={directory}
PrivateUsers=yes
PrivateTmp=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service

[Install]
WantedBy=default.target
"""


@app.command("install-service")
def install_service(
    *,
    only_print: Annotated[
        bool, typer.Option("--print", help="Show the unit; change nothing.")
    ] = False,
    data_dir: DaemonDirOption = None,
    mesh: MeshOption = None,
    as_json: JsonOption = False,
) -> None:
    """Install the daemon as a systemd service of this user, started at login.

    Example: tidelog daemon install-service --data-dir ~/.local/state/tidelog/mesh/harbour --print
    """
    directory = daemon_dir(data_dir, mesh)
    arguments = own_program("tidelog.daemon", "--data-dir", str(directory))
    unit = UNIT.format(
        command=" ".join(_for_systemd(argument) for argument in arguments),
        directory=_for_systemd(str(directory)),
    )
    if only_print:
        typer.echo(json.dumps({"unit": unit}) if as_json else unit, nl=as_json)
        return
    configuration = os.environ.get("XDG_CONFIG_HOME")
    folder = Path(configuration) if configuration else Path.home() / ".config"
    path = folder / "systemd" / "user" / f"tidelog-{directory.name}.service"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(unit, encoding="utf-8")
    enable = ["systemctl", "--user", "enable", "--now", path.name]
    try:
        subprocess.run(["systemctl", "--user", "daemon-reload"], check=True)  # noqa: S607 - PATH
        subprocess.run(enable, check=True)  # noqa: S603 - our own unit
    except (OSError, subprocess.CalledProcessError) as error:
        raise TidelogError(
            f"{path} is written, but systemd did not take it ({error}). Run: {shlex.join(enable)}"
        ) from error
    typer.echo(json.dumps({"unit": str(path)}) if as_json else f"installed and started: {path}")


def _for_systemd(argument: str) -> str:
    """An argument that systemd reads as one, and as nothing else."""
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if any(character in escaped for character in " \t'\";$") else escaped
