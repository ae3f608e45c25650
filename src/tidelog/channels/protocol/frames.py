"""The frames that the server sends, of both protocols.

A frame is JSON text; whoever sends it wraps it with `base.net.frame.text_frame`. Application
JSON (`user_info`, data of client events, history pages) goes in as the bytes it came as. V2 frames
carry a `message_id` each, made here unless given; a frame that is sent to many sockets is built
once. Ping and pong carry none.
"""

from collections.abc import Mapping, Sequence

from tidelog.channels.protocol.fault import Fault
from tidelog.channels.protocol.message_ids import MessageIds
from tidelog.channels.protocol.wire import (
    CLIENT_EVENT_REJECTED,
    V2,
    Failed,
    ProtocolVersion,
    Recovered,
    as_text,
    encode,
    system_event,
)


class Frames:
    """Builds frames; the ids of V2 frames come from `ids`."""

    def __init__(self, ids: MessageIds) -> None:
        self._ids = ids

    def event(
        self,
        version: ProtocolVersion,
        event: str,
        *,
        channel: str | None = None,
        data: bytes | None = None,
        user_id: str | None = None,
        stream_id: str | None = None,
        serial: int | None = None,
        message_id: str | None = None,
    ) -> bytes:
        """A frame under a whole event name; what is None is left out.

        `data` is JSON text. V1 gets event, channel, data and `user_id` only.
        """
        parts = [b'{"event":', encode(event)]
        if channel is not None:
            parts += b',"channel":', encode(channel)
        if data is not None:
            parts += b',"data":', data
        if user_id is not None:
            parts += b',"user_id":', encode(user_id)
        if version == V2:
            if stream_id is not None:
                parts += b',"stream_id":', encode(stream_id)
            if serial is not None:
                parts.append(b',"serial":%d' % serial)
            parts += b',"message_id":', encode(message_id or self._ids.system())
        parts.append(b"}")
        return b"".join(parts)

    # Connection.

    def connection_established(
        self, version: ProtocolVersion, socket_id: str, activity_timeout: int
    ) -> bytes:
        """The first frame."""
        data = encode({"socket_id": socket_id, "activity_timeout": activity_timeout})
        return self.event(
            version, system_event(version, "connection_established"), data=as_text(data)
        )

    def error(self, version: ProtocolVersion, code: int, message: str) -> bytes:
        """An error; closing, where its code demands it, is up to the caller."""
        data = encode({"code": code, "message": message})
        return self.event(version, system_event(version, "error"), data=data)

    def publish_refused(self, channel: str | None, refused: Fault, message_id: str | None) -> bytes:
        """An error that says which event of a socket was refused (V2).

        What the event was called by its sender stands inside: the frame has an id of its own, since
        clients drop a frame whose id they have seen.
        """
        data: dict[str, object] = {
            "code": CLIENT_EVENT_REJECTED,
            "message": refused.error,
            "reason": refused.code,
        }
        given = {"channel": channel, "ai_code": refused.ai_code, "message_id": message_id}
        data |= {name: value for name, value in given.items() if value is not None}
        return self.event(V2, "sockudo:error", channel=channel, data=encode(data))

    def signin_success(self, version: ProtocolVersion, user_data: str) -> bytes:
        """The socket is signed in; `user_data` exactly as it was received."""
        data = encode({"user_data": user_data})
        return self.event(version, system_event(version, "signin_success"), data=data)

    def auth_success(self, client_id: str, jti: str, expires_at: int) -> bytes:
        """A new token was taken (V2)."""
        data = encode({"client_id": client_id, "jti": jti, "exp": expires_at})
        return self.event(V2, "sockudo:auth_success", data=data)

    def token_expired(self, code: int, reason: str) -> bytes:
        """The token of this socket ends (V2): `tokens.EXPIRED` or `tokens.REVOKED`."""
        data = encode({"code": code, "reason": reason})
        return self.event(V2, "sockudo:token_expired", data=data)

    # Subscriptions.

    def subscription_succeeded(
        self,
        version: ProtocolVersion,
        channel: str,
        *,
        members: Mapping[str, bytes | None] | None = None,
        attach_serial: int | None = None,
        stream_id: str | None = None,
        serial: int | None = None,
    ) -> bytes:
        """A subscribe succeeded.

        Args:
            version: of the subscriber; V1 is told nothing but the members.
            channel: what was subscribed to.
            members: user id to `user_info` of a presence channel, in the order they joined; None on
                every other channel.
            attach_serial: newest history serial, 0 if there is none; None without a history.
            stream_id: of the channel; None without recovery.
            serial: newest delivery serial, 0 if there is none; None without recovery.
        """
        parts = []
        if members is not None:
            parts.append(b'"presence":' + presence(members))
        if attach_serial is not None and version == V2:
            parts.append(b'"attach_serial":%d' % attach_serial)
        return self.event(
            version,
            system_event(version, "subscription_succeeded", is_internal=True),
            channel=channel,
            data=as_text(b"{%s}" % b",".join(parts)),
            stream_id=stream_id,
            serial=serial,
        )

    def subscription_error(
        self,
        version: ProtocolVersion,
        channel: str,
        message: str,
        *,
        kind: str = "AuthError",
        status: int = 401,
    ) -> bytes:
        """A subscribe failed; sent after the error frame."""
        data = encode({"type": kind, "error": message, "status": status})
        event = system_event(version, "subscription_error")
        return self.event(version, event, channel=channel, data=data)

    def cache_miss(self, version: ProtocolVersion, channel: str) -> bytes:
        """A cache channel holds no event."""
        event = system_event(version, "cache_miss")
        return self.event(version, event, channel=channel, data=b'"{}"')

    def member_added(
        self, version: ProtocolVersion, channel: str, user_id: str, user_info: bytes | None
    ) -> bytes:
        """A user's first socket joined."""
        return self._member_frame(version, "member_added", channel, _member(user_id, user_info))

    def member_removed(self, version: ProtocolVersion, channel: str, user_id: str) -> bytes:
        """A user's last socket left."""
        return self._member_frame(version, "member_removed", channel, encode({"user_id": user_id}))

    def presence_update(self, channel: str, user_id: str, user_info: bytes) -> bytes:
        """A member changed its info (V2)."""
        return self._member_frame(V2, "presence_update", channel, _member(user_id, user_info))

    def _member_frame(
        self, version: ProtocolVersion, name: str, channel: str, data: bytes
    ) -> bytes:
        event = system_event(version, name, is_internal=True)
        return self.event(version, event, channel=channel, data=as_text(data))

    # History, rewind and recovery (V2).

    def channel_history(self, channel: str, page: bytes) -> bytes:
        """The page that `channel_history` asked for; `page` is a JSON object."""
        return self.event(V2, "sockudo:channel_history", channel=channel, data=page)

    def rewind_complete(
        self,
        channel: str,
        *,
        historical_count: int,
        live_count: int,
        complete: bool,
        truncated_by_retention: bool,
        truncated_by_limit: bool,
    ) -> bytes:
        """Everything a rewind asked for was sent."""
        data = encode(
            {
                "historical_count": historical_count,
                "live_count": live_count,
                "complete": complete,
                "truncated_by_retention": truncated_by_retention,
                "truncated_by_limit": truncated_by_limit,
            }
        )
        return self.event(V2, "sockudo:rewind_complete", channel=channel, data=data)

    def resume_failed(self, failed: Failed) -> bytes:
        """One channel could not be resumed; its name stands outside and inside (channels D5)."""
        data = as_text(encode(failed))
        return self.event(V2, "sockudo:resume_failed", channel=failed.channel, data=data)

    def resume_success(self, recovered: Sequence[Recovered], failed: Sequence[Failed]) -> bytes:
        """The end of a resume, whatever became of its channels."""
        data = encode({"recovered": recovered, "failed": failed})
        return self.event(V2, "sockudo:resume_success", data=as_text(data))


def presence(members: Mapping[str, bytes | None]) -> bytes:
    """The snapshot of a presence channel: `{"ids":[...],"hash":{...},"count":n}`."""
    pairs = [b"%s:%s" % (encode(user_id), info or b"null") for user_id, info in members.items()]
    return b'{"ids":%s,"hash":{%s},"count":%d}' % (
        encode(list(members)),
        b",".join(pairs),
        len(members),
    )


def _member(user_id: str, user_info: bytes | None) -> bytes:
    return b'{"user_id":%s,"user_info":%s}' % (encode(user_id), user_info or b"null")
