"""How a command talks to a broker: as a member, or as an administrator."""

import os
import secrets
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from tidelog.cli.shared.given_settings import settings_from
from tidelog.cli.shared.running_server import administration
from tidelog.daemon.uplink.broker_http import call

BrokerUrlOption = Annotated[
    str | None, typer.Option("--url", help="URL of the broker; default from the settings.")
]
SlugArgument = Annotated[str, typer.Argument(help="Slug of the mesh: a-z, 0-9, - and _.")]


def mesh_url(base: str, slug: str) -> str:
    """The address of a mesh at a broker."""
    return f"{base}/mesh/{quote(slug, safe='')}"


def call_as_admin(
    slug: str, method: str, resource: str, url: str | None, config: Path | None
) -> dict[str, Any]:
    """Ask for something of a mesh with the broker's admin token."""
    base, token = administration(settings_from(config), url)
    return call(f"{mesh_url(base, slug)}/{resource}", method, None, token)


def call_as_member(directory: Path, method: str, resource: str, body: object) -> dict[str, Any]:
    """Ask for something of a mesh with the key in a daemon's directory; no daemon need run."""
    from tidelog.client.mesh.daemon_directory import KEY_NAME, require_joined
    from tidelog.daemon import settings as daemon_settings
    from tidelog.daemon.key_file import read_key
    from tidelog.daemon.uplink.broker_address import resource_url

    require_joined(directory)
    key = read_key(directory / KEY_NAME)
    settings = daemon_settings.load(directory, {}, os.environ).settings
    token = key.token(
        settings.mesh,
        unix_now=time.time(),
        jti=secrets.token_hex(16),
        lifetime_s=60,
        host=settings.signed_host,
    )
    return call(resource_url(settings.broker, settings.mesh, resource), method, body, token)
