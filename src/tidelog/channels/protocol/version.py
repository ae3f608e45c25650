"""One version of a message: as the log keeps it, as it is folded, and as clients see it.

The log holds operations: a create, an update or a delete with the data it gave, an append with its
fragment only, and what was kept not again. Application JSON stays as text (`msgspec.Raw`) from
request to frame.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from tidelog.channels.protocol.runs import OUTPUT
from tidelog.channels.protocol.verbs import APPEND, CREATE, DELETE, KIND_PREFIX

SURFACE = "channels"

SUMMARY = "message.summary"
EVENT = "event"
"""Kind of an entry that history keeps and nobody can change: the channel has no versions."""

_encode = msgspec.json.Encoder().encode
_decode_extras = msgspec.json.Decoder(dict[str, Raw]).decode
_RUNTIME_PREFIX = "sockudo_"


class Body(Struct, omit_defaults=True, kw_only=True):
    """The `body` of an entry: what the columns of the log do not say."""

    message_id: str
    """New for every version, so that no client mistakes one for another (channels D2)."""
    history_serial: int
    name: str | None = None
    data: Raw | UnsetType = UNSET
    """All of the data after this version; of an append only what it added. Unset: there is none, or
    it is kept, see `data_of`."""
    data_bytes: int = 0
    """Size of all the data after this version."""
    extras: Raw | UnsetType = UNSET
    """After this version; without the runtime headers: a projection has those (channels D11)."""
    tags: Raw | UnsetType = UNSET
    created_as: str | None = None
    """What the message was called when it was created, on every version since another name."""
    creator: str | None = None
    """Client that created the message, on every version of it; ownership never changes."""
    client_id: str | None = None
    """Whom this version is attributed to."""
    description: str | None = None
    metadata: Raw | UnsetType = UNSET
    kept: tuple[str, ...] = ()
    """Fields that an update or delete left as they were."""
    data_of: int = 0
    """Set if this version keeps data: the version that last gave all of it, or one before that.
    Appends in between added to it. Before schema 12 a version repeated what it kept instead."""
    cleared: tuple[str, ...] = ()
    """Fields that an update or delete took away."""
    opens: int = 0
    """1 if the message became an open stream by this version, -1 if it ceased to be one."""
    socket_id: str | None = None
    """Socket that does not get this: its own publish."""
    is_client_event: bool = False
    op_id: str | None = None


class Version(Body, omit_defaults=True, kw_only=True):
    """A version with its positions; `data` may be the whole text, see `fold`."""

    kind: str = ""
    committed_id: int = 0
    committed_at: int = 0
    delivery_serial: int = 0
    message_serial: str = ""
    versions: int = 1
    """Versions of the message up to this one; 1 unless folded."""
    appends: int = 0
    """Appends up to this one; 0 unless folded."""
    published_at: int = 0
    """When the message was created; 0 unless folded."""
    rolled: tuple[int, ...] = ()
    """Characters that each of several appends added, if it stands for them (`rollup`)."""

    @property
    def verb(self) -> str:
        """The bare word: `create`, `append` ..."""
        return self.kind.removeprefix(KIND_PREFIX)

    @property
    def is_versioned(self) -> bool:
        """Whether this is a message that can change, rather than an event of a plain history."""
        return self.kind != EVENT

    @property
    def keeps_data(self) -> bool:
        """Whether its data is that of an earlier version and the appends since."""
        return self.data_of != 0 and self.kind != APPEND

    @property
    def says_all(self) -> bool:
        """Whether nothing before it is needed to know its data."""
        return self.kind != APPEND and not self.data_of

    @property
    def is_open(self) -> bool:
        """Whether it is a stream that is being written."""
        return self.transport_status == "streaming"

    @property
    def is_terminal(self) -> bool:
        """Whether its stream has ended, so that nothing can be appended."""
        return self.transport_status in {"complete", "cancelled"}

    @property
    def transport_status(self) -> str | None:
        """`extras.ai.transport.status`."""
        if isinstance(self.extras, UnsetType):
            return None
        text = bytes(self.extras)
        if b'"status"' not in text and b"\\u" not in text:
            return None  # the usual case, decided without reading all of it
        extras: Any = msgspec.json.decode(self.extras)
        try:
            status = extras["ai"]["transport"]["status"]
        except (KeyError, TypeError):
            return None
        return status if isinstance(status, str) else None

    @property
    def is_output(self) -> bool:
        """Whether the message was created as what an agent says in a run."""
        return (self.name if self.created_as is None else self.created_as) == OUTPUT

    @property
    def is_text(self) -> bool:
        """Whether there is data and it is a string, so that one can append to it."""
        return not isinstance(self.data, UnsetType) and bytes(self.data)[:1] == b'"'


encode_body = _encode
"""Also of a `Version` that has no positions yet: what is as it is by default is left out."""
decode_version = msgspec.json.Decoder(Version).decode
encode_version = _encode


def version_serial(log_tag: str, committed_at: int, committed_id: int) -> str:
    """Unique, and as a string always greater than the serial of whatever was committed before."""
    return f"{committed_at:020d}:{log_tag}:{committed_id:020d}"


def position_of(serial: str, log_tag: str) -> int | None:
    """The `committed_id` that a serial of this log names; None for any other text."""
    digits = serial[:20] + serial[-20:]
    if not (digits.isascii() and digits.isdigit() and serial[20:-20] == f":{log_tag}:"):
        return None
    position = int(serial[-20:])
    return position if position < 2**63 else None  # no store counts further


def number_of(serial: str) -> int:
    """The `committed_id` that a serial of any log ends with; -1 if it is not a serial."""
    number = serial[-20:]
    return int(number) if number.isascii() and number.isdigit() else -1


def stored_version(
    kind: str, committed_id: int, committed_at: int, serial: int, entity: str, body: bytes
) -> Version:
    """The version with these columns of the log."""
    return placed(decode_version(body), kind, committed_id, committed_at, serial, entity)


def placed(
    version: Version, kind: str, committed_id: int, committed_at: int, serial: int, entity: str
) -> Version:
    """A version that has only a body, with the positions that columns of the log say."""
    version.kind = kind
    version.committed_id = committed_id
    version.committed_at = committed_at
    version.delivery_serial = serial
    version.message_serial = entity
    return version


def join_text(texts: Iterable[bytes]) -> bytes:
    """One JSON string of several; what stands between the quotes stays as it is."""
    return b'"' + b"".join(text[1:-1] for text in texts) + b'"'


def fold(base: Version | None, later: Iterable[Version]) -> Version | None:
    """The message after `later`, which follows `base`; `base` is folded or None.

    The one definition of what a message looks like: appends are joined to what is there, and
    anything else keeps that or replaces it. Costs the length of what is folded, once.
    """
    latest = base
    texts: list[bytes] = []
    data_of = 0
    versions = appends = published_at = 0
    if base is not None:
        versions, appends, published_at = base.versions, base.appends, base.published_at
        data_of = origin_of(base)
        if not isinstance(base.data, UnsetType):
            texts = [bytes(base.data)]
    for version in later:
        latest = version
        versions += 1
        if version.kind == APPEND:
            appends += 1
        elif version.says_all:
            texts = []  # whatever was there is replaced, or taken away
        # An append does not say which data it adds to; what came before it does.
        data_of = origin_of(version) or data_of
        published_at = published_at or version.committed_at
        if not isinstance(version.data, UnsetType):
            texts.append(bytes(version.data))
    if latest is None or latest is base:
        return base
    data: Raw | UnsetType = UNSET
    if texts:
        data = Raw(texts[0] if len(texts) == 1 else join_text(texts))
    return msgspec.structs.replace(
        latest,
        data=data,
        # A version that gave all of its data refers to no other, so that `says_all` stays true.
        data_of=0 if data_of == latest.committed_id else data_of,
        versions=versions,
        appends=appends,
        published_at=published_at,
    )


def origin_of(version: Version) -> int:
    """The version that last gave all of the data; 0 if an append alone cannot tell."""
    return version.committed_id if version.says_all else version.data_of


# What clients see.


class Projector:
    """Makes frames and items of versions of one log."""

    def __init__(self, log_tag: str) -> None:
        self._tag = log_tag

    def serial(self, version: Version) -> str:
        """The `version_serial`."""
        return version_serial(self._tag, version.committed_at, version.committed_id)

    def _extras(self, version: Version) -> dict[str, Any]:
        """The publisher's extras with the runtime headers of this version (channels D11)."""
        extras: dict[str, Any] = {}
        headers: dict[str, Any] = {}
        if not isinstance(version.extras, UnsetType):
            extras = dict(_decode_extras(version.extras))
            if "headers" in extras:
                given = msgspec.json.decode(extras["headers"], type=dict[str, Raw])
                headers = {k: v for k, v in given.items() if not k.startswith(_RUNTIME_PREFIX)}
        if version.is_versioned:
            headers["sockudo_action"] = version.kind
            headers["sockudo_message_serial"] = version.message_serial
            headers["sockudo_version_serial"] = self.serial(version)
            headers["sockudo_version_timestamp_ms"] = version.committed_at
            headers["sockudo_history_serial"] = version.history_serial
        if headers:
            extras["headers"] = headers
        return extras

    def frame(
        self,
        version: Version,
        channel: str,
        stream_id: str,
        *,
        data: bytes | None = None,
        is_projection: bool = False,
    ) -> bytes:
        """The V2 frame of a version, as JSON.

        Args:
            version: What happened, or what the message now looks like.
            channel: Its channel.
            stream_id: The channel's continuity token.
            data: Instead of the version's own: the whole text, for an append in full mode.
            is_projection: Of stored state: a create is a `sockudo:message.create` (channels D3).
        """
        is_live_create = version.kind == EVENT or (version.kind == CREATE and not is_projection)
        frame: dict[str, Any] = {
            "event": version.name or "" if is_live_create else f"sockudo:{version.kind}",
            "channel": channel,
        }
        if not is_live_create and version.name is not None:
            frame["name"] = version.name
        if data is not None:
            frame["data"] = Raw(data)
        elif not isinstance(version.data, UnsetType):
            frame["data"] = version.data
        if version.client_id is not None:
            frame["user_id"] = version.client_id
        if not isinstance(version.tags, UnsetType):
            frame["tags"] = version.tags
        frame["message_id"] = version.message_id
        frame["stream_id"] = stream_id
        frame["serial"] = version.delivery_serial
        if version.rolled:
            frame["rolled"] = version.rolled
        extras = self._extras(version)
        if extras:
            frame["extras"] = extras
        return _encode(frame)

    def live_frame(self, version: Version, channel: str) -> bytes:
        """The V2 frame of an event that nothing is kept of, as JSON: no position, so no serial."""
        frame: dict[str, Any] = {
            "event": version.name or "",
            "channel": channel,
            "data": version.data,
            "message_id": version.message_id,
        }
        if version.client_id is not None:
            frame["user_id"] = version.client_id
        if not isinstance(version.tags, UnsetType):
            frame["tags"] = version.tags
        if not isinstance(version.extras, UnsetType):
            frame["extras"] = version.extras
        return _encode(frame)

    def plain_frame(self, version: Version, channel: str, *, with_user: bool) -> bytes:
        """What a V1 subscriber gets of a create, as JSON."""
        name = version.name or ""
        if name.startswith("sockudo:"):
            name = "pusher:" + name.removeprefix("sockudo:")
        frame: dict[str, Any] = {"event": name, "channel": channel, "data": version.data}
        if with_user and version.client_id is not None:
            frame["user_id"] = version.client_id
        return _encode(frame)

    def item(self, version: Version, channel: str) -> dict[str, Any]:
        """A version as the HTTP API and history show it (channels 5.8)."""
        item: dict[str, Any] = {"event": f"sockudo:{version.kind}", "channel": channel}
        if not isinstance(version.data, UnsetType):
            item["data"] = version.data
        if version.name is not None:
            item["name"] = version.name
        item["serial"] = version.delivery_serial
        item["extras"] = self._extras(version)
        item["action"] = version.verb
        item["message_serial"] = version.message_serial
        item["history_serial"] = version.history_serial
        item["delivery_serial"] = version.delivery_serial
        described: dict[str, Any] = {
            "serial": self.serial(version),
            "timestamp_ms": version.committed_at,
        }
        if version.client_id is not None:
            described["client_id"] = version.client_id
        if version.description is not None:
            described["description"] = version.description
        if not isinstance(version.metadata, UnsetType):
            described["metadata"] = version.metadata
        item["version"] = described
        return item

    def summary(self, latest: Version) -> bytes:
        """The reduced projection of a message (channels 5.1), as JSON."""
        described: dict[str, Any] = {
            "action": latest.kind,
            "version_serial": self.serial(latest),
            "timestamp_ms": latest.committed_at,
        }
        if latest.client_id is not None:
            described["client_id"] = latest.client_id
        return _encode(
            {
                "action": SUMMARY,
                "serial": latest.message_serial,
                "latest": described,
                "versions": latest.versions,
                "appends": latest.appends,
                "data_bytes": latest.data_bytes,
                "deleted": latest.kind == DELETE,
            }
        )
