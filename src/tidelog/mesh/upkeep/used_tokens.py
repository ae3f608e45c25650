"""Member tokens count once (mesh 9.5): a `jti` is remembered until its token would have expired."""

from tidelog.log.committer import Committer
from tidelog.log.request import submit_and_wait, without_failure
from tidelog.mesh.decide.used_tokens import UseToken
from tidelog.mesh.protocol.identity import MemberClaims
from tidelog.mesh.protocol.model import Mesh
from tidelog.store.engine import Store

FORGET_EVERY = 1000
"""Uses between two looks for tokens that have expired."""


class UsedTokens:
    """The tokens that were used, by any node and before any restart.

    A use is on the disk before the request it is for has an effect: a token that was overheard is
    worth nothing, whatever crashes in between.
    """

    def __init__(self, store: Store, committer: Committer) -> None:
        self._store = store
        self._committer = committer
        self._uses = 0

    async def use(self, mesh: Mesh, claims: MemberClaims, unix_now: float) -> bool:
        """Use a member's token; False if it was used before.

        Raises:
            QueueFull: too much waits for the store.
            StoreError: nobody can say.
        """
        token = f"{mesh.id}/{claims.public_hex}/{claims.jti}"
        forget_before = None if self._uses % FORGET_EVERY else int(unix_now)
        self._uses += 1
        if self._store.is_shared:  # not through the log, which all nodes write one after another
            if forget_before is not None:
                await self._store.rows("mesh_forget_tokens", (forget_before,))
            return bool(await self._store.rows("mesh_use_tokens", (token, claims.expires_at)))
        item = UseToken(token, claims.expires_at, forget_before)
        [is_new] = without_failure(
            await submit_and_wait(self._committer, item.names(), 256, (item,))
        )
        return bool(is_new)
