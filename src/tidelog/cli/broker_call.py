"""How a command talks to a broker: as an administrator, as a member, or as nobody yet."""

import json
import os
import secrets
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer

from tidelog.base.errors import ConfigError, TidelogError
from tidelog.cli.options import settings_from

_TIMEOUT_S = 30
_PATIENCE_S = 15
"""How long a command waits for a broker that nobody hears yet."""


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


def call(url: str, method: str, body: object, token: str | None) -> dict[str, Any]:
    """The answer to one request; a refusal becomes an error that says what to do."""
    base = "{0.scheme}://{0.netloc}".format(urlsplit(url))
    headers = {"content-type": "application/json"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    request = urllib.request.Request(  # noqa: S310 - the operator names the broker
        url,
        data=None if body is None else json.dumps(body).encode(),
        headers=headers,
        method=method,
    )
    try:
        with _opened(request) as answer:
            result: dict[str, Any] = json.load(answer)
            return result
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode("utf-8", "replace")[:300]
        raise TidelogError(f"{base} answered {error.code}: {text}{_advice(text)}") from error
    except OSError as error:
        raise TidelogError(
            f"{base} does not answer ({error}). Is the broker running? Start it with "
            "`tidelog serve`, or name another with --url."
        ) from error


def _opened(request: urllib.request.Request) -> Any:
    """The answer of a broker, which may just be starting: nobody listens yet."""
    deadline = time.monotonic() + _PATIENCE_S
    is_told = False
    while True:
        try:
            return urllib.request.urlopen(request, timeout=_TIMEOUT_S)  # noqa: S310 - as above
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError as error:
            is_starting = isinstance(error.reason, ConnectionRefusedError)
            if not is_starting or time.monotonic() > deadline:
                raise
            if not is_told:
                typer.echo(f"waiting for a broker at {request.host} ...", err=True)
                is_told = True
            time.sleep(0.2)


_ADVICE = {
    "mesh_exists": "Use it, or choose another slug.",
    "mesh_not_found": "Make it with `tidelog mesh create`.",
    "invite_used": "Ask for a new one: `tidelog mesh invite`.",
    "invite_expired": "Ask for a new one: `tidelog mesh invite`.",
    "invite_invalid": "Copy it whole, or ask for a new one: `tidelog mesh invite`.",
    "name_taken": "Choose another --name.",
    "already_a_member": "This key has joined under another name; use that name.",
    "member_revoked": "This key was revoked for good; join with another --data-dir.",
    "unauthenticated": "Set TIDELOG_ADMIN_TOKEN to what the server has, or serve with --dev.",
}


def _advice(text: str) -> str:
    try:
        code = json.loads(text).get("error")
    except (ValueError, AttributeError):
        return ""
    return f" {_ADVICE[code]}" if code in _ADVICE else ""


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
