"""`tidelog mesh invites`: which are open, and take one back."""

import hashlib
import json
from typing import Annotated

import typer

from tidelog.cli.mesh.broker_call import BrokerUrlOption, SlugArgument, call_as_admin
from tidelog.cli.shared.options import ConfigOption, JsonOption

app = typer.Typer(help="List or withdraw invites that can still be used.", no_args_is_help=True)


@app.command("list")
def list_invites(
    slug: SlugArgument,
    *,
    url: BrokerUrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the open invites of a mesh: their ids, and until when they can be used.

    Needs the broker's admin token in TIDELOG_ADMIN_TOKEN; `tidelog serve --dev` needs none.

    Example: tidelog mesh invites list harbour
    """
    answer = call_as_admin(slug, "GET", "invites", url, config)
    if as_json:
        typer.echo(json.dumps(answer))
        return
    for invite in answer["invites"]:
        typer.echo(f"{invite['id']} until {invite['expires_at']}")


@app.command("delete")
def delete_invite(
    slug: SlugArgument,
    invite: Annotated[str, typer.Argument(help="Its id as listed, or the link itself.")],
    *,
    url: BrokerUrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Withdraw an invite: nobody can join with it any more.

    Example: tidelog mesh invites delete harbour "http://HOST/mesh/harbour#INVITE"
    """
    _, is_link, secret = invite.partition("#")
    invite_id = hashlib.sha256(secret.encode()).hexdigest() if is_link else invite
    answer = call_as_admin(slug, "DELETE", f"invites/{invite_id}", url, config)
    typer.echo(json.dumps(answer) if as_json else f"the invite {invite_id} is deleted")
