"""Storing revocations of tokens, and forgetting them: pure decisions."""

from collections.abc import Sequence

from tidelog.log.decision import Accept, RowChange, View


class Revoke:
    """Store revocations; the answer is when that was."""

    def __init__(self, named: Sequence[tuple[str, str, str]]) -> None:
        self._named = named
        """App id, kind and value of each."""

    def decide(self, view: View) -> Accept:
        """See `Item.decide`."""
        at = view.now_ms
        rows = tuple(RowChange("channels_revoke", (*each, at)) for each in self._named)
        return Accept(at, rows=rows)


class ForgetRevocations:
    """Remove revocations that no token can need any more; one that was renewed stays."""

    def __init__(self, named: Sequence[tuple[str, str, str]], before: int) -> None:
        self._named = named
        self._before = before

    def decide(self, view: View) -> Accept:
        """See `Item.decide`."""
        del view
        return Accept(
            len(self._named),
            rows=tuple(
                RowChange("channels_forget_revocation", (*each, self._before))
                for each in self._named
            ),
        )
