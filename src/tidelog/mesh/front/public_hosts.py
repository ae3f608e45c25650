"""At which addresses this broker is dialled (mesh 9.7): what a hello or a token may name.

A member signs where it dialled. Another broker that passes the signature on to this one shows one
that names the other broker, and it is refused here.
"""

from collections.abc import Sequence
from typing import Final

from tidelog.base.net import authority
from tidelog.base.net.loopback import is_loopback

DEFAULT_PORTS: Final = (443, 80)
"""What a host without a port stands for: that of a URL without one, `https` or `http`."""

_WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - compared with, not listened on

Local = tuple[str, int] | None
"""Address and port of this machine that a connection came in at; None if it has none."""


class PublicHosts:
    """The listed addresses; without any, those that the server listens on."""

    def __init__(self, listed: Sequence[str], listening_host: str) -> None:
        """`listed` is `mesh.public_hosts`, `listening_host` the setting `host`."""
        self._listed = frozenset(
            authority.spelled(host, each)
            for host, port in map(authority.read, listed)
            for each in (DEFAULT_PORTS if port is None else (port,))
        )
        self._listening_host = None if listening_host in _WILDCARDS else listening_host

    def at(self, local: Local) -> frozenset[str]:
        """What may have been dialled by whoever came in there.

        By default the very address that the connection came in at, also under the name that the
        server was told to listen on, and as `localhost` if it came from this machine.
        """
        if self._listed or local is None:
            return self._listed
        host, port = local
        dialled = {authority.spelled(host, port)}
        if self._listening_host is not None:
            dialled.add(authority.spelled(self._listening_host, port))
        if any(is_loopback(each.rpartition(":")[0].strip("[]")) for each in dialled):
            dialled.add(authority.spelled("localhost", port))
        return frozenset(dialled)
