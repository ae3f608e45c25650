"""What a check says: what it examined, and what of it breaks which rule."""

from typing import TYPE_CHECKING, NamedTuple

from tidelog.base.terminal import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FIRST_FINDINGS = 20
"""Findings that are named; of the others only the number is told. Who repairs begins with the
first, and a store in which everything is wrong must not fill the driver's memory."""

FINDING_DDL = "at bigint, rule string, where string, text string"
"""A finding as a row of Spark; `at` orders them."""


class Finding(NamedTuple):
    """Something that breaks a rule."""

    rule: str
    """Name of the rule."""
    where: str
    """Which row it is."""
    text: str
    """What is wrong with it."""

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}: {self.text}"


class Verdict(NamedTuple):
    """The outcome of one check."""

    check: str
    through: int
    """Position of the log up to which was looked."""
    examined: int
    """Rows that were looked at."""
    findings: tuple[Finding, ...] = ()
    """The first ones."""
    total: int = 0
    """How many there are."""
    notes: tuple[str, ...] = ()
    """What could not be examined, and why that is no finding."""
    uncompared: tuple[str, ...] = ()
    """What was to be compared and could not be at all, and what to do about it."""

    @property
    def is_sound(self) -> bool:
        """Whether all that was asked for was looked at, and nothing was found."""
        return self.total == 0 and not self.uncompared

    @property
    def told(self) -> tuple[str, ...]:
        """What is to be said before anything else: in words, what is wrong."""
        return (
            *(f"not compared: {what}" for what in self.uncompared),
            *map(str, self.findings),
        )

    def __str__(self) -> str:
        judged = "not compared" if self.uncompared else "sound"
        judged = counted(self.total, "finding") if self.total else judged
        head = f"{self.check}: {judged}; {self.examined} rows examined up to {self.through}"
        named = [f"  {text}" for text in self.told]
        if self.total > len(self.findings):
            named.append(f"  ... and {self.total - len(self.findings)} more")
        return "\n".join([head, *(f"  ({note})" for note in self.notes), *named])


def first_of(findings: "DataFrame") -> tuple[tuple[Finding, ...], int]:
    """The first findings of a frame with the columns of `FINDING_DDL`, and how many there are."""
    rows = findings.orderBy("at", "rule", "where").limit(FIRST_FINDINGS).collect()
    named = tuple(Finding(row["rule"], row["where"], row["text"]) for row in rows)
    return named, len(named) if len(named) < FIRST_FINDINGS else findings.count()
