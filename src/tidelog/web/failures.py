"""How the failure of a surface is logged: where it was, never with what."""

import logging
import traceback

_log = logging.getLogger("tidelog.web")


def log_failure(error: Exception, call: str, path: str, peer: str) -> None:
    """Log a surface's failure, without its text: an error may quote a payload."""
    _log.error(
        "%s failed in a surface",
        call,
        extra={
            "endpoint": path,
            "peer": peer,
            "error": type(error).__name__,
            "stack": "".join(traceback.format_tb(error.__traceback__)),
        },
    )
