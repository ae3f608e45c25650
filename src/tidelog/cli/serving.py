"""What `tidelog serve` does, whoever reads its command line."""

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from tidelog.base import handed_on
from tidelog.base.errors import ConfigError, TidelogError
from tidelog.base.net.loopback import is_loopback
from tidelog.cli.shared.given_settings import settings_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidelog.base.serving.surface import Surface
    from tidelog.channels.settings import App
    from tidelog.config.settings import Settings
    from tidelog.serve.server import Mount, Node, Server
    from tidelog.store.schema import Extension

RETRY_SECONDS = 1.0

ADDED: "list[tuple[Mount, Extension]]" = []
"""Surfaces outside the package, of a program that appends to this and then runs `main`."""


def run(
    *,
    host: str | None = None,
    port: int | None = None,
    data_dir: str | None = None,
    store: str | None = None,
    config: Path | None = None,
    workers: str | None = None,
    dev: bool = False,
    log_level: str | None = None,
    log_format: str | None = None,
    as_json: bool = False,
) -> None:
    """Run the server until SIGTERM or Ctrl-C; `serve` says what each of these is."""
    listener = handed_on.inherited()
    settings = settings_from(
        config,
        host=host,
        port=port,
        data_dir=data_dir,
        store=store,
        workers=workers,
        dev=dev or None,
        log_level=log_level,
        log_format=log_format,
    )
    from tidelog.config.credentials import require_credentials, secrets_of
    from tidelog.serve.workers import SUPERVISOR, counted
    from tidelog.web import logs

    require_credentials(settings)
    fronts = counted(settings.workers)
    settings = structs.replace(settings, workers=fronts)
    name = SUPERVISOR if fronts > 1 else ""
    logs.configure(settings.log_level, settings.log_format, secrets_of(settings), name)
    if settings.dev:
        _warn_of_development(settings)
    if fronts > 1:
        _run_processes(settings, listener, as_json=as_json)
        return
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        listener = runner.run(_run(settings, listener, as_json=as_json))
    if listener is not None:
        handed_on.begin_again(listener)


def _warn_of_development(settings: "Settings") -> None:
    """Say loudly what `--dev` opens, and keep it on this machine."""
    import logging

    if not is_loopback(settings.host):
        raise ConfigError(
            "--dev serves an app whose secret everybody knows, so it listens on this machine "
            f"only, not on {settings.host}. Leave --host out, or leave --dev out and set your own "
            "secrets."
        )
    public = [f"app {app.id} / {app.key} / {app.secret}" for app in _public_apps(settings)]
    if not settings.admin_token:
        public.append(f"the admin token {settings.administration_token}")
    if not settings.sync.is_served:
        public.append(f"the secret of sync's tokens ({settings.served_sync.jwt_secret})")
    first = settings.app
    logging.getLogger("tidelog").warning(
        "DEVELOPMENT MODE: everybody knows %s; never expose this port%s",
        ", ".join(public) or "that durability is not required of PostgreSQL",
        f". The secret of app.secret (TIDELOG_APP_SECRET) is that of app {first.id} / {first.key}"
        if first.secret
        else "",
    )


def _public_apps(settings: "Settings") -> "Sequence[App]":
    """The app of `--dev`, if none of the configured ones takes its place."""
    return [app for app in settings.served_apps if app not in settings.configured_apps]


def _run_processes(settings: "Settings", listener: socket.socket | None, *, as_json: bool) -> None:
    """Serve with several processes; what is wrong with the settings is said once, and here."""
    from tidelog.base.supervisor import CouldNotStart
    from tidelog.serve.workers import supervise
    from tidelog.web.certificate import tls_context
    from tidelog.web.listening import listen, url_of

    if ADDED:
        raise ConfigError(
            "this program adds surfaces of its own, and those are served by one process. Use "
            "--workers 1, or serve them beside tidelog."
        )
    tls_context(settings)
    _ = settings.has_lake  # whether the data directory may be looked into
    with listener or listen(settings.host, settings.port) as port:

        def ready(said: str) -> None:
            log_id, head = said.split()
            _say_ready(settings, url_of(port, settings), log_id, int(head), as_json=as_json)

        try:
            asyncio.run(supervise(settings, port, ready))
        except CouldNotStart as error:
            if error.code < 0:  # it could not say why
                raise TidelogError(f"{error}; start it again") from error
            sys.exit(error.code)


