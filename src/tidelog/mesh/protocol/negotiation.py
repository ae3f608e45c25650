"""Which features broker and daemon agree on before any traffic (mesh 9.2), both sides."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, get_args

from msgspec import Struct

from tidelog.base.errors import TidelogError
from tidelog.mesh.protocol.policy import MIN_RETENTION_DAYS, Mode

DEDUPE: Final = "client_message_id_dedupe"
MAX_PAYLOAD: Final = "max_payload"
CONCURRENT_CONNECTIONS: Final = "concurrent_connection_policy"

REQUIRED: Final = (DEDUPE, CONCURRENT_CONNECTIONS)
"""What a daemon cannot do without."""
OPTIONAL: Final = (MAX_PAYLOAD,)

VERSIONS: Final[Mapping[str, int]] = {DEDUPE: 2, MAX_PAYLOAD: 1, CONCURRENT_CONNECTIONS: 1}
"""The `params.version` of each feature that this program understands."""

INLINE_BYTES = 65_536
BLOB_BYTES = 524_288_000
MIN_PAYLOAD_BYTES = 1024
MAX_FEATURES = 64
"""Names in one request: the response repeats the missing ones."""

ConnectionPolicy = Literal["prefer_newest", "prefer_oldest", "allow_concurrent"]
CONNECTION_POLICIES: Final[tuple[ConnectionPolicy, ...]] = get_args(ConnectionPolicy)
"""What becomes of two daemons with one key: the newer stays, the older stays, or both do."""

OPTIONAL_PARAM_INVALID: Final = "feature_optional_param_invalid"

FailureKind = Literal["feature_unavailable", "feature_param_invalid", "feature_param_below_floor"]
CLOSE_CODES: Final[Mapping[FailureKind, int]] = {
    "feature_unavailable": 4010,
    "feature_param_invalid": 4011,
    "feature_param_below_floor": 4012,
}


class Parameters(Struct, frozen=True, kw_only=True):
    """What was negotiated; the defaults are those of a daemon that never reached its broker."""

    mode: Mode = "retention_scoped"
    dedupe_retention_days: int | None = MIN_RETENTION_DAYS
    """None in permanent mode."""
    inline_bytes: int = INLINE_BYTES
    """Largest body of a send."""
    blob_bytes: int = BLOB_BYTES
    tombstone_history_pruned_window_days: int | None = None
    connection_policy: ConnectionPolicy = "prefer_newest"
    """What becomes of another daemon with this one's key."""
    features: tuple[str, ...] = ()
    """Names of the features both sides have."""


class NegotiationFailed(TidelogError):  # noqa: N818 - the failure is the noun
    """The broker cannot serve this daemon: say why, close, and exit."""

    def __init__(self, kind: FailureKind, feature: str, detail: str) -> None:
        super().__init__(f"{kind}: {feature}: {detail}")
        self.kind: FailureKind = kind
        self.feature = feature
        self.detail = detail
        self.close_code = CLOSE_CODES[kind]


# The broker's side.


def offered(
    *,
    mode: Mode,
    dedupe_retention_days: int,
    inline_bytes: int = INLINE_BYTES,
    blob_bytes: int = BLOB_BYTES,
    connection_policy: ConnectionPolicy = "prefer_newest",
) -> dict[str, dict[str, Any]]:
    """Every feature of a broker by name, each as `{"params": ...}`."""
    dedupe: dict[str, Any] = {
        "version": VERSIONS[DEDUPE],
        "mode": mode,
        "request_fingerprint": True,
    }
    if mode == "retention_scoped":
        dedupe["dedupe_retention_days"] = dedupe_retention_days
    payload = {
        "version": VERSIONS[MAX_PAYLOAD],
        "inline_bytes": inline_bytes,
        "blob_bytes": blob_bytes,
    }
    connections = {
        "version": VERSIONS[CONCURRENT_CONNECTIONS],
        "default_policy": connection_policy,
    }
    return {
        DEDUPE: {"params": dedupe},
        MAX_PAYLOAD: {"params": payload},
        CONCURRENT_CONNECTIONS: {"params": connections},
    }


