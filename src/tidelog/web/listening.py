"""The port of a server, which nobody else can have meanwhile."""

import socket

from tidelog.base.errors import ConfigError
from tidelog.config.settings import Settings

BACKLOG = 2048
"""Connections that wait to be accepted; the system has a bound of its own."""


def url_of(listener: socket.socket, settings: Settings) -> str:
    """Where whoever has this socket listens."""
    scheme = "https" if settings.tls_certificate else "http"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """Take the port.

    Raises:
        ConfigError: it cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, not 0: asyncio sets TCP_NODELAY only on sockets that say they are TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}. Choose another --host or --port "
            "(0 takes a free one)."
        ) from error
    listener.setblocking(False)
    return listener
