"""Scripts that the daemon runs when something happens (mesh 8.4).

A hook runs after what it is about is stored, never before, and nobody waits for it; only `pre-send`
is asked before a send is accepted. What cannot be run because too much waits is dropped, counted
and noted: the message itself is in the inbox, where a program finds it in any case.
"""

import asyncio
import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tidelog.base.errors import ConfigError
from tidelog.daemon.hooks import hook_files, hook_run
from tidelog.daemon.hooks.hook_files import FOLDER_NAME, Hook, topic_hook
from tidelog.daemon.hooks.hook_run import Result
from tidelog.daemon.inbox.inbox_db import Message
from tidelog.daemon.metrics import DaemonMetrics
from tidelog.daemon.times import timestamp

AUDIT_NAME = "hooks.log"
"""One JSON object in each line: every run when it begins and when it has ended."""

MAX_AUDIT_BYTES = 10 * 1024**2
"""Of the audit file; a full one becomes `hooks.log.1` in place of the last such."""

MAX_AT_ONCE = 8
SLOTS = MAX_AT_ONCE // 2
"""Of `pre-send`, and as many of all others: if they shared them, messages that come in could make
the member's sends wait."""

MAX_WAITING = 1000
MAX_WAITING_BYTES = 16 * 1024**2
"""Of the input of runs that wait; the daemon stays small whatever comes in."""

DROPPED = "dropped"
_EVENTS = {"daemon_disconnect": "on-disconnect", "daemon_reconnect": "on-reconnect"}
_VARIABLES = ("client_message_id", "broker_message_id", "sender_pubkey", "sender_name", "topic")
"""Fields of a message that a hook also finds in its environment."""

_REASON_CHARACTERS = 200

_log = logging.getLogger(__name__)


class Hooks:
    """The hooks of one daemon."""

    def __init__(
        self,
        data_dir: Path,
        hooks: Mapping[str, Hook],
        *,
        mesh: str,
        member_pubkey: str,
        publish: Callable[[str, Any], None],
        metrics: DaemonMetrics,
    ) -> None:
        self._folder = data_dir / FOLDER_NAME
        self._audit_path = data_dir / AUDIT_NAME
        self._hooks = hooks
        self._identity = {"TIDELOG_MESH": mesh, "TIDELOG_MEMBER_PUBKEY": member_pubkey}
        self._publish = publish
        self._metrics = metrics
        self._running = asyncio.Semaphore(SLOTS)
        self._asked = asyncio.Semaphore(SLOTS)
        self._waiting = 0
        self._waiting_bytes = 0
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    # What happens.

    def received(self, message: Message) -> None:
        """A message is in the inbox."""
        if not self._hooks:
            return
        names = ["on-message", "on-dm" if message.topic is None else topic_hook(message.topic)]
        if message.mention:
            names.append("on-mention")
        wanted = [name for name in names if name in self._hooks]
        if wanted:
            fields = msgspec.to_builtins({**msgspec.structs.asdict(message), "meta": None})
            fields["meta"] = msgspec.json.decode(message.meta)
            for name in wanted:
                self._start(name, fields)

    def happened(self, kind: str, data: Any) -> None:
        """An event was published; those that have no hook, and messages, mean nothing here."""
        name = _EVENTS.get(kind)
        if name is not None:
            self._start(name, dict(data))

    def daemon_started(self) -> None:
        """The daemon accepts requests."""
        self._start("on-startup", {})

    async def refusal_of(self, send: Mapping[str, Any]) -> str | None:
        """Why a send must not be accepted, as `pre-send` says; None if it may be."""
        hook = self._hooks.get("pre-send")
        if hook is None:
            return None
        async with self._asked:
            result = await self._run("pre-send", hook, send)
        if result.status == "ok":
            return None
        words = result.output.strip().partition("\n")[0][:_REASON_CHARACTERS]
        return f"the hook pre-send {result.status.replace('_', ' ')}: {words or result.exit_code}"

    def stop(self) -> None:
        """Start nothing more: a daemon that ends has not lost its broker."""
        self._is_stopping = True

    async def close(self) -> None:
        """End what runs, and forget what waits."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Running.

    def _start(self, name: str, fields: Mapping[str, Any]) -> None:
        hook = self._hooks.get(name)
        if hook is None or self._is_stopping:
            return
        data = hook_run.encode_input(fields)
        if self._waiting >= MAX_WAITING or self._waiting_bytes + len(data) > MAX_WAITING_BYTES:
            self._metrics.hooks[name, DROPPED] += 1
            self._note({"hook": name, "status": DROPPED, **_about(fields)})
            return
        self._waiting += 1
        self._waiting_bytes += len(data)
        self._spawn(self._run_later(name, hook, fields, data))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_later(
        self, name: str, hook: Hook, fields: Mapping[str, Any], data: bytes
    ) -> None:
        try:
            await self._running.acquire()
        finally:
            self._waiting -= 1
            self._waiting_bytes -= len(data)
        try:
            await self._run(name, hook, fields, data)
        finally:
            self._running.release()

    async def _run(
        self, name: str, hook: Hook, fields: Mapping[str, Any], data: bytes | None = None
    ) -> Result:
        run = {"run": f"{os.getpid()}-{next(self._numbers)}", "hook": name, **_about(fields)}
        self._note({**run, "status": "started"})
        script = self._folder / name
        try:
            hook_files.check(script)
            result = await hook_run.run(
                script,
                self._environment(name, fields),
                hook_run.encode_input(fields) if data is None else data,
                hook.timeout_ms / 1000,
            )
        except ConfigError as error:
            result = Result(status="not_started", output=str(error))
        except asyncio.CancelledError:
            self._note({**run, "status": "cancelled"})
            raise
        self._metrics.hooks[name, result.status] += 1
        ended = msgspec.structs.asdict(result)
        self._note({**run, **ended})
        del ended["output"]
        self._publish("hook_executed", {**run, **ended})
        return result

    def _environment(self, name: str, fields: Mapping[str, Any]) -> dict[str, str]:
        environment = {"TIDELOG_HOOK": name, **self._identity}
        for field in _VARIABLES:
            value = fields.get(field)
            if isinstance(value, str) and "\0" not in value:
                environment[f"TIDELOG_{field.upper()}"] = value
        return environment

    def _note(self, entry: Mapping[str, Any]) -> None:
        """Write a line of the audit; a full disk must not stop anything else."""
        line = json.dumps({"at": timestamp(time.time_ns() // 1_000_000), **entry}) + "\n"
        path = self._audit_path
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(handle, line.encode())
                is_full = os.fstat(handle).st_size >= MAX_AUDIT_BYTES
            finally:
                os.close(handle)
            if is_full:
                path.replace(path.with_name(f"{AUDIT_NAME}.1"))
        except OSError as error:
            _log.warning("%s: a run was not noted: %s", path, error.strerror)


def _about(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a run is about, as the audit names it: no content."""
    return {"client_message_id": fields.get("client_message_id")}
