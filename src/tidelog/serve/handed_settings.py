"""Settings that a supervisor gives to its programs: what it was started with, read once.

A program that is started again later has the same, whatever has become of the file since. They are
in memory that only these processes have, because they hold secrets.
"""

import os
import tempfile

import msgspec

from tidelog.config.settings import Settings


def hand_on(settings: Settings) -> int:
    """Number of an open file with the settings; for `Program.files`."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("tidelog-settings")
    else:
        number, path = tempfile.mkstemp(prefix="tidelog-")
        os.unlink(path)  # noqa: PTH108 - of what `mkstemp` returned
    os.write(number, msgspec.msgpack.encode(settings))
    return number


def taken(number: int) -> Settings:
    """What is in that file; everybody who has it may ask."""
    return msgspec.msgpack.decode(os.pread(number, os.fstat(number).st_size, 0), type=Settings)
