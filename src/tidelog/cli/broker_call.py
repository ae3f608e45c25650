"""How a command talks to a broker as a member."""

import os
import secrets
import time
from pathlib import Path
from typing import Any

from tidelog.daemon.broker_http import call


def call_as_member(directory: Path, method: str, resource: str, body: object) -> dict[str, Any]:
    """Ask for something of a mesh with the key in a daemon's directory; no daemon need run."""
    from tidelog.client.mesh_place import KEY_NAME, require_joined
    from tidelog.daemon import settings as daemon_settings
    from tidelog.daemon.address import resource_url
    from tidelog.mesh.identity import read_key

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
