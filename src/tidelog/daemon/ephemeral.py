"""A daemon for one job: its key is in memory only, and its directory ends with it (mesh 4.6).

It joins with an invite when it starts. When it is stopped, or its time is over, it sends what it
has accepted, ends its membership, so that its name is free for the next job, and removes its
directory. Killed, it leaves the directory behind, without a key, and its member, whom an
administrator can revoke.
"""

import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from msgspec import structs

from tidelog.base.errors import ConfigError, TidelogError
from tidelog.daemon import process
from tidelog.daemon import settings as daemon_settings
from tidelog.daemon.key_file import new_key
from tidelog.daemon.settings import DaemonSettings
from tidelog.daemon.uplink.joining import Invite, leave, read_invite, register
from tidelog.mesh.protocol.identity import MemberKey

INVITE_VARIABLE = "TIDELOG_INVITE"
"""Where the invite comes from: arguments of a process that runs for hours can be read by others."""

EXIT_TERMINATED = 128 + signal.SIGTERM

_log = logging.getLogger(__name__)


def run(
    data_dir: Path | None, name: str | None, flags: Mapping[str, object], mode: process.Mode
) -> int:
    """The whole life of an ephemeral daemon, whose mode gets a key; returns its exit code."""
    link = os.environ.pop(INVITE_VARIABLE, "")
    if not link or not name:
        raise ConfigError(
            "an ephemeral daemon joins when it starts. Give it --invite LINK and --name NAME; an "
            "administrator makes the link with `tidelog mesh invite`."
        )
    invite = read_invite(link)
    signal.signal(signal.SIGTERM, _terminate)
    directory = _make(data_dir)
    try:
        key = new_key()
        given = {**flags, "mesh": invite.slug, "broker": flags.get("broker") or invite.broker}
        settings = daemon_settings.load(directory, given, os.environ).settings
        register(invite, name, key)
        try:
            return process.run(directory, settings, structs.replace(mode, key=key))
        finally:
            _leave(invite, key, settings)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _make(data_dir: Path | None) -> Path:
    if data_dir is None:
        return Path(tempfile.mkdtemp(prefix="tidelog-"))
    try:
        data_dir.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise ConfigError(
            f"{data_dir} exists, and an ephemeral daemon removes its directory when it ends. Name "
            "one that does not exist, or leave --data-dir out."
        ) from None
    return data_dir


def _leave(invite: Invite, key: MemberKey, settings: DaemonSettings) -> None:
    try:
        leave(invite, key, names_host=settings.uplink.hello_version == 2)
    except TidelogError as error:
        _log.warning(
            "the membership of %s was not ended, an administrator can revoke it: %s",
            key.public_hex,
            error,
        )


def _terminate(number: int, frame: FrameType | None) -> None:
    """Asked to end before the daemon listens for that itself: what was made is removed."""
    del number, frame
    sys.exit(EXIT_TERMINATED)
