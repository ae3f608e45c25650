"""What a lake can raise."""

from tidelog.base.errors import TidelogError


class LakeError(TidelogError):
    """Root of what a lake can raise."""


class LakeLocked(LakeError):  # noqa: N818 - the failure is the noun
    """Another process writes to the lake."""


class LakeDamaged(LakeError):  # noqa: N818 - the failure is the noun
    """What is where a table should be is none that can be read."""


class SchemaDrift(LakeError):  # noqa: N818 - the failure is the noun
    """A table, or what was to be written to it, does not have the columns it should have."""
