"""A member token counts once (mesh 9.5): the decision that notes its use."""

from msgspec import Struct

from tidelog.log.decision import Accept, Names, Refuse, RowChange, View
from tidelog.store.rows import Becomes


class UseToken(Struct, frozen=True):
    """Use a token; returns whether it was new."""

    token: str
    expires_at: int
    forget_before: int | None = None
    """Forget tokens that expired before this time."""

    def names(self) -> Names:
        """What `decide` reads."""
        return Names(rows=(("mesh_used_token", (self.token,)),))

    def decide(self, view: View) -> Accept | Refuse:
        """See `Item.decide`."""
        key = (self.token,)
        if view.rows("mesh_used_token", key):
            return Refuse(False)
        values = (self.token, self.expires_at)
        rows = [RowChange("mesh_use_token", values, Becomes("mesh_used_token", key, (key,)))]
        if self.forget_before is not None:
            rows.append(RowChange("mesh_forget_tokens", (self.forget_before,)))
        return Accept(True, rows=tuple(rows))
