"""How a program of ours ends that cannot do what it was started for: one line, and an exit code."""

import sys

from tidelog.base.errors import ConfigError, TidelogError
from tidelog.base.terminal import printable_lines


def last_words(error: TidelogError | OSError) -> int:
    """Say on standard error what is wrong; returns the exit code: 2 for usage and configuration.

    Raises:
        OSError: this one, if it is not about a file: a mistake of ours, to be seen whole.
    """
    text = str(error)
    if isinstance(error, OSError):
        if error.filename is None:
            raise error
        text = f"{error.filename}: {error.strerror}. Check the path, its owner and its permissions."
    sys.stderr.write(f"tidelog: {printable_lines(text)}\n")
    return 2 if isinstance(error, ConfigError) else 1
