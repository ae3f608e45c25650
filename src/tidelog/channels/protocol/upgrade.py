"""What a client asks for when it connects: the query of `/app/{key}` (channels 1.1)."""

from urllib.parse import parse_qsl

from msgspec import Struct

from tidelog.base.serving.surface import HttpResponse
from tidelog.channels.protocol import fault
from tidelog.channels.protocol.rollup import parse_window
from tidelog.channels.protocol.tokens import Claims, verify
from tidelog.channels.protocol.wire import V1, V2, AppendMode, ProtocolVersion, RollupWindow
from tidelog.channels.settings import App

_APPEND_MODES: dict[str, AppendMode] = {"": "delta", "delta": "delta", "full": "full"}


class Options(Struct, frozen=True):
    """How a socket wants to be spoken to."""

    version: ProtocolVersion = V1
    append_mode: AppendMode = "delta"
    echo: bool = True
    """Whether it wants its own client events back; V1 sockets never get them."""
    token: str | None = None
    """Not verified yet: a refusal is sent after the upgrade, see `claims_of`."""
    rollup_window: RollupWindow = 0
    """For how long appends may be held to leave together."""

    def __repr__(self) -> str:
        rollup = f", rollup_window={self.rollup_window}" if self.rollup_window else ""
        return f"Options({self.version}, {self.append_mode!r}, echo={self.echo}{rollup})"


def parse_upgrade(query_string: bytes) -> Options | HttpResponse:
    """The options of an upgrade, or the response that refuses it."""
    query = dict(parse_qsl(query_string.decode("latin-1"), keep_blank_values=True))
    protocol = query.get("protocol", "1")
    digits = protocol.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        return _refused("protocol must be an integer")
    if digits != protocol or digits.lstrip("0") != "2":
        return Options()
    if query.get("format", "") not in ("", "json"):
        return _refused("format must be json")
    append_mode = _APPEND_MODES.get(query.get("append_mode", ""))
    if append_mode is None:
        return _refused("append_mode must be delta or full")
    try:
        rollup_window = parse_window(query.get("append_rollup_window", "0"))
    except fault.Fault as refused:
        return refused.response()
    echo = query.get("echo_messages", "true")
    if echo not in ("true", "false"):
        return _refused("echo_messages must be true or false")
    return Options(V2, append_mode, echo == "true", query.get("token") or None, rollup_window)


def claims_of(app: App, options: Options, unix_now: float) -> Claims | None:
    """What the token of an upgrade says; None without one.

    Raises:
        TokenRefused: to be sent as `session.refusal` with `UNAUTHORIZED`.
    """
    return None if options.token is None else verify(app, options.token, unix_now)


def _refused(error: str) -> HttpResponse:
    return fault.invalid_input(error).response()
