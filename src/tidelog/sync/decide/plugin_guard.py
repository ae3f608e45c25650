"""The guard around the application's plug-in: measures it, bounds it, and contains its failures."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from tidelog.sync.decide.rules import Check
from tidelog.sync.metrics import SyncMetrics
from tidelog.sync.plugin import Access, Event, Identity, Plugin, State, load_plugin, overrides
from tidelog.sync.protocol.fault import Fault
from tidelog.sync.protocol.items import PreparedItem
from tidelog.sync.protocol.tokens import Claims
from tidelog.sync.protocol.tree import TreeState
from tidelog.sync.settings import SyncSettings

_log = logging.getLogger(__name__)

LOG_SECONDS = 1.0
"""Pause between two log lines about the same kind of failure; the metric counts each. A plug-in
that always fails would otherwise write a trace for every event a client cares to send."""

FAILED = Fault("event", "the application's rules failed; ask whoever runs the server")
TOO_SLOW = Fault("event", "the application's rules took too long; ask whoever runs the server")


class Clocks(NamedTuple):
    """What a plug-in is measured with; both in seconds."""

    steady: Callable[[], float]
    processor: Callable[[], float]
    """What this thread has used so far."""


class GuardedPlugin:
    """Calls a plug-in and always returns a result, even when the plug-in fails."""

    def __init__(
        self, plugin: Plugin, name: str, budget_ms: int, metrics: SyncMetrics, clocks: Clocks
    ) -> None:
        self._plugin = plugin
        self._steady, self._processor = clocks
        self._name = name
        self._budget_seconds = budget_ms / 1000
        self._seconds = {
            method: metrics.plugin_seconds.labels(method)
            for method in ("authorize", "validate", "check")
        }
        self._failures = metrics.plugin_failures
        self._logged_at: dict[tuple[str, str], float] = {}
        self._authorizes = overrides(plugin, "authorize")
        self._validates = overrides(plugin, "validate")
        self._checks = overrides(plugin, "check")

    @classmethod
    def from_settings(
        cls, settings: SyncSettings, metrics: SyncMetrics, clocks: Clocks
    ) -> "GuardedPlugin | None":
        """The configured plug-in, or None if none is configured.

        Raises:
            ConfigError: what `sync.plugin` names is not a plug-in.
        """
        if not settings.plugin:
            return None
        plugin = load_plugin(settings.plugin)
        return cls(plugin, settings.plugin, settings.plugin_budget_ms, metrics, clocks)

    def restrict(self, claims: Claims, access: Access) -> Callable[[str], bool]:
        """Which partitions are allowed by the token and the plug-in both (sync D18)."""
        if not self._authorizes:
            return claims.allows
        identity = _identity(claims)

        def allows(partition: str) -> bool:
            return claims.allows(partition) and self._authorize(identity, partition, access)

        return allows

    def _authorize(self, identity: Identity, partition: str, access: Access) -> bool:
        before = self._steady()
        try:
            answer = self._plugin.authorize(identity, partition, access)
            if not isinstance(answer, bool):
                raise TypeError(f"authorize returned {type(answer).__name__}, not bool")
        except Exception:  # noqa: BLE001 - whatever an application raises
            self._failed("authorize")
            return False
        finally:
            self._seconds["authorize"].observe(self._steady() - before)
        return answer

    def judge(self, item: PreparedItem, raw_event: bytes, claims: Claims) -> PreparedItem:
        """An item with what the plug-in finds and will check, each at its step of sync 8.2."""
        if item.refused or item.invalid or not (self._validates or self._checks):
            return item
        invalid: tuple[Fault, ...] = ()
        if self._validates:
            invalid = self._validate(_event(item, raw_event, claims.all))
        check = claims.encoded if self._checks else None
        return msgspec.structs.replace(item, invalid=invalid, check=check)

    def check_of(self, item: PreparedItem) -> Check | None:
        """What the plug-in has to say about the states of a judged item; None if nothing."""
        if item.check is None:
            return None
        event = _event(item, _decode_body(item.body).event, json.loads(item.check))
        return partial(self._check_in_time, event)

    def _validate(self, event: Event) -> tuple[Fault, ...]:
        before = self._steady()
        try:
            return _faults(self._plugin.validate(event))
        except Exception:  # noqa: BLE001 - whatever an application raises
            self._failed("validate")
            return (FAILED,)
        finally:
            self._seconds["validate"].observe(self._steady() - before)

    def _check_in_time(self, event: Event, states: Mapping[str, TreeState]) -> tuple[Fault, ...]:
        """What is wrong with an event given the state of its partitions.

        A Python function cannot be stopped half-way, so what it used is looked at afterwards. That
        is processor time: on a busy machine, elapsed time would measure the other processes. A
        check that used too much is called once more before its event is refused, because garbage
        collection may have run during it, and a rejected event is lost to its author.
        """
        used = 0.0
        for _ in range(2):
            before, used_before = self._steady(), self._processor()
            try:
                faults = self._check(event, states)
            except Exception:  # noqa: BLE001 - whatever an application raises
                self._failed("check")
                faults = (FAILED,)
            used = self._processor() - used_before
            self._seconds["check"].observe(self._steady() - before)
            if faults or used <= self._budget_seconds:
                return faults
        self._failures.labels("check", "over_budget").inc()
        if self._may_log("check", "over_budget"):
            _log.error(
                "sync.plugin %s: check used %.1f ms of processor time, twice; the limit is %.0f ms "
                "(sync.plugin_budget_ms); refused its event",
                self._name,
                used * 1000,
                self._budget_seconds * 1000,
            )
        return (TOO_SLOW,)

    def _check(self, event: Event, states: Mapping[str, TreeState]) -> tuple[Fault, ...]:
        for partition, tree in states.items():
            if faults := _faults(self._plugin.check(State(partition, tree), event)):
                return faults
        return ()

    def _failed(self, method: str) -> None:
        """Count and log the exception being handled."""
        self._failures.labels(method, "raised").inc()
        if self._may_log(method, "raised"):
            _log.exception(
                "sync.plugin %s: %s failed; refused what it was asked about", self._name, method
            )

    def _may_log(self, method: str, reason: str) -> bool:
        now = self._steady()
        last = self._logged_at.get((method, reason))
        if last is not None and now - last < LOG_SECONDS:
            return False
        self._logged_at[method, reason] = now
        return True


class _Body(msgspec.Struct):
    event: msgspec.Raw


_decode_body = msgspec.json.Decoder(_Body).decode


def _event(item: PreparedItem, raw_event: bytes, claims: Mapping[str, Any]) -> Event:
    """What the plug-in is shown: a copy, since it must not change what is stored."""
    content = msgspec.json.decode(raw_event)
    return Event(
        item.id,
        Identity(item.client_id, claims),
        item.partitions,
        content["type"],
        content["payload"],
        content.get("meta", {}),
    )


def _identity(claims: Claims) -> Identity:
    return Identity(claims.client_id, claims.all)


def _faults(answer: Iterable[Fault]) -> tuple[Fault, ...]:
    """What a plug-in returned, checked and sorted: it goes to a client as it is."""
    faults = set(answer)
    for fault in faults:
        if not isinstance(fault, Fault):
            raise TypeError(f"returned {type(fault).__name__}; must return [Fault(field, message)]")
        for text in fault:
            text.encode()  # raises for what is not text, and for a lone surrogate
    return tuple(sorted(faults))
