"""What `log verify`, `backup` and `restore` look at, and how they tell what they found."""

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from tidelog.cli.shared.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidelog.log.derived import Damage, Verifier
    from tidelog.log.verify import Progress
    from tidelog.store.engine import Store

LISTED = 20
"""Damaged rows that are named; how many there are is always told."""


def verifiers() -> "Mapping[str, Verifier]":
    """What each surface brings to verify its rows."""
    from tidelog.channels.upkeep.verifier import verify_channels
    from tidelog.mesh.upkeep.verifier import verify_mesh
    from tidelog.sync.upkeep.verifier import verify_sync

    return {"channels": verify_channels, "sync": verify_sync, "mesh": verify_mesh}


class Verdict(Struct):
    """What verification found."""

    log: "Progress"
    """Of the digest chain; if that is damaged, the rows were not looked at."""
    tables: dict[str, int]
    """Rows beside the log, by table."""
    unsealed: int = 0
    """Of these, how many an earlier version wrote."""
    damaged: int = 0
    damage: "list[Damage]" = []
    """The first of them."""

    @property
    def is_sound(self) -> bool:
        """Whether nothing was found."""
        return self.log.finding is None and not self.damaged

    @property
    def rows(self) -> int:
        """How many rows beside the log there are."""
        return sum(self.tables.values())

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        finding = self.log.finding
        return {
            "sound": self.is_sound,
            "verified": self.log.verified,
            "head": self.log.head,
            "pruned": self.log.pruned,
            "first_bad": finding.committed_id if finding else None,
            "problem": finding.problem if finding else None,
            "rows": self.rows,
            "tables": self.tables,
            "unsealed": self.unsealed,
            "damaged": self.damaged,
            "damage": [damage._asdict() for damage in self.damage],
        }

    def damage_text(self) -> str:
        """The damaged rows, one in a line."""
        lines = [f"  {each.table} {each.key}: {each.problem}" for each in self.damage]
        if self.damaged > len(lines):
            lines.append(f"  and {self.damaged - len(lines)} more")
        return "\n".join(lines)


async def verify_store(store: "Store") -> Verdict:
    """Walk the digest chain, then look at every row beside the log, with a bar for each."""
    from tidelog.log.derived import verify_rows
    from tidelog.log.verify import verify

    progress = None
    with progress_bar("verifying") as show:
        async for progress in verify(store):
            show(progress.verified, progress.head)
    assert progress is not None  # noqa: S101 - verify always yields
    verdict = Verdict(progress, {})
    if progress.finding:
        return verdict
    seen: dict[tuple[str, str], int] = {}
    with progress_bar("verifying rows") as show:
        async for name, looked in verify_rows(store, verifiers()):
            rows = seen[name, looked.table] = seen.get((name, looked.table), 0) + looked.rows
            # Two may look at a table, at its seals and at what the log says: its rows count once.
            if rows > verdict.tables.get(looked.table, 0):
                verdict.tables[looked.table] = rows
            verdict.unsealed += looked.unsealed
            verdict.damaged += len(looked.damage)
            verdict.damage += looked.damage[: LISTED - len(verdict.damage)]
            show(verdict.rows, None)
    return verdict


def unsealed_text(verdict: Verdict) -> str:
    """What to add where rows are said to be verified."""
    if not verdict.unsealed:
        return ""
    return f", {verdict.unsealed} of them only in part: an earlier version wrote them"
