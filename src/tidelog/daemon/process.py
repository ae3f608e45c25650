"""The daemon as a process: what is opened in which order, and how it ends (mesh 4.6).

Whatever could make two daemons send for one outbox, or send from a damaged one, is ruled out before
the IPC opens; the broker comes last, because a daemon without one still accepts sends.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from tidelog.base.errors import StoreDamaged, StoreError, TidelogError
from tidelog.base.ids import parse_ulid
from tidelog.base.sql.sqlitefile import DirectoryLock
from tidelog.daemon.clock import DaemonClock
from tidelog.daemon.continuous_integration import is_ci
from tidelog.daemon.hooks import hook_files
from tidelog.daemon.hooks.dispatch import Hooks
from tidelog.daemon.hooks.hook_files import Hook
from tidelog.daemon.inbox import inbox_db
from tidelog.daemon.inbox.inbox_db import Inbox
from tidelog.daemon.inbox.receiver import RebuildMarker, Receiver
from tidelog.daemon.ipc import token_file
from tidelog.daemon.ipc.api import Api
from tidelog.daemon.ipc.events import Events
from tidelog.daemon.ipc.server import SOCKET_NAME, IpcServer
from tidelog.daemon.ipc.token_file import TokenFile
from tidelog.daemon.key_file import read_key
from tidelog.daemon.metrics import DaemonMetrics
from tidelog.daemon.outbox import outbox_db, recovery
from tidelog.daemon.outbox.outbox_db import Outbox
from tidelog.daemon.outbox.pressure import Level, Pressure
from tidelog.daemon.outbox.worker import Worker
from tidelog.daemon.settings import DaemonSettings
from tidelog.daemon.uplink import names_db
from tidelog.daemon.uplink.broker_connection import BrokerConnection, Displaced
from tidelog.daemon.uplink.interface import BrokerUnreachable
from tidelog.daemon.uplink.member_directory import MemberDirectory
from tidelog.daemon.uplink.names_db import Names
from tidelog.mesh.protocol import wire
from tidelog.mesh.protocol.identity import MemberKey
from tidelog.mesh.protocol.negotiation import NegotiationFailed, Parameters
from tidelog.mesh.protocol.policy import MaxAgeRefused
from tidelog.mesh.protocol.wire import FrameInvalid

KEY_NAME = "key.json"
LOCK_NAME = "lock"

STOP_GRACE_S = 5.0
"""How long an orderly stop waits for replies under way; what is left is repeated at the start."""

PRESSURE_EVERY_S = 5.0
RETENTION_EVERY_S = 3600.0
FIRST_RETENTION_S = 60.0
"""After the start: a daemon that is restarted every day must prune too."""


EXIT_NEGOTIATION = 3
"""Exit code when the broker and this daemon cannot work together; starting again does not help."""

EXIT_REPLACED = 4
"""Exit code when a newer daemon has taken this member's place; starting again would take it back,
and the two would go on like that."""

EXIT_ALREADY_CONNECTED = 5
"""Exit code when an older daemon has this member's place; starting again helps when it is gone."""

MAX_SOCKET_PATH = 107
"""Bytes that the kernel allows for the path of a Unix socket."""

DRAIN_S = 10.0
"""How long a daemon whose directory ends with it goes on sending what it has accepted."""

_log = logging.getLogger("tidelog.daemon")


class Mode(Struct, frozen=True, kw_only=True):
    """How long a daemon is to live, and what ends with it (mesh 4.6)."""

    key: MemberKey | None = None
    """A key that is in memory only; such a daemon's directory is gone when it ends."""
    ttl_s: float | None = None
    """Seconds after which it stops by itself."""
    says_text: bool = False
    """Whether what is printed when the socket is open is for people, not for programs."""


