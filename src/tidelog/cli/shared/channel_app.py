"""Which app of which server a command about channels means, and how its failures are told."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import msgspec
import typer

from tidelog.base.errors import ConfigError, TidelogError
from tidelog.base.net.loopback import is_loopback
from tidelog.base.net.refusal import ServerRefused
from tidelog.base.terminal import printable
from tidelog.cli.shared.given_settings import settings_from
from tidelog.cli.shared.running_server import server_url

if TYPE_CHECKING:
    from tidelog.channels.settings import App
    from tidelog.client import BlockingChannelPublisher
    from tidelog.config.settings import Settings

ATTEMPTS = 3
"""Somebody waits at a terminal: a server that is starting is waited for, one that is not there is
told of."""

AppOption = Annotated[
    str | None,
    typer.Option("--app", help="Id of the app; default the only one in the settings."),
]


class Target(msgspec.Struct, frozen=True):
    """An app of a server."""

    url: str
    app: "App"

    def publisher(self, attempts: int = ATTEMPTS) -> "BlockingChannelPublisher":
        """Whoever publishes for the app."""
        from tidelog.client import BlockingChannelPublisher

        app = self.app
        return BlockingChannelPublisher(self.url, app.id, app.key, app.secret, attempts=attempts)


def target(config: Path | None, url: str | None, app_id: str | None) -> Target:
    """The app that was named, or else the only one in the settings.

    A server on this machine is taken for one in development mode if the settings have no app: any
    other refuses the known secret.

    Raises:
        ConfigError: nothing says which app is meant, or what its secret is.
    """
    settings = settings_from(config)
    base = server_url(settings, url)
    return Target(base, _app(settings, base, app_id))


def _app(settings: "Settings", base: str, app_id: str | None) -> "App":
    from tidelog.config.settings import DEVELOPMENT_APP

    apps = list(settings.served_apps)
    if not apps and is_loopback(urlsplit(base).hostname or ""):
        apps = [DEVELOPMENT_APP]
    named = [app for app in apps if app_id in (None, app.id)]
    if len(named) == 1:
        return named[0]
    known = ", ".join(app.id for app in apps)
    if not apps:
        raise ConfigError(
            "no app is set, and its secret signs what this command sends. Set TIDELOG_APP_SECRET, "
            "or [[apps]] in tidelog.toml, as for the server."
        )
    if app_id is None:
        raise ConfigError(f"there are several apps: {known}. Name one with --app.")
    raise ConfigError(f"the settings have no app {printable(app_id)}; they have: {known}")


@contextmanager
def told(base: str) -> Iterator[None]:
    """Say what to do about a request that the server did not accept."""
    from tidelog.client import PublishFailed, PublishRefused

    try:
        yield
    except PublishRefused as refused:
        body = {"error": refused.error, "code": refused.code, "status": refused.status}
        body |= {} if refused.ai_code is None else {"ai_code": refused.ai_code}
        text = f"{base} returned {refused.status}: {printable(refused.error).rstrip('.')}."
        raise ServerRefused(
            f"{text} {_ADVICE.get(refused.code, '')}".rstrip(),
            refused.status,
            msgspec.json.encode(body).decode(),
        ) from refused
    except PublishFailed as failed:
        raise TidelogError(
            f"{base} does not answer ({failed}). Is the server running? Name another with --url."
        ) from failed


_ADVICE = {
    "auth_failed": "Are key and secret of the app in your settings those of that server?",
    "app_not_found": "Name an app of that server with --app, or another server with --url.",
    "not_found": "`tidelog channels history CHANNEL` shows the serials of its messages.",
    "rate_limited": "Try again in a moment.",
    "backpressure": "Try again in a moment.",
}