def _say_ready(settings: "Settings", url: str, log_id: str, head: int, *, as_json: bool) -> None:
    """The line by which others know that they can connect."""
    dashboard = f"{url}/dashboard"
    playground = f"{url}/" if settings.dev else ""
    if as_json:
        line = json.dumps(
            {
                "url": url,
                "dashboard": dashboard,
                **({"playground": playground} if playground else {}),
                "log_id": log_id,
                "head": head,
                "pid": os.getpid(),
            }
        )
    else:
        line = (
            f"tidelog is ready at {url}, "
            f"{f'its playground at {playground}, ' if playground else ''}"
            f"its dashboard at {dashboard} (log {log_id}, head {head})"
        )
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _run(
    settings: "Settings", listener: socket.socket | None, *, as_json: bool
) -> socket.socket | None:
    """Serve; returns the port's socket if everything has to begin again."""
    from tidelog.base.errors import HistoryReplaced
    from tidelog.base.garbage_collection import leave_startup_out
    from tidelog.web.watchdog import Watchdog

    server = await _open(settings, listener)
    head = await server.store.head()
    leave_startup_out()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    _say_ready(settings, server.url, head.log_id, head.committed_id, as_json=as_json)
    watchdog = Watchdog()
    watchdog.start()
    try:
        await server.run()
    except HistoryReplaced:
        return server.listener
    finally:
        watchdog.stop()
    return None


async def _open(settings: "Settings", listener: socket.socket | None) -> "Server":
    """A server; one that begins again waits for its store, as a running one does."""
    import logging

    from tidelog.base.errors import StoreUnavailable
    from tidelog.serve.server import Server

    while True:
        mounts, extensions = _surfaces(settings)
        again = None if listener is None else listener.dup()
        try:
            server = await Server.open(
                settings, mounts=mounts, extensions=extensions, listener=again
            )
        except StoreUnavailable as error:
            if listener is None:
                raise
            logging.getLogger("tidelog").warning("waiting for the store: %s", error)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            if listener is not None:
                listener.close()
            return server


def _surfaces(settings: "Settings") -> "tuple[Sequence[Mount], Sequence[Extension]]":
    """The surfaces to mount, and what they add to the store."""
    from tidelog.dashboard.schema import EXTENSION as DASHBOARD

    mounts: list[Mount] = []
    extensions: list[Extension] = [DASHBOARD]
    if settings.served_apps:
        mounts.append(_mount_channels)
    if settings.served_sync.is_served:
        mounts.append(_mount_sync)
    if settings.administration_token:
        mounts.append(_mount_mesh)
    if settings.has_lake:
        mounts.append(_mount_search)
    if settings.dev:
        mounts.append(_mount_playground)
    for mount, extension in ADDED:
        mounts.append(mount)
        extensions.append(extension)
    return _with_dashboard(mounts), extensions


def _with_dashboard(mounts: "Sequence[Mount]") -> "Sequence[Mount]":
    """The same and, last, the dashboard, which is told what was mounted before it."""
    from tidelog.dashboard.messages import VOCABULARY
    from tidelog.dashboard.owner import DashboardOwner
    from tidelog.dashboard.surface import DashboardSurface
    from tidelog.link.choice import connect

    mounted: list[Surface] = []

    def noted(mount: "Mount") -> "Mount":
        async def mount_and_note(node: "Node") -> "Surface":
            mounted.append(await mount(node))
            return mounted[-1]

        return mount_and_note

    async def mount_dashboard(node: "Node") -> "Surface":
        link = connect(DashboardOwner(node.committer, node.clock), VOCABULARY)
        metrics = node.committer.metrics
        return await DashboardSurface.open(link, node.store, node.settings, metrics, mounted)

    return (*map(noted, mounts), mount_dashboard)


async def _mount_channels(node: "Node") -> "Surface":
    from tidelog.channels.surface import ChannelsSurface

    return await ChannelsSurface.open(node.committer, node.store, node.settings, node.clock)


async def _mount_sync(node: "Node") -> "Surface":
    from tidelog.sync.surface import SyncSurface

    settings = structs.replace(node.settings, sync=node.settings.served_sync)
    return await SyncSurface.open(node.committer, node.store, settings, node.clock)


async def _mount_mesh(node: "Node") -> "Surface":
    from tidelog.mesh.surface import MeshSurface

    return await MeshSurface.open(node.committer, node.store, node.settings, node.clock)


async def _mount_playground(node: "Node") -> "Surface":
    from tidelog.playground.surface import PlaygroundSurface

    return PlaygroundSurface(node.settings)


async def _mount_search(node: "Node") -> "Surface":
    from tidelog.web.search import SearchSurface

    return SearchSurface(node.settings, node.settings.lake_path, node.store)