def response(
    require: Sequence[str], optional: Sequence[str], offer: Mapping[str, dict[str, Any]]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """`supported` and `missing_required` of the response: of what was asked for, what there is."""
    asked = dict.fromkeys((*require, *optional))
    supported = {name: offer[name] for name in asked if name in offer}
    return supported, [name for name in dict.fromkeys(require) if name not in offer]


# The daemon's side.


def judge(
    supported: Mapping[str, Any],
    missing_required: Sequence[str] = (),
    *,
    require: Sequence[str] = REQUIRED,
) -> tuple[Parameters, list[str]]:
    """What was negotiated, and warnings to log; `NegotiationFailed` when nothing can be sent."""
    for name in require:
        if name in missing_required or name not in supported:
            raise NegotiationFailed("feature_unavailable", name, "the broker does not offer it")
    values: dict[str, Any] = {}
    warnings: list[str] = []
    for name, reader in _READERS.items():
        if name in supported:
            values |= reader(_params(name, supported[name]), warnings)
    return Parameters(**values, features=tuple(sorted(supported))), warnings


def _params(name: str, feature: Any) -> Mapping[str, Any]:
    params = feature.get("params") if isinstance(feature, dict) else None
    if not isinstance(params, dict):
        raise _invalid(name, "it has no params")
    version = params.get("version")
    if type(version) is not int or version != VERSIONS[name]:
        raise _invalid(name, f"params.version is not {VERSIONS[name]}")
    return params


def _dedupe(params: Mapping[str, Any], warnings: list[str]) -> dict[str, Any]:
    mode = params.get("mode")
    if mode not in ("retention_scoped", "permanent"):
        raise _invalid(DEDUPE, "mode is neither retention_scoped nor permanent")
    if params.get("request_fingerprint") is not True:
        raise _invalid(DEDUPE, "request_fingerprint is not true")
    days = None
    if mode == "retention_scoped":
        days = params.get("dedupe_retention_days")
        if type(days) is not int or days < 1:
            raise _invalid(DEDUPE, "dedupe_retention_days is not a positive integer")
        if days < MIN_RETENTION_DAYS:
            raise NegotiationFailed(
                "feature_param_below_floor",
                DEDUPE,
                f"dedupe_retention_days is {days}, the least is {MIN_RETENTION_DAYS}",
            )
    name = "tombstone_history_pruned_window_days"
    window = params.get(name)
    if window is not None and (type(window) is not int or window < 0):
        warnings.append(f"{OPTIONAL_PARAM_INVALID}: {DEDUPE}.{name}")
        window = None
    return {"mode": mode, "dedupe_retention_days": days, name: window}


def _payload(params: Mapping[str, Any], warnings: list[str]) -> dict[str, Any]:
    del warnings  # it has no optional parameter
    found = {name: params.get(name) for name in ("inline_bytes", "blob_bytes")}
    for name, value in found.items():
        if type(value) is not int or value < MIN_PAYLOAD_BYTES:
            raise _invalid(MAX_PAYLOAD, f"{name} is not an integer of at least {MIN_PAYLOAD_BYTES}")
    return found


def _connections(params: Mapping[str, Any], warnings: list[str]) -> dict[str, Any]:
    name = "default_policy"
    policy = params.get(name)
    if policy is None:
        return {}
    if policy not in CONNECTION_POLICIES:
        warnings.append(f"{OPTIONAL_PARAM_INVALID}: {CONCURRENT_CONNECTIONS}.{name}")
        return {}
    return {"connection_policy": policy}


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any], list[str]], dict[str, Any]]]] = {
    DEDUPE: _dedupe,
    MAX_PAYLOAD: _payload,
    CONCURRENT_CONNECTIONS: _connections,
}


def _invalid(feature: str, detail: str) -> NegotiationFailed:
    return NegotiationFailed("feature_param_invalid", feature, detail)
