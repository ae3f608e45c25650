"""Messages to endpoints over HTTP (mesh 7.4): what the owner has leased is signed and posted."""

import asyncio
import hashlib
import hmac
import logging

import msgspec

from tidelog import __version__
from tidelog.base.clock import Clock
from tidelog.base.errors import ShuttingDown, TidelogError
from tidelog.link.ends import FrontEnd
from tidelog.mesh.front.webhook_client import PostFailed, WebhookClient
from tidelog.mesh.messages import Attempted, Noted, Post, PostsEnded, Target
from tidelog.mesh.protocol.envelopes import Stored, received_envelope
from tidelog.mesh.protocol.model import stream_name
from tidelog.mesh.settings import MeshSettings
from tidelog.store.engine import Store

_encode = msgspec.json.Encoder().encode
_log = logging.getLogger(__name__)


class Posting:
    """Posts what it is told to, to several endpoints at once and to each in order."""

    def __init__(self, link: FrontEnd, store: Store, settings: MeshSettings, clock: Clock) -> None:
        self._link = link
        self._store = store
        self._clock = clock
        self._client = WebhookClient(
            timeout_s=settings.webhook_timeout_ms / 1000,
            may_be_private=settings.webhook_allow_private,
        )
        self._under_way: set[asyncio.Task[None]] = set()

    def post(self, told: Post) -> None:
        """Begin; the owner says how many there may be at once."""
        task = asyncio.create_task(self._post(told), name="tidelog-mesh-post")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def stop(self) -> None:
        """Give up the attempts that are under way; their leases end by themselves."""
        for task in self._under_way:
            task.cancel()
        self._client.close()

    async def _post(self, told: Post) -> None:
        try:
            for broker_message_id, history_id in told.leased.messages:
                if not await self._attempt(told, broker_message_id, history_id):
                    return
        except ShuttingDown:
            return
        except TidelogError as error:
            _log.warning("endpoint %s was put off: %s", told.endpoint_id, error)
        except Exception:  # noqa: BLE001 - a mistake of ours; the lease ends and the row comes again
            _log.exception("endpoint %s failed", told.endpoint_id)
        finally:
            self._link.tell(PostsEnded(told.leased.claim_id))

    async def _attempt(self, told: Post, broker_message_id: str, history_id: int) -> bool:
        """Post one message; False if the endpoint wants no more."""
        target, endpoint_id = told.target, told.endpoint_id
        rows = await self._store.rows("mesh_entry", (stream_name(target.mesh_id), history_id))
        if not rows:
            return True  # retention has taken it, and has buried the row
        status, error = None, ""
        body = _body(Stored._make(rows[0]), target)
        try:
            headers = _headers(target, endpoint_id, broker_message_id, body, self._clock.now_ms())
            status = await self._client.post(target.url, headers, body)
        except PostFailed as failed:
            error = failed.code
        attempted = Attempted(endpoint_id, broker_message_id, told.leased.claim_id, status, error)
        return (await self._link.reply(attempted, Noted)).goes_on


def _body(stored: Stored, target: Target) -> bytes:
    """The envelope of mesh 7.2; an endpoint is not a member, so nothing mentions it."""
    fields = received_envelope(stored, target.slug, "")
    del fields["mention"]
    return _encode(fields)


def _headers(
    target: Target, endpoint_id: str, message: str, body: bytes, now_ms: int
) -> dict[str, str]:
    timestamp = str(now_ms // 1000)
    return {
        "Content-Type": "application/json",
        "User-Agent": f"tidelog/{__version__}",
        "Idempotency-Key": f"{message}:{endpoint_id}",
        "X-Tidelog-Timestamp": timestamp,
        "X-Tidelog-Signature-2": _signature(target, timestamp.encode() + b"." + body),
        "X-Tidelog-Signature": _signature(target, body),
    }


def _signature(target: Target, signed: bytes) -> str:
    return f"sha256={hmac.new(target.secret.encode(), signed, hashlib.sha256).hexdigest()}"
