"""What an application's server gives its users, so that they may subscribe (channels 2.2, 2.5).

All of it is signed locally with the app's secret: nothing is sent.
"""

import base64
import hmac
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import Struct

from tidelog.channels.protocol.signatures import sign
from tidelog.channels.protocol.tokens import MAX_LIFETIME_SECONDS
from tidelog.client.channels.core import Authorization

TOKEN_S = 3600.0
"""How long a token opens what it says, unless another time is asked for."""

_encode = msgspec.json.Encoder().encode


class UserAuthorization(Struct, frozen=True):
    """What an application's server returns for a socket that signs in."""

    auth: str
    user_data: str
    """Exactly the text that was signed."""

    @property
    def body(self) -> dict[str, str]:
        """What an application's endpoint returns as JSON; client libraries expect it so."""
        return {"auth": self.auth, "user_data": self.user_data}


class Granting:
    """Signs for one app."""

    def __init__(self, app_key: str, app_secret: str) -> None:
        self._key = app_key
        self._secret = app_secret

    def authorization(
        self,
        channel: str,
        socket_id: str,
        *,
        user_id: str | None = None,
        user_info: Any = None,
    ) -> Authorization:
        """What lets a socket subscribe to a private channel, or as a user to a presence channel.

        For the application's own endpoint, which knows who may do so.
        """
        signed, channel_data = f"{socket_id}:{channel}", None
        if user_id is not None:
            member = {"user_id": user_id}
            member |= {} if user_info is None else {"user_info": user_info}
            channel_data = _encode(member).decode()
            signed += f":{channel_data}"
        return Authorization(f"{self._key}:{sign(self._secret, signed)}", channel_data)

    def user_authorization(
        self,
        socket_id: str,
        user_id: str,
        *,
        capabilities: Mapping[str, Sequence[str]] | None = None,
        user_info: Any = None,
    ) -> UserAuthorization:
        """What lets a socket sign in as a user.

        Args:
            socket_id: of the connection.
            user_id: who it is.
            capabilities: operation to patterns of channels; without them a user changes nothing.
            user_info: what others are told of the user.
        """
        user: dict[str, Any] = {"id": user_id}
        user |= {} if capabilities is None else {"capabilities": capabilities}
        user |= {} if user_info is None else {"user_info": user_info}
        user_data = _encode(user).decode()
        signature = sign(self._secret, f"{socket_id}::user::{user_data}")
        return UserAuthorization(f"{self._key}:{signature}", user_data)

    def token(
        self,
        client_id: str,
        capabilities: Mapping[str, Sequence[str]],
        *,
        lifetime_s: float = TOKEN_S,
        token_id: str | None = None,
        is_agent: bool = False,
    ) -> str:
        """A capability token: who somebody is, and what they may do on which channels.

        Args:
            client_id: who it is for.
            capabilities: pattern of channels to operations, such as
                `{"room-*": ["subscribe", "history"]}`.
            lifetime_s: how long it is valid, at most a day.
            token_id: by which it can be revoked; made up if it is not given.
            is_agent: whether it may publish what agents publish, where it may publish (runs 2).
        """
        if not 1 <= lifetime_s <= MAX_LIFETIME_SECONDS:
            raise ValueError(f"lifetime_s must be from 1 to {MAX_LIFETIME_SECONDS} seconds")
        now = int(time.time())
        claims: dict[str, Any] = {
            "iat": now,
            "exp": now + int(lifetime_s),
            "jti": str(uuid4()) if token_id is None else token_id,
            "x-sockudo-client-id": client_id,
            "x-sockudo-capability": capabilities,
        }
        if is_agent:
            claims["x-tidelog-agent"] = True
        head = {"alg": "HS256", "typ": "JWT", "kid": self._key}
        signed = f"{_base64(_encode(head))}.{_base64(_encode(claims))}"
        signature = hmac.digest(self._secret.encode(), signed.encode(), "sha256")
        return f"{signed}.{_base64(signature)}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
