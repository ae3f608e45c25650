"""How a command asks the administration of a running server."""

import json
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import typer

from tidelog.base.errors import TidelogError
from tidelog.base.net import direct
from tidelog.base.net.refusal import read_body, refused
from tidelog.cli.shared.given_settings import settings_from
from tidelog.cli.shared.running_server import administration

UrlOption = Annotated[
    str | None, typer.Option("--url", help="URL of the server; default from the settings.")
]


def ask(
    config: Path | None,
    url: str | None,
    method: str,
    path: str,
    body: object = None,
    *,
    absent: str = "",
) -> dict[str, Any]:
    """Ask for something that the admin token opens; `path` is below the server's address.

    `absent` says what it means, and what to do, if the server has nothing there.
    """
    base, token = administration(settings_from(config), url)
    request = urllib.request.Request(  # noqa: S310 - the operator names the server
        f"{base}/{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"authorization": f"Bearer {token}"},
        method=method,
    )
    try:
        with direct.opened(request, 60) as answer:
            result: dict[str, Any] = json.load(answer)
            return result
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.NOT_FOUND and absent:
            error.close()
            raise TidelogError(f"{base} {absent}") from error
        said = read_body(error)
        raise refused(base, error, said, direct.advice(error) or _advice(error.code)) from error
    except OSError as error:
        raise TidelogError(
            f"{base} does not answer ({error}). Is the server running? Name another with --url."
        ) from error


def _advice(status: int) -> str:
    if status == HTTPStatus.UNAUTHORIZED:
        return "Set TIDELOG_ADMIN_TOKEN to the admin_token of that server."
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        return "Try again in a moment."
    return "See the log of that server." if status >= HTTPStatus.INTERNAL_SERVER_ERROR else ""
