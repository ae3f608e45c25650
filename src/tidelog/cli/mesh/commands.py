"""`tidelog mesh`: make a mesh, join it, and look after a daemon's outbox."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tidelog.base.errors import ConfigError, TidelogError
from tidelog.base.terminal import counted, printable
from tidelog.cli.daemon import DaemonDirOption, MeshOption, client, daemon_dir
from tidelog.cli.mesh import invites, topics
from tidelog.cli.mesh.broker_call import BrokerUrlOption, SlugArgument, mesh_url
from tidelog.cli.shared.given_settings import settings_from
from tidelog.cli.shared.options import ConfigOption, DataDirOption, JsonOption, StoreOption
from tidelog.cli.shared.running_server import administration
from tidelog.daemon.uplink.broker_http import call

if TYPE_CHECKING:
    from tidelog.config.settings import Settings
    from tidelog.mesh.upkeep.orphan_check import Finding

app = typer.Typer(
    help="Make a mesh, join it, and look after a daemon's outbox.", no_args_is_help=True
)
outbox = typer.Typer()  # its help is that of `outbox_command`
app.add_typer(outbox, name="outbox")
app.add_typer(invites.app, name="invites")
app.add_typer(topics.topic, name="topic")
app.add_typer(topics.queue, name="queue")

# The broker.


@app.command()
def create(
    slug: SlugArgument,
    *,
    url: BrokerUrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a mesh on a running broker.

    Needs the broker's admin token in TIDELOG_ADMIN_TOKEN; `tidelog serve --dev` needs none.

    Example: tidelog mesh create harbour --url http://127.0.0.1:8080
    """
    base, token = administration(settings_from(config), url)
    answer = call(f"{base}/mesh", "POST", {"slug": slug}, token)
    where = "" if url is None else f" --url {url}"
    _show(answer, f"mesh {slug} is ready. Next: tidelog mesh invite {slug}{where}", as_json=as_json)


