"""How a command talks to a broker: as an administrator, as a member, or as nobody yet."""

import os
import secrets
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tidelog.base.errors import ConfigError
from tidelog.cli.options import settings_from
from tidelog.daemon.broker_http import call


def administration(config: Path | None, url: str | None) -> tuple[str, str]:
    """Where the broker is, and what opens its administration."""
    from tidelog.base.settings import DEVELOPMENT_ADMIN_TOKEN

    settings = settings_from(config)
    scheme = "https" if settings.tls_certificate else "http"
    base = (url or f"{scheme}://{settings.host}:{settings.port}").rstrip("/")
    token = settings.mesh_admin_token
    if not token and urlsplit(base).hostname in ("127.0.0.1", "::1", "localhost"):
        token = DEVELOPMENT_ADMIN_TOKEN  # of `tidelog serve --dev`; any other broker refuses it
    if not token:
        raise ConfigError(
            "admin_token is not set, and the broker takes administration only from who knows it. "
            "Set TIDELOG_ADMIN_TOKEN or admin_token in tidelog.toml, for the server too."
        )
    return base, token


def call_as_member(directory: Path, method: str, resource: str, body: object) -> dict[str, Any]:
    """Ask for something of a mesh with the key in a daemon's directory; no daemon need run."""
    from tidelog.client.mesh_place import KEY_NAME
    from tidelog.daemon import settings as daemon_settings
    from tidelog.daemon.address import resource_url
    from tidelog.mesh.identity import read_key

    key = read_key(directory / KEY_NAME)
    settings = daemon_settings.load(directory, {}, os.environ).settings
    token = key.token(settings.mesh, unix_now=time.time(), jti=secrets.token_hex(16), lifetime_s=60)
    return call(resource_url(settings.broker, settings.mesh, resource), method, body, token)
