"""Where the daemons of this machine keep their files, and how a program finds its own."""

import os
from pathlib import Path

from tidelog.base.errors import TidelogError
from tidelog.client.mesh.http import Endpoint

SOCKET_NAME = "daemon.sock"
TOKEN_NAME = "token"  # noqa: S105 - the name of a file
KEY_NAME = "key.json"


def home() -> Path:
    """The directory whose subdirectories are daemons, one per mesh."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "tidelog" / "mesh"


def find(data_dir: Path | str | None = None, mesh: str | None = None) -> Path:
    """The directory of one daemon: the one that is named, or the only one there is."""
    if data_dir is not None:
        return Path(data_dir).expanduser().absolute()
    if mesh is not None:
        return home() / mesh
    found = sorted(path.parent for path in home().glob(f"*/{KEY_NAME}"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise TidelogError(
            f"there is no daemon in {home()}. Join a mesh with `tidelog mesh join`, "
            "or name the directory of one with --data-dir."
        )
    names = ", ".join(path.name for path in found)
    raise TidelogError(f"there are several daemons ({names}). Name one with --mesh or --data-dir.")


def require_joined(data_dir: Path) -> None:
    """Refuse a directory from which no mesh was joined, before anything is looked for in it."""
    if not (data_dir / KEY_NAME).exists():
        raise TidelogError(
            f"no mesh was joined in {data_dir}. Get an invite (`tidelog mesh invite`), then: "
            f"tidelog mesh join INVITE --name NAME --data-dir {data_dir}"
        )


def endpoint(data_dir: Path, port: int | None = None) -> Endpoint:
    """How to reach the daemon of a directory: its socket, or with a port and its token over TCP."""
    if port is None:
        return Endpoint(socket=data_dir / SOCKET_NAME)
    path = data_dir / TOKEN_NAME
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise TidelogError(
            f"{path}: {error.strerror}. The daemon makes it; is it running?"
        ) from error
    return Endpoint(port=port, token=token)
