"""Names of this machine that reach nobody else."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own and no other's."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
