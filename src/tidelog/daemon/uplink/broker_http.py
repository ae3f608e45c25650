"""One HTTP request to a broker, from outside a running daemon, with advice when it fails."""

import json
import sys
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from tidelog.base.errors import TidelogError
from tidelog.base.net import direct
from tidelog.base.net.refusal import read_body, refused

_TIMEOUT_S = 30
_PATIENCE_S = 15
"""How long a command waits for a broker that nobody hears yet."""


def call(
    url: str, method: str, body: object, token: str | None, patience_s: float = _PATIENCE_S
) -> dict[str, Any]:
    """The response to one request; a refusal becomes an error that says what to do."""
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
        with _opened(request, patience_s) as answer:
            result: dict[str, Any] = json.load(answer)
            return result
    except urllib.error.HTTPError as error:
        said = read_body(error)
        raise refused(base, error, said, direct.advice(error) or _advice(said)) from error
    except OSError as error:
        raise TidelogError(
            f"{base} does not answer ({error}). Is the broker running? Start it with "
            "`tidelog serve`, or name another with --url."
        ) from error


def _opened(request: urllib.request.Request, patience_s: float) -> Any:
    """The response of a broker, which may just be starting: nobody listens yet."""
    deadline = time.monotonic() + patience_s
    is_told = False
    while True:
        try:
            return direct.opened(request, _TIMEOUT_S)
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError as error:
            is_starting = isinstance(error.reason, ConnectionRefusedError)
            if not is_starting or time.monotonic() > deadline:
                raise
            if not is_told:
                sys.stderr.write(f"waiting for a broker at {request.host} ...\n")
                is_told = True
            time.sleep(0.2)


_ADVICE = {
    "mesh_exists": "Use it, or choose another slug.",
    "mesh_not_found": "Make it with `tidelog mesh create`.",
    "invite_used": "Ask for a new one: `tidelog mesh invite`.",
    "invite_expired": "Ask for a new one: `tidelog mesh invite`.",
    "invite_invalid": "Copy it whole, or ask for a new one: `tidelog mesh invite`.",
    "invite_not_found": "It was used or deleted, or has expired; `tidelog mesh invites list` shows "
    "those that are open.",
    "topic_not_found": "`tidelog mesh topic list` shows those there are.",
    "queue_not_found": "`tidelog mesh queue list` shows those there are.",
    "not_the_creator": "An administrator gives --admin-of and the admin token.",
    "name_taken": "Choose another --name.",
    "already_a_member": "This key has joined under another name; use that name.",
    "member_revoked": "This key was revoked for good; join with another --data-dir.",
    "rate_limited": "Wait a minute, then try again.",
    "unauthenticated": "Set TIDELOG_ADMIN_TOKEN to what the server has, or serve with --dev.",
}


def _advice(text: str) -> str:
    try:
        answer = json.loads(text)
        code = answer.get("error")
    except (ValueError, AttributeError):
        return ""
    if code == "unauthenticated" and "detail" in answer:
        return ""  # of a member, and it says why; an admin token is refused without a word
    return _ADVICE.get(code, "")
