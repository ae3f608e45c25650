"""`tidelog` with the probe: what `ServerProcess` runs in our own tests."""

import os

from support.probe.server import mount_probe
from support.probe.service import EXTENSION, UNLISTED, VARIABLE
from tidelog.cli import serving
from tidelog.cli.main import main

if __name__ == "__main__":
    if os.environ.get(VARIABLE, "1") == "1":
        is_listed = not os.environ.get(UNLISTED)
        extension = EXTENSION if is_listed else EXTENSION._replace(touches={})
        serving.ADDED.append((mount_probe, extension))
    main()
