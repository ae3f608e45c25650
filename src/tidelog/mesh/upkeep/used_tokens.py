"""Member tokens count once (mesh 9.5): a `jti` is remembered for as long as it could be used."""

import asyncio

from tidelog.base.clock import ServerClock
from tidelog.link.ends import failed
from tidelog.log.committer import Committer
from tidelog.mesh import messages
from tidelog.mesh.decide.used_tokens import UseToken
from tidelog.mesh.messages import TokenUsed
from tidelog.mesh.upkeep.questions import Question, Tell
from tidelog.store.engine import Store

FORGET_EVERY = 1000
"""Uses between two looks for tokens that have expired."""

LATE_SECONDS = 30
"""A token is looked at with the head of its request and used with the body, which may take any
time. So long after it has expired it can still be used."""

KEPT_SECONDS = 2 * LATE_SECONDS
"""After a token has expired its use is forgotten. More than the other, because the nodes of a log
have clocks of their own."""


class UsedTokens:
    """The tokens that were used, by any node and before any restart.

    A use is on the disk before the request it is for has an effect: a token that was overheard is
    worth nothing, whatever crashes in between.
    """

    def __init__(self, store: Store, committer: Committer, clock: ServerClock) -> None:
        self._store = store
        self._committer = committer
        self._clock = clock
        self._uses = 0
        self._noting: set[asyncio.Task[None]] = set()

    def use(self, asked: messages.UseToken, tell: Tell) -> None:
        """Use a token.

        Raises:
            QueueFull: see `Committer.submit`.
            ShuttingDown: see `Committer.submit`.
        """
        now = self._clock.wall_ms() // 1000
        if asked.expires_at < now - LATE_SECONDS:
            tell(TokenUsed(is_new=False))  # nobody knows any more
            return
        forget_before = None if self._uses % FORGET_EVERY else now - KEPT_SECONDS
        self._uses += 1
        if self._store.is_shared:  # not through the log, which all nodes write one after another
            task = asyncio.create_task(self._note(asked, forget_before, tell))
            self._noting.add(task)
            task.add_done_callback(self._noting.discard)
        else:
            item = UseToken(asked.token, asked.expires_at, forget_before)
            self._committer.submit(Question(item, tell, TokenUsed, 256))

    async def _note(self, asked: messages.UseToken, forget_before: int | None, tell: Tell) -> None:
        try:
            if forget_before is not None:
                await self._store.rows("mesh_forget_tokens", (forget_before,))
            noted = await self._store.rows("mesh_use_tokens", (asked.token, asked.expires_at))
            tell(TokenUsed(bool(noted)))
        except Exception as error:  # noqa: BLE001 - a front waits for the answer
            tell(failed(error))
