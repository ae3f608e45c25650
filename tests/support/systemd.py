"""`systemd-analyze`, which knows what systemd would say of a unit without starting anything."""

import shutil

from support import debian


def systemd_analyze() -> str:
    """Its path; installed from Debian's package if there is none and that is possible.

    Raises:
        RuntimeError: There is none, and none can be installed here.
    """
    if shutil.which("systemd-analyze") is None:
        debian.install("systemd")
    found = shutil.which("systemd-analyze")
    if found is None:
        raise RuntimeError("the unit is checked by systemd-analyze: apt-get install systemd")
    return found
