"""`python -m tidelog.daemon`: the daemon without the command line's libraries.

`tidelog daemon up` replaces itself by this, so that a daemon that runs for months does not carry
Typer and Rich with it. It prints one line on standard output when its socket is open: JSON, unless
`--text` is given.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

from tidelog.base.errors import ConfigError, TidelogError
from tidelog.daemon import settings as daemon_settings


def main(arguments: list[str] | None = None) -> int:
    """Run the daemon; returns its exit code.

    0 stopped as asked, 1 failed, 2 wrong configuration, 3 broker and daemon cannot work together,
    4 a newer daemon with this key has connected, 5 an older one is connected.
    """
    given = _parser().parse_args(arguments)
    data_dir = Path(given.data_dir).expanduser().absolute() if given.data_dir else None
    logging.basicConfig(
        stream=sys.stderr,
        level=given.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    # The library logs whole frames at DEBUG, bodies included.
    logging.getLogger("websockets").setLevel(logging.WARNING)
    flags = {
        "mesh": given.mesh,
        "broker": given.broker,
        "container": given.container or None,
        "ipc.tcp_port": given.tcp_port,
        "uplink.hello_version": given.hello_version,
    }
    try:
        if given.ephemeral:
            from tidelog.daemon import ephemeral
            from tidelog.daemon.process import Mode

            mode = Mode(ttl_s=given.ttl, says_text=given.text)
            return ephemeral.run(data_dir, given.name, flags, mode)
        if data_dir is None:
            raise ConfigError("name the directory of everything it writes with --data-dir")
        loaded = daemon_settings.load(data_dir, flags, os.environ)
        for warning in loaded.warnings:
            logging.getLogger("tidelog").warning("%s", warning)
        from tidelog.daemon.process import Mode, run

        return run(data_dir, loaded.settings, Mode(ttl_s=given.ttl, says_text=given.text))
    except ConfigError as error:
        sys.stderr.write(f"tidelog daemon: {error}\n")
        return 2
    except TidelogError as error:
        sys.stderr.write(f"tidelog daemon: {error}\n")
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        sys.stderr.write(f"tidelog daemon: {error.filename}: {error.strerror}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tidelog.daemon",
        description="Run the mesh daemon until SIGTERM.",
        epilog="Example: python -m tidelog.daemon --data-dir ~/.tidelog/harbour",
    )
    parser.add_argument("--data-dir", help="directory of everything it writes")
    parser.add_argument("--mesh", help="slug of the mesh; default from daemon.toml")
    parser.add_argument("--broker", help="URL of the broker; default from daemon.toml")
    parser.add_argument(
        "--hello-version",
        type=int,
        choices=(1, 2),
        help="1 for a broker that does not support 2; default from daemon.toml, or 2",
    )
    parser.add_argument("--tcp-port", type=int, help="also listen on 127.0.0.1; 0 takes any port")
    parser.add_argument("--container", action="store_true", help="Unix socket only")
    parser.add_argument(
        "--ephemeral",
        action="store_true",
        help="join with the invite in TIDELOG_INVITE, keep the key in memory, remove the directory",
    )
    parser.add_argument(
        "--name", help="with --ephemeral: the name of this member, as others see it"
    )
    parser.add_argument("--ttl", type=float, help="seconds after which it stops by itself")
    parser.add_argument(
        "--text", action="store_true", help="print the ready line as text, not as JSON"
    )
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error")
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
