"""Runs: the events of agents and of whoever talks to them, their metadata, and what a cancel means.

The server validates and guards; clients and agents do the rest. Everything here is pure.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from tidelog.base.data import strictjson
from tidelog.base.errors import InvalidJson
from tidelog.channels.protocol import fault
from tidelog.channels.protocol.extras import TRANSPORT_STATUSES
from tidelog.channels.protocol.tokens import is_id

PREFIX = "ai-"

INPUT = "ai-input"
CANCEL = "ai-cancel"
OUTPUT = "ai-output"
RUN_START = "ai-run-start"
RUN_SUSPEND = "ai-run-suspend"
RUN_RESUME = "ai-run-resume"
RUN_END = "ai-run-end"
STEP_START = "ai-step-start"
STEP_END = "ai-step-end"

CLIENT_EVENTS = frozenset({INPUT, CANCEL})
"""What everybody may publish who may publish at all."""

AGENT_EVENTS = frozenset(
    {OUTPUT, RUN_START, RUN_SUSPEND, RUN_RESUME, RUN_END, STEP_START, STEP_END}
)

EVENTS = CLIENT_EVENTS | AGENT_EVENTS

NOT_OWN = "Not allowed to cancel runs of others: that needs run_cancel_any"

MAX_KEYS = 32
MAX_KEY_BYTES = 64
MAX_VALUE_BYTES = 256
LARGER_VALUES = {
    ("transport", "steer-codec-message-ids"): 2048,
    ("codec", "providerMetadata"): 8192,
}
"""Of `transport` and of `codec`, each; a message carries them in every version."""

_KEYS = {"transport": re.compile(r"[a-z0-9-]+"), "codec": re.compile(r"[A-Za-z0-9_-]+")}

_FLAG = frozenset({"true", "false"})
_DOMAINS: dict[str, frozenset[str]] = {
    "run-reason": frozenset({"complete", "cancelled", "error"}),
    "status": TRANSPORT_STATUSES,
    "stream": _FLAG,
    "step-reason": frozenset({"complete", "failed", "cancelled"}),
    "role": frozenset({"user", "assistant", "system", "tool", "agent"}),
}
"""Transport keys that take some values only."""

_NAMES = frozenset(
    {"run-id", "codec-message-id", "stream-id", "invocation-id", "event-id", "step-id"}
)
"""Transport keys that name something, so that their value is not empty."""

CLIENT_IDS = frozenset({"run-client-id", "input-client-id", "step-client-id"})
"""Transport keys that say who somebody is."""

TRANSPORT_KEYS = (
    frozenset(_DOMAINS)
    | _NAMES
    | CLIENT_IDS
    | {
        *("parent", "fork-of", "msg-regenerate", "supersedes", "discrete", "step-start-serial"),
        *("run-continue", "steer-codec-message-ids", "error-code", "error-message", "model"),
    }
)


class Cancel(Struct, frozen=True, array_like=True):
    """What a cancel is about; exactly one member is set."""

    run_id: str | None = None
    client_id: str | None = None
    """All runs of that client in the channel."""
    is_own: bool = False
    """All runs of the sender."""
    is_all: bool = False


class RunStart(Struct, frozen=True, array_like=True):
    """A run begins, and this is whose it is."""

    run_id: str
    client_id: str
    """Empty if nobody said."""


def is_covered(prefixes: Iterable[str], channel: str) -> bool:
    """Whether streamed content is limited and runs are looked at in a channel (channels D14)."""
    prefixes = tuple(prefixes)
    return not prefixes or channel.startswith(prefixes)


def applies(name: str, channels: Iterable[str], prefixes: Iterable[str]) -> bool:
    """Whether a message of this name, published to these channels, is one of a run."""
    prefixes = tuple(prefixes)
    return name.startswith(PREFIX) and any(is_covered(prefixes, each) for each in channels)


# Metadata.


def check_metadata(transport: Mapping[str, str], codec: Mapping[str, str]) -> None:
    """Refuse metadata that the contract does not know, or that is too large.

    Raises:
        Fault: Names the key.
    """
    for tier, members in (("transport", transport), ("codec", codec)):
        if len(members) > MAX_KEYS:
            raise fault.header_too_large(f"extras.ai.{tier} has more than {MAX_KEYS} keys")
        for key, value in members.items():
            _check_member(tier, key, value)


def _check_member(tier: str, key: str, value: str) -> None:
    if len(key.encode()) > MAX_KEY_BYTES:
        raise fault.header_too_large(f"a key of extras.ai.{tier} has over {MAX_KEY_BYTES} bytes")
    if not _KEYS[tier].fullmatch(key):
        allowed = _KEYS[tier].pattern
        raise fault.invalid_transport_header(f"a key of extras.ai.{tier} does not match {allowed}")
    if tier == "transport" and key not in TRANSPORT_KEYS:
        raise fault.invalid_transport_header(f"extras.ai.transport.{key} is not known")
    most = LARGER_VALUES.get((tier, key), MAX_VALUE_BYTES)
    if len(value.encode()) > most:
        raise fault.header_too_large(f"extras.ai.{tier}.{key} has over {most} bytes")
    if tier == "codec":
        return
    domain = _DOMAINS.get(key)
    if domain is not None and value not in domain:
        wanted = ", ".join(sorted(domain))
        raise fault.invalid_transport_header(f"extras.ai.transport.{key} must be one of {wanted}")
    if key in _NAMES and not value:
        raise fault.invalid_transport_header(f"extras.ai.transport.{key} must not be empty")


def check_client_ids(
    name: str, transport: Mapping[str, str], client_id: str | None, *, any_run: bool = False
) -> None:
    """Refuse a socket that says it is somebody else.

    The owner that a cancel names is its target, not its sender: one whose runs the sender may
    cancel, which `any_run` says of all. An agent may read this and not the data.

    Raises:
        Fault: 403.
    """
    for key in CLIENT_IDS.intersection(transport):
        is_target = any_run and name == CANCEL and key == "run-client-id"
        if transport[key] and transport[key] != client_id and not is_target:
            raise fault.client_id_spoof(
                f"extras.ai.transport.{key} is not the client that this connection was verified as"
            )


# Runs.


def read_start(name: str, transport: Mapping[str, str]) -> RunStart | None:
    """The run that an event begins, if it does and names it."""
    run_id = transport.get("run-id")
    if name != RUN_START or run_id is None:
        return None
    return RunStart(run_id, transport.get("run-client-id", ""))


def read_cancel(text: str, transport: Mapping[str, str]) -> Cancel:
    """What an `ai-cancel` is about, by the text of its data.

    Raises:
        Fault: It is none of the four forms, or its metadata says something else.
    """
    try:
        data: Any = strictjson.read(text)
    except InvalidJson:
        data = None
    given = data if isinstance(data, dict) else {}
    forms = [name for name in ("runId", "own", "clientId", "all") if name in given]
    cancel = _cancel(forms[0], given[forms[0]]) if len(forms) == 1 else None
    if cancel is None:
        raise fault.invalid_input(
            'the data of an ai-cancel is {"runId": ...}, {"own": true}, {"clientId": ...} or '
            '{"all": true}'
        )
    run_id, client_id = transport.get("run-id"), transport.get("run-client-id")
    is_other_run = run_id not in (None, cancel.run_id)
    is_other_client = None not in (cancel.client_id, client_id) and client_id != cancel.client_id
    if is_other_run or is_other_client:
        key = "run-id" if is_other_run else "run-client-id"
        raise fault.invalid_transport_header(
            f"extras.ai.transport.{key} is not what the data of the ai-cancel says"
        )
    return cancel


def _cancel(form: str, value: Any) -> Cancel | None:
    match form:
        case "runId" if _is_value(value):
            return Cancel(run_id=value)
        case "clientId" if is_id(value):
            return Cancel(client_id=value)
        case "own" if value is True:
            return Cancel(is_own=True)
        case "all" if value is True:
            return Cancel(is_all=True)
    return None


def _is_value(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value.encode()) <= MAX_VALUE_BYTES


def may_cancel(cancel: Cancel, client_id: str | None, *, any_run: bool) -> bool:
    """Whether a socket may ask for this, as far as one can tell without the run's owner.

    Of a single run, `any_run` or ownership is for whoever knows the owner to decide.
    """
    if client_id is None:
        return False  # nobody could tell whose wish it was
    if cancel.is_all:
        return any_run
    if cancel.client_id is not None:
        return any_run or cancel.client_id == client_id
    return True