class Daemon:
    """Everything a running daemon has; `open` in the order of mesh 4.6, then `run`."""

    def __init__(
        self,
        data_dir: Path,
        settings: DaemonSettings,
        clock: DaemonClock | None = None,
        mode: Mode | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.mode = mode or Mode()
        self.settings = settings
        self.metrics = DaemonMetrics()
        self.tcp_port: int | None = None
        self._clock = clock or DaemonClock()
        self._stopping = asyncio.Event()
        self._fatal: BaseException | None = None

    async def open(self) -> None:
        """Everything up to the open IPC; raises what an operator has to mend."""
        self._check_socket_path()
        hooks = self._read_hooks()
        self._lock = DirectoryLock(self.data_dir / LOCK_NAME)
        self.data_dir.chmod(0o700)
        recovery.refuse_unfinished(self.data_dir)
        self.key: MemberKey = self._read_key()
        self.outbox = self._open_outbox()
        self.inbox = self._open_inbox()
        self.names = self._open_names()
        recovered = self.outbox.recover_inflight()
        if recovered:
            _log.info("%s attempts of the last process will be repeated", recovered)
        self._assemble(hooks)
        self.receiver.on_new = self.hooks.received
        self.receiver.on_sender = self.names.introduce
        self.uplink.on_heard = lambda name, key: self.names.note({name: key})
        self.events.listeners.append(self.hooks.happened)
        await self._ipc.start_unix(self.data_dir / SOCKET_NAME)
        if self.settings.ipc.tcp_port is not None:
            if _is_container(self.settings):
                _log.warning("this is a container: the Unix socket is offered, no TCP port")
            else:
                self.tcp_port = await self._ipc.start_tcp(self.settings.ipc.tcp_port)

    def _check_socket_path(self) -> None:
        if len(os.fsencode(self.data_dir.absolute() / SOCKET_NAME)) > MAX_SOCKET_PATH:
            raise TidelogError(
                f"the path {self.data_dir} is too long for a Unix socket. Name a shorter --data-dir"
            )

    def _read_key(self) -> MemberKey:
        if self.mode.key is not None:
            return self.mode.key
        path = self.data_dir / KEY_NAME
        if not path.exists():
            raise TidelogError(
                f"there is no key at {path}. Ask for an invite and run: "
                f"tidelog mesh join INVITE --data-dir {self.data_dir}"
            )
        return read_key(path)

    def _open_outbox(self) -> Outbox:
        pressure = Pressure(
            self.settings.outbox, self.settings.disk, self.data_dir, self._clock.now_ms
        )
        outbox = Outbox(self.data_dir / outbox_db.FILE_NAME, pressure, self._clock)
        try:
            outbox.belong_to(self.settings.mesh)
        except BaseException:
            outbox.close()
            raise
        # Ids are minted at the outbox's own time, which is not before its stored mark.
        self._clock.raise_to(parse_ulid(outbox.mint()).unix_ms)
        return outbox

    def _open_inbox(self) -> Inbox:
        path = self.data_dir / inbox_db.FILE_NAME
        is_searchable = self.settings.inbox.full_text_search
        try:
            return Inbox(path, self._clock, is_searchable=is_searchable)
        except StoreDamaged as error:
            aside = recovery.move_aside(path, self._clock.now_ms())
            RebuildMarker(self.data_dir).set(0)
            _log.error("inbox_corruption_recovered: %s Moved to %s", error, aside)
            return Inbox(path, self._clock, is_searchable=is_searchable)

    def _open_names(self) -> Names:
        opened = Names(self.data_dir / names_db.FILE_NAME)
        if opened.is_new:
            opened.note(self.inbox.senders(names_db.MAX_NAMES))
        return opened

    def _read_hooks(self) -> Mapping[str, Hook]:
        found = hook_files.read(self.data_dir)
        if found and is_ci(os.environ):
            _log.warning("this is a CI job: the hooks of %s are off", hook_files.FILE_NAME)
            return {}
        return found

    def _assemble(self, hooks: Mapping[str, Hook]) -> None:
        settings, metrics = self.settings, self.metrics
        self.events = Events(self.inbox)
        self.hooks = Hooks(
            self.data_dir,
            hooks,
            mesh=settings.mesh,
            member_pubkey=self.key.public_hex,
            publish=self.events.publish,
            metrics=metrics,
        )
        self.receiver = Receiver(self.inbox, self.events, metrics, self.key.public_hex)
        self._directory = MemberDirectory(
            settings.broker,
            settings.mesh,
            self.key,
            self.names,
            host=settings.signed_host,
            is_away=lambda: self.uplink.is_away,
        )
        self.uplink = BrokerConnection(
            settings.broker,
            settings.mesh,
            self.key,
            receive=self.receiver.receive,
            on_negotiated=self._adopt,
            publish=self.events.publish,
            key_of=self._directory.key_of,
            members=self._directory.members,
            signed_host=settings.signed_host,
            require=tuple(settings.features.require),
            request_timeout_ms=settings.uplink.request_timeout_ms,
        )
        self.worker = Worker(self.outbox, self.uplink, metrics)
        self.outbox.on_work = self.worker.wake
        self.uplink.on_change = self._connection_changed
        self.uplink.known_incarnation = self.outbox.incarnation
        self.uplink.on_history = self._follow
        self.uplink.on_invalid = self._count_invalid
        self._reconnected = asyncio.Event()
        metrics.connected = lambda: self.uplink.connected
        metrics.outbox_depth = self.outbox.counts
        metrics.outbox_lost = self.outbox.possibly_lost
        metrics.outbox_age_ms = self.outbox.oldest_age_ms
        metrics.disk_shares = self.outbox.shares
        api = Api(
            settings=settings,
            outbox=self.outbox,
            inbox=self.inbox,
            events=self.events,
            uplink=self.uplink,
            metrics=metrics,
            member_pubkey=self.key.public_hex,
            on_fatal=self._die,
            refusal_of=self.hooks.refusal_of if "pre-send" in hooks else None,
        )
        token = TokenFile(
            self.data_dir / token_file.FILE_NAME, lambda: time.monotonic_ns() / 1_000_000
        )
        self._ipc = IpcServer(api.respond, settings.ipc, metrics, token, api.paths)

    def _adopt(self, parameters: Parameters) -> None:
        self.outbox.adopt(parameters, self.settings.outbox.max_age_hours_override)
        expired = self.outbox.expire()
        if expired:
            _log.warning("%s rows are older than what was negotiated allows", expired)

    def _follow(self, incarnation: str, began: int) -> None:
        lost = self.outbox.follow(incarnation, began)
        if lost:
            _log.warning(
                "the broker's log is another one than before, as after a restore: %s messages that "
                "it had accepted may be lost. See: tidelog mesh outbox --lost",
                lost,
            )
            self.events.publish("outbox_possibly_lost", {"rows": lost})

    def _count_invalid(self) -> None:
        self.metrics.invalid_inbound += 1

    def _connection_changed(self) -> None:
        self.worker.wake()
        if self.uplink.connected:
            self._reconnected.set()

    # Running and ending.

    def stop(self) -> None:
        """End in an orderly way."""
        self._stopping.set()

    def expire(self) -> None:
        """End in an orderly way, because the time that was given is over."""
        _log.info("the time to live is over")
        self._stopping.set()

    def _die(self, error: BaseException) -> None:
        self._fatal = self._fatal or error
        self._stopping.set()

    async def run(self) -> None:
        """Until `stop`, or until something fails that must not be lived with: that is raised."""
        tasks = [
            asyncio.create_task(self._vital(self.uplink.run())),
            asyncio.create_task(self._vital(self._watch_pressure())),
            asyncio.create_task(self._vital(self._keep_inbox())),
            asyncio.create_task(self._vital(self._rebuild_inbox())),
        ]
        working = asyncio.create_task(self._vital(self.worker.run()))
        self.hooks.daemon_started()
        try:
            await self._stopping.wait()
            await self._ipc.close()
            if self._fatal is None and self.mode.key is not None:
                await self._drain()
            self.worker.stop()
            if self._fatal is None:
                await asyncio.wait([working], timeout=STOP_GRACE_S)
            unsent = self.outbox.waiting if self.mode.key is not None else 0
        finally:
            self.hooks.stop()
            for task in (*tasks, working):
                task.cancel()
            await asyncio.gather(*tasks, working, return_exceptions=True)
            await self.hooks.close()
            self.close()
        if self._fatal is not None:
            raise self._fatal
        if unsent:
            raise TidelogError(
                f"{unsent} messages were accepted and not sent, and are lost with the directory of "
                "this ephemeral daemon. Was the broker away? Without --ephemeral they are kept."
            )

    async def _drain(self) -> None:
        """Go on until everything is sent that was accepted; nothing more is."""
        deadline = time.monotonic() + DRAIN_S
        while self.outbox.waiting and self._fatal is None:
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(0.05)

    def close(self) -> None:
        """Give the files and the directory back."""
        self.outbox.close()
        self.inbox.close()
        self.names.close()
        self._lock.release()

    async def _vital(self, work: Coroutine[Any, Any, None]) -> None:
        """A part without which the daemon must not go on."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - whatever it is, `run` raises it
            self._die(error)

    async def _watch_pressure(self) -> None:
        """Tell when the outbox fills up, also when nobody sends."""
        before = Level.NORMAL
        told: set[str] = set()
        self.events.listeners.append(lambda kind, data: told.add(kind))
        while True:
            level = self.outbox.level()
            if level < Level.HIGH:
                told.clear()
            elif "outbox_pressure_high" not in told:
                self.events.publish("outbox_pressure_high", self.outbox.shares())
            if level is not before:
                _log.warning("storage pressure is %s", level.name.lower())
            before = level
            await asyncio.sleep(PRESSURE_EVERY_S)

    async def _keep_inbox(self) -> None:
        await asyncio.sleep(FIRST_RETENTION_S)
        while True:
            await _tolerant(self._prune)
            await asyncio.sleep(RETENTION_EVERY_S)

    async def _prune(self) -> None:
        removed = self.inbox.prune()
        vacuumed = await self.inbox.vacuum_if_due()
        _log.info("inbox: %s old messages removed, vacuumed: %s", removed, vacuumed)

    async def _rebuild_inbox(self) -> None:
        marker = RebuildMarker(self.data_dir)
        while marker.after() is not None:
            await self._reconnected.wait()
            self._reconnected.clear()
            try:
                await self.receiver.rebuild(marker, self.uplink.history)
            except (BrokerUnreachable, FrameInvalid) as error:
                _log.warning("the inbox is not rebuilt yet: %s", error)


async def _tolerant(work: Callable[[], Awaitable[None]]) -> None:
    """Housekeeping that may fail now and be done later."""
    try:
        await work()
    except StoreError as error:
        _log.warning("housekeeping failed and is repeated later: %s", error)


def _is_container(settings: DaemonSettings) -> bool:
    """Where other containers may share the loopback, the Unix socket is all there is (mesh 3.1)."""
    if settings.container or "KUBERNETES_SERVICE_HOST" in os.environ:
        return True
    if Path("/.dockerenv").exists():
        return True
    with contextlib.suppress(OSError):
        groups = Path("/proc/1/cgroup").read_text(encoding="utf-8", errors="replace")
        return any(word in groups for word in ("docker", "kubepods", "containerd", "lxc"))
    return False


def run(data_dir: Path, settings: DaemonSettings, mode: Mode | None = None) -> int:
    """The whole life of the process; returns its exit code."""
    try:
        asyncio.run(_live(data_dir, settings, mode or Mode()))
    except (NegotiationFailed, MaxAgeRefused) as error:
        sys.stderr.write(f"tidelog daemon: {error}\n")
        return EXIT_NEGOTIATION
    except Displaced as error:
        sys.stderr.write(f"tidelog daemon: {error}\n")
        return EXIT_REPLACED if error.code == wire.REPLACED else EXIT_ALREADY_CONNECTED
    return 0


async def _live(data_dir: Path, settings: DaemonSettings, mode: Mode) -> None:
    daemon = Daemon(data_dir, settings, mode=mode)
    await daemon.open()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, daemon.stop)
    if mode.ttl_s is not None:
        loop.call_later(mode.ttl_s, daemon.expire)
    ready = {
        "socket": str(data_dir / SOCKET_NAME),
        "tcp_port": daemon.tcp_port,
        "mesh": settings.mesh,
        "member_pubkey": daemon.key.public_hex,
        "pid": os.getpid(),
    }
    line = json.dumps(ready)
    if mode.says_text:
        port = "" if daemon.tcp_port is None else f" and 127.0.0.1:{daemon.tcp_port}"
        line = f"{settings.mesh}: member {daemon.key.public_hex} listens at {ready['socket']}{port}"
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    await daemon.run()
