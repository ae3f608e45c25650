"""What `/openapi.json` tells of the dashboard: its routes are its page's and change with it."""

from collections.abc import Mapping
from typing import Any

from tidelog.base.serving.openapi import TEXT, WHOLE, Operation, Parameter, Schema, Security, record
from tidelog.dashboard.access import COOKIE, PATH

API = f"{PATH}/api"

SESSION = Security(
    "dashboard_session",
    {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "Set by the login; with --dev the dashboard needs none.",
    },
)

_ANY: Schema = {"type": "object"}
_ERROR = record("error", error=TEXT)
_BEFORE = Parameter("before", "Only what lies before this position.", WHOLE)


def _page(summary: str, *, status: int = 200, media_type: str = "text/html") -> Operation:
    return Operation(
        summary=summary, tag="dashboard", answer=TEXT, status=status, media_type=media_type
    )


def _asked(summary: str, *parameters: Parameter, body: Any = None) -> Operation:
    return Operation(
        summary=summary,
        tag="dashboard",
        answer=_ANY,
        parameters=parameters,
        body=body,
        security=SESSION,
        error=_ERROR,
    )


_ROW = record("id", id=TEXT)

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("GET", PATH): _page("The page; without a session it leads to the login."),
    ("GET", "/"): _page("Leads to the page.", status=303),
    ("GET", f"{PATH}/login"): _page("The login page."),
    ("POST", f"{PATH}/login"): _page(
        "Begin a session: a form with the admin token as `token`.",
        status=303,
        media_type="text/plain",
    ),
    ("POST", f"{PATH}/logout"): _asked("End the session."),
    ("GET", f"{PATH}/static/{{file}}"): _page(
        "A script, style or picture of the page.", media_type="*/*"
    ),
    ("GET", f"{API}/state"): _asked("What is served, and the position of the tail."),
    ("GET", f"{API}/processes"): _asked("What each process of the server takes."),
    ("GET", f"{API}/log"): _asked(
        "Entries of the log, newest first.",
        *(
            Parameter(name, f"Only entries of this {name}.")
            for name in ("surface", "stream", "kind", "actor")
        ),
        _BEFORE,
    ),
    ("GET", f"{API}/entry/{{id}}"): _asked("One entry with its body."),
    ("GET", f"{API}/channels"): _asked(
        "Channels.", Parameter("prefix", "Only names that begin with this.")
    ),
    ("GET", f"{API}/messages"): _asked(
        "Messages of a channel as they are now.", Parameter("stream", "Of the channel."), _BEFORE
    ),
    ("GET", f"{API}/versions"): _asked(
        "Versions of a message.", Parameter("message", "Its `message_serial`."), _BEFORE
    ),
    ("GET", f"{API}/sync"): _asked("Connected sync clients with cursor and lag."),
    ("GET", f"{API}/mesh"): _asked("Meshes."),
    ("GET", f"{API}/mesh/{{id}}"): _asked("Members and deliveries of a mesh."),
    ("GET", f"{API}/outbox"): _asked("Daemons of this machine whose socket the server can open."),
    ("GET", f"{API}/outbox/{{daemon}}"): _asked(
        "Rows of a daemon's outbox.", Parameter("status", "Only rows in this state.")
    ),
    ("POST", f"{API}/outbox/{{daemon}}/requeue"): _asked("Send a row again.", body=_ROW),
    ("POST", f"{API}/outbox/{{daemon}}/drop"): _asked("Give up a row.", body=_ROW),
    ("GET", f"{API}/pipeline"): _asked("Tables of the lake, their freshness and the verdicts."),
    ("GET", f"{API}/search"): _asked("Search messages.", Parameter("q", "What to look for.")),
}
