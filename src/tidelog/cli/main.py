"""The `tidelog` command."""

import sys

from tidelog.base.errors import TidelogError
from tidelog.base.last_words import last_words
from tidelog.cli.serve_flags import read_flags

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def main() -> None:
    """Run the command; a failure we understand is one line on standard error, not a traceback.

    Exit codes: 0 success, 1 failure, 2 wrong usage or configuration, 130 interrupted.
    """
    try:
        flags = read_flags(sys.argv[1:])
        if flags is None:
            from tidelog.cli.commands import app_for

            app_for(sys.argv[1:])()
        else:
            from tidelog.cli import serving

            serving.run(**flags)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except (TidelogError, OSError) as error:
        from tidelog.base.net.refusal import ServerRefused

        if isinstance(error, ServerRefused) and "--json" in sys.argv:
            sys.stdout.write(f"{error.body}\n")
        sys.exit(last_words(error))


if __name__ == "__main__":
    main()
