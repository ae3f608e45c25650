"""`systemd-analyze`, which knows what systemd would say of a unit without starting anything."""

from support import debian


def systemd_analyze() -> str:
    """Its path; installed from Debian's package if there is none and that is possible."""
    return debian.program("systemd", "systemd-analyze")
