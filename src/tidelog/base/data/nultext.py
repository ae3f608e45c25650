"""Text that may hold U+0000, in a store whose text may not.

PostgreSQL refuses U+0000 in text. It is written there as U+E000 0, and U+E000 itself as U+E000 1,
so that two texts are equal in the store exactly when they are equal outside it.
"""

MARK = "\ue000"
"""What begins an escape; a text without it is stored as it is."""


def escape(text: str) -> str:
    """A text as PostgreSQL keeps it."""
    return text.replace(MARK, MARK + "1").replace("\0", MARK + "0")


def unescape(text: str) -> str:
    """A text as it was before `escape`."""
    return text.replace(MARK + "0", "\0").replace(MARK + "1", MARK)
