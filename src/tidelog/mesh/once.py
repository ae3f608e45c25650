"""Member tokens count once (mesh 17): a `jti` is remembered until its token would have expired."""

from tidelog.base.errors import QueueFull
from tidelog.mesh.identity import MemberClaims
from tidelog.mesh.rules import Mesh
from tidelog.store.engine import Store

MAX_REMEMBERED = 200_000
"""Tokens remembered in memory, some two hundred bytes each. They last five minutes at most, so this
is more than six hundred requests a second; beyond it requests are sent away, not let through."""

FORGET_EVERY = 1000
"""Uses between two looks for tokens that have expired."""


class UsedTokens:
    """The tokens that were used; on a shared store, by any node.

    An embedded store's process forgets them when it ends: within five minutes a token could then be
    used a second time, by whoever could read the first request.
    """

    def __init__(self, store: Store, max_remembered: int = MAX_REMEMBERED) -> None:
        self._store = store
        self._max_remembered = max_remembered
        self._used: dict[str, int] = {}
        self._uses = 0

    async def use(self, mesh: Mesh, claims: MemberClaims, unix_now: float) -> bool:
        """Use a member's token; False if it was used before.

        Raises:
            QueueFull: more tokens are valid at once than are remembered.
            StoreError: nobody can say.
        """
        token = f"{mesh.id}/{claims.public_hex}/{claims.jti}"
        self._uses += 1
        is_time_to_forget = self._uses % FORGET_EVERY == 0
        if self._store.is_shared:
            if is_time_to_forget:
                await self._store.rows("mesh_forget_tokens", (int(unix_now),))
            return bool(await self._store.rows("mesh_use_tokens", (token, claims.expires_at)))
        if token in self._used:
            return False
        if is_time_to_forget or len(self._used) >= self._max_remembered:
            self._used = {t: at for t, at in self._used.items() if at > unix_now}
        if len(self._used) >= self._max_remembered:
            raise QueueFull("more member tokens are in use than are remembered; retry later")
        self._used[token] = claims.expires_at
        return True
