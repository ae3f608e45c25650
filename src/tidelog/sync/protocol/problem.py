"""Why a message is refused."""

from typing import Any


class Problem(Exception):  # noqa: N818 - the failure is the noun
    """Answered with `error`; whether that closes the connection follows from the code."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.details = details
        self.close_code: int | None = None
        """Closes the connection whatever the code; None leaves that to the code."""
        self.reply_to: str | None = None
        """Id of the refused message, in a dialect whose replies carry it."""
