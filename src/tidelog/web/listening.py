"""The port of a server, which nobody else can have meanwhile."""

import errno
import socket
import time

from tidelog.base.errors import ConfigError
from tidelog.config.settings import Settings

BACKLOG = 2048
"""Connections that wait to be accepted; the system has a bound of its own."""

TRIES = 11
TRY_SECONDS = 0.1
"""A port that is in use is tried for again, for a second: the fronts of a server that was killed
are killed with it, and may have it a moment longer than that server is there."""


def url_of(listener: socket.socket, settings: Settings) -> str:
    """Where whoever has this socket listens."""
    scheme = "https" if settings.tls_certificate else "http"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """Take the port; called before there is anything that could not wait for it.

    Raises:
        ConfigError: it cannot be had.
    """
    for left in reversed(range(TRIES)):
        try:
            return _listener(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not left:
                raise ConfigError(
                    f"cannot listen on {host}:{port}: {error.strerror}. Choose another --host or "
                    "--port (0 takes a free one)."
                ) from error
        time.sleep(TRY_SECONDS)
    raise AssertionError("the last try returns or raises")


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, not 0: asyncio sets TCP_NODELAY only on sockets that say they are TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
