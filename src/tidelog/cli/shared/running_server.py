"""Where a command finds the running server, and what opens its administration."""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tidelog.base.errors import ConfigError
from tidelog.base.net.loopback import is_loopback
from tidelog.base.terminal import printable

if TYPE_CHECKING:
    from tidelog.config.settings import Settings


def server_url(settings: "Settings", url: str | None) -> str:
    """The address that was named, or else where the configuration has the server listen.

    Raises:
        ConfigError: what was named is no such address.
    """
    if url:
        named = urlsplit(url)
        if named.scheme not in ("http", "https") or not named.hostname:
            raise ConfigError(
                f"--url {printable(url)} is not the address of a server: it begins with http:// or "
                "https://, such as http://127.0.0.1:8080"
            )
        return url.rstrip("/")
    scheme = "https" if settings.tls_certificate else "http"
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.port}"


def administration(settings: "Settings", url: str | None) -> tuple[str, str]:
    """That address and the admin token.

    A server on this machine is first taken for one in development mode, whose token is public: any
    other refuses it.

    Raises:
        ConfigError: no token is known, or what was named is no address.
    """
    from tidelog.config.settings import DEVELOPMENT_ADMIN_TOKEN

    base, token = server_url(settings, url), settings.administration_token
    if not token and is_loopback(urlsplit(base).hostname or ""):
        token = DEVELOPMENT_ADMIN_TOKEN
    if not token:
        raise ConfigError(
            "admin_token is not set, and the server lets only those who know it administer it. "
            "Set TIDELOG_ADMIN_TOKEN or admin_token in tidelog.toml, for the server too."
        )
    return base, token