@app.command()
def invite(
    slug: SlugArgument,
    *,
    url: BrokerUrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print an invite for one new member: a secret, good for one use, until it expires.

    Example: tidelog mesh invite harbour
    """
    base, token = administration(settings_from(config), url)
    answer = call(f"{mesh_url(base, slug)}/invites", "POST", {}, token)
    link = f"{mesh_url(base, slug)}#{answer['invite']}"
    _show({**answer, "link": link}, link, as_json=as_json)


@app.command()
def join(
    link: Annotated[str, typer.Argument(help="What `tidelog mesh invite` printed.")],
    *,
    name: Annotated[str, typer.Option(help="The name of this member, as others see it.")],
    data_dir: DaemonDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Join a mesh: makes a key in the daemon's directory and registers it with the broker.

    Safe to repeat: an existing key is used again, and the broker returns the same result.

    Example: tidelog mesh join "http://HOST/mesh/harbour#INVITE" --name alice --data-dir ./alice
    """
    from tidelog.client.mesh.daemon_directory import KEY_NAME
    from tidelog.daemon.uplink import joining

    invite = joining.read_invite(link)
    directory = daemon_dir(data_dir, invite.slug)
    key, answer = joining.join(directory, directory / KEY_NAME, invite, name)
    option = "" if data_dir is None else f" --data-dir {data_dir}"
    text = f"{name} is {key.public_hex}. Next: tidelog daemon up{option}"
    _show({**answer, "data_dir": str(directory)}, text, as_json=as_json)


@app.command()
def settings(
    slug: SlugArgument,
    *,
    dedupe_retention_days: Annotated[
        int | None, typer.Option(help="How many days the ids of new messages are remembered.")
    ] = None,
    dedupe_retention_mode: Annotated[
        Literal["retention_scoped", "permanent"] | None,
        typer.Option(help="Whether ids are ever forgotten."),
    ] = None,
    message_retention_days: Annotated[
        int | None, typer.Option(help="How many days messages are kept; 0 for ever.")
    ] = None,
    echo_to_sender: Annotated[
        bool | None, typer.Option(help="Whether senders get their own posts.")
    ] = None,
    clone_concurrency_policy: Annotated[
        Literal["prefer_newest", "prefer_oldest", "allow_concurrent"] | None,
        typer.Option(help="Which of two daemons with one key stays connected."),
    ] = None,
    rate_limit: Annotated[
        int | None, typer.Option(help="Sends that a member may make in one window.")
    ] = None,
    rate_window_ms: Annotated[
        int | None, typer.Option(help="Length of that window, in milliseconds.")
    ] = None,
    url: BrokerUrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the settings of a mesh, or change those that are named.

    Connected daemons reconnect at once and use the new settings. Ids that are already remembered
    keep their expiry.

    Example: tidelog mesh settings harbour --message-retention-days 30
    """
    base, token = administration(settings_from(config), url)
    given: dict[str, Any] = {
        "dedupe_retention_days": dedupe_retention_days,
        "dedupe_retention_mode": dedupe_retention_mode,
        "message_retention_days": message_retention_days,
        "echo_to_sender": echo_to_sender,
        "clone_concurrency_policy": clone_concurrency_policy,
        "rate_limit": rate_limit,
        "rate_window_ms": rate_window_ms,
    }
    change = {name: value for name, value in given.items() if value is not None}
    if message_retention_days == 0:
        change["message_retention_days"] = None
    method = "PATCH" if change else "GET"
    answer = call(mesh_url(base, slug), method, change or None, token)
    text = "\n".join(f"{name}: {json.dumps(value)}" for name, value in answer.items())
    _show(answer, text, as_json=as_json)


# Without a broker.


@app.command()
def check(
    *,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that what the broker has stored fits: ids, messages, deliveries, mentions, history.

    Only reads; the server may be running. Exit 1 if a row lacks its counterpart.

    Example: tidelog mesh check --data-dir ./data
    """
    import asyncio

    settings = settings_from(config, data_dir=data_dir, store=store)
    if not asyncio.run(_check(settings, as_json=as_json)):
        raise typer.Exit(1)


async def _check(settings: "Settings", *, as_json: bool) -> bool:
    from tidelog.cli.log import open_reader
    from tidelog.mesh.upkeep.orphan_check import RULES, find_orphans

    reader = await open_reader(settings)
    by_rule = dict.fromkeys(RULES, 0)
    try:
        async for finding in find_orphans(reader, time.time_ns() // 1_000_000):
            by_rule[finding.rule] += 1
            line = printable(_finding_line(finding))
            typer.echo(json.dumps(finding._asdict()) if as_json else line)
    finally:
        await reader.close()
    count = sum(by_rule.values())
    if as_json:
        typer.echo(json.dumps({"sound": not count, "findings": count, "by_rule": by_rule}))
    elif count:
        found = counted(count, "finding")
        typer.echo(f"{found}. Restore a backup with `tidelog restore`, or report what was found.")
    else:
        typer.echo("sound: every row has its counterpart")
    return not count


def _finding_line(finding: "Finding") -> str:
    from tidelog.mesh.upkeep.orphan_check import RULES

    return (
        f"rule {finding.rule} ({RULES[finding.rule]}): mesh {finding.mesh_id}, "
        f"{finding.relation} {finding.key}: {finding.problem}"
    )


@app.command()
def fingerprint(
    to: Annotated[str, typer.Argument(help="topic:NAME, queue:ID or dm:KEY.")],
    message: Annotated[str, typer.Argument(help="The text.")],
    *,
    priority: Annotated[
        Literal["now", "next", "low"], typer.Option(help="How urgent it is.")
    ] = "next",
    meta: Annotated[str | None, typer.Option(help="The JSON object that travels with it.")] = None,
    reply_to: Annotated[
        str | None, typer.Option(help="broker_message_id of the message being answered.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compute a send's fingerprint, to compare with the prefix in a 409 response.

    Example: tidelog mesh fingerprint topic:alerts "disk 91% on db-3"
    """
    from tidelog.mesh.protocol.fingerprint import RequestRefused, make_envelope, prefix, read_object

    kind, _, ref = to.partition(":")
    given = b"null" if meta is None else meta.encode()
    try:
        envelope = make_envelope(
            destination_kind=kind,
            destination_ref=ref,
            body=message.encode(),
            reply_to_id=reply_to,
            priority=priority,
            meta=read_object(b'{"meta":' + given + b"}")["meta"],
        )
    except RequestRefused as error:
        raise TidelogError(f"{error.code}: {error}") from error
    digest = envelope.fingerprint()
    shown = {
        "request_fingerprint": digest.hex(),
        "prefix": prefix(digest),
        "preimage_bytes": len(envelope.preimage()),
        "meta_canonical": envelope.meta.decode(),
    }
    _show(shown, digest.hex(), as_json=as_json)


@app.command()
def recover(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    data_dir: DaemonDirOption = None,
    mesh: MeshOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new outbox from what can be read of a damaged one; stop the daemon first.

    The damaged file is kept beside it. Ids that can be read stay taken; where their content is
    lost, their rows are `aborted`.

    Example: tidelog mesh recover --data-dir ./alice
    """
    import msgspec

    from tidelog.daemon.outbox.recovery import recover as recover_outbox
    from tidelog.daemon.process import LOCK_NAME

    directory = daemon_dir(data_dir, mesh)
    report = recover_outbox(
        directory,
        directory / LOCK_NAME,
        time.time_ns() // 1_000_000,
        lambda damage: yes or typer.confirm(f"{damage}\nMake a new outbox from it?", err=True),
    )
    if as_json:
        typer.echo(msgspec.json.encode(report).decode())
        return
    if report.was_sound:
        typer.echo(f"{directory}: the outbox is sound; nothing was done")
        return
    typer.echo(
        f"{report.copied} rows copied, {report.retired_count} kept as aborted, "
        f"{report.unreadable_rows} unreadable; the damaged file is {report.moved_to}"
    )
    for client_message_id in report.retired:
        typer.echo(f"  content lost: {client_message_id}")


# The outbox.

LostOption = Annotated[
    bool,
    typer.Option(
        "--lost", help="List messages that the broker had and may have lost, as after a restore."
    ),
]


@outbox.callback(invoke_without_command=True)
def outbox_command(
    context: typer.Context,
    *,
    failed: Annotated[
        bool, typer.Option("--failed", help="List messages that will never reach the broker.")
    ] = False,
    lost: LostOption = False,
    data_dir: DaemonDirOption = None,
    mesh: MeshOption = None,
    as_json: JsonOption = False,
) -> None:
    """What this daemon has accepted, and what became of it.

    Example: tidelog mesh outbox --failed
    """
    if context.invoked_subcommand is None:
        if failed and lost:
            raise typer.BadParameter("give either --failed or --lost")
        _list("dead" if failed else None, 50, data_dir, mesh, is_lost=lost, as_json=as_json)


@outbox.command("list")
def list_rows(
    *,
    status: Annotated[
        Literal["pending", "inflight", "done", "dead", "aborted"] | None,
        typer.Option(help="Only rows in this state."),
    ] = None,
    lost: LostOption = False,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many, newest first.")] = 50,
    data_dir: DaemonDirOption = None,
    mesh: MeshOption = None,
    as_json: JsonOption = False,
) -> None:
    """List rows, newest first.

    Example: tidelog mesh outbox list --status dead
    """
    _list(status, limit, data_dir, mesh, is_lost=lost, as_json=as_json)


def _list(
    status: str | None,
    limit: int,
    data_dir: Path | None,
    mesh: str | None,
    *,
    is_lost: bool,
    as_json: bool,
) -> None:
    wanted = "" if status is None else f"&status={status}"
    wanted += "&possibly_lost=true" if is_lost else ""
    with client(data_dir, mesh) as daemon:
        answer = daemon.ask("GET", f"/v1/outbox?limit={limit}{wanted}")
    if as_json:
        typer.echo(json.dumps(answer))
        return
    for row in answer["items"]:
        typer.echo(printable(_line(row)))


@outbox.command()
def inspect(
    name: Annotated[str, typer.Argument(help="Id of the row, or the client's id of the message.")],
    *,
    data_dir: DaemonDirOption = None,
    mesh: MeshOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a row and the chain of rows it was requeued from and to.

    Example: tidelog mesh outbox inspect tide-17
    """
    with client(data_dir, mesh) as daemon:
        row = daemon.outcome(name)
    if as_json:
        typer.echo(json.dumps(row))
        return
    for field, value in row.items():
        if field != "chain" and value is not None:
            typer.echo(printable(f"{field:20} {value}"))
    if len(row["chain"]) > 1:
        typer.echo("chain, oldest first:")
        for link in row["chain"]:
            typer.echo(printable(f"  {_line(link)}"))


@outbox.command()
def requeue(
    *,
    row_id: Annotated[str, typer.Option("--id", help="The row to retire.")],
    new_client_id: Annotated[str | None, typer.Option(help="The fresh id of the new send.")] = None,
    auto: Annotated[bool, typer.Option("--auto", help="Let the daemon make the fresh id.")] = False,
    patch_payload: Annotated[
        Path | None,
        typer.Option(help="JSON file with the members to replace: message, to, meta, priority ..."),
    ] = None,
    data_dir: DaemonDirOption = None,
    mesh: MeshOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a dead, waiting or possibly lost row again under a fresh id; the old row is kept.

    The old row becomes `aborted`. A possibly lost row (`outbox --lost`) can be sent again as long
    as its content is kept.

    Example: tidelog mesh outbox requeue --id 01JB8Z5Q4T9W2X7M3K6N0P1R5S --auto
    """
    if (new_client_id is not None) == auto:
        raise typer.BadParameter("give either --new-client-id ID or --auto")
    body: dict[str, Any] = {"id": row_id}
    body |= {"auto": True} if auto else {"new_client_id": new_client_id}
    if patch_payload is not None:
        body["patch"] = _read_patch(patch_payload)
    with client(data_dir, mesh) as daemon:
        answer = daemon.ask("POST", "/v1/outbox/requeue", body)
    if answer.get("maybe_delivered"):
        typer.echo(
            "warning: the broker or a receiver may have the old message; then there are two",
            err=True,
        )
    text = f"{answer['new_row_id']} is queued as {answer['new_client_message_id']}"
    _show(answer, text, as_json=as_json)


def _read_patch(path: Path) -> Any:
    from tidelog.base.data.strictjson import read
    from tidelog.base.errors import InvalidJson

    try:
        return read(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a readable JSON file") from error
    except InvalidJson as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error


@outbox.command()
def drop(
    row_id: Annotated[str, typer.Argument(help="The row to give up.")],
    *,
    data_dir: DaemonDirOption = None,
    mesh: MeshOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give up a dead, waiting or possibly lost row; it is aborted, and its id stays taken.

    Example: tidelog mesh outbox drop 01JB8Z5Q4T9W2X7M3K6N0P1R5S
    """
    with client(data_dir, mesh) as daemon:
        answer = daemon.ask("POST", "/v1/outbox/drop", {"id": row_id})
    _show(answer, f"{row_id} is aborted", as_json=as_json)


@outbox.command()
def prune(
    *,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Confirm: the contents are gone for good.")
    ] = False,
    data_dir: DaemonDirOption = None,
    mesh: MeshOption = None,
    as_json: JsonOption = False,
) -> None:
    """Empty the contents of done and aborted rows; the rows and their ids stay.

    Example: tidelog mesh outbox prune --confirm
    """
    if not confirm:
        raise typer.BadParameter("contents are gone for good after this; add --confirm")
    with client(data_dir, mesh) as daemon:
        answer = daemon.ask("POST", "/v1/outbox/prune", {"confirm": True})
    _show(answer, f"{answer['pruned']} rows emptied", as_json=as_json)


def _line(row: dict[str, Any]) -> str:
    error = f" ({row['last_error']})" if row["last_error"] else ""
    if row.get("possibly_lost"):
        error = " (possibly lost)"
    return f"{row['id']} {row['status']:8} {row['client_message_id']}{error}"


def _show(answer: dict[str, Any], text: str, *, as_json: bool) -> None:
    typer.echo(json.dumps(answer) if as_json else text)
