"""Runs the sync fixtures against a real server process and the client driver.

`python tests/conformance/sync/harness.py run [--engine sqlite|postgresql] [paths...]` is what
`scripts/conformance sync` calls. The fixtures' runner restarts the server through `restart`, which
leaves the new process running and returns when it is ready, and steers it through `admin`.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil

from tidelog.base.faultpoint import VARIABLE as FAULTS_VARIABLE
from tidelog.base.net import direct
from tidelog.testing.process import CREDENTIALS

FIXTURES = Path(__file__).parent
SECRET = "conformance-secret-at-least-32-bytes"
HOME_VARIABLE = "TIDELOG_TEST_CONFORMANCE_HOME"
WORKERS_VARIABLE = "TIDELOG_TEST_WORKERS"
"""How many fronts the server has, if it is not one process."""
START_SECONDS = 20.0

FAULTS = {"after_persist_before_reply": "store.committed=kill@1"}
"""The fixtures' fail points and ours; they kill the server, however many processes it has."""

_PASSED_ON = ("jwt_algorithms", "profiles", "heartbeat_timeout_ms")


def main() -> int:
    """Run one of the three commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run_parser = commands.add_parser("run", help="run fixtures")
    run_parser.add_argument("--engine", choices=("sqlite", "postgresql"), default="sqlite")
    run_parser.add_argument("paths", nargs="*", help="files or directories; default all")
    commands.add_parser("restart", help="used by the runner")
    admin_parser = commands.add_parser("admin", help="used by the runner")
    admin_parser.add_argument("action")
    admin_parser.add_argument("value")
    arguments = parser.parse_args()
    if arguments.command == "run":
        return run(arguments.engine, arguments.paths)
    home = Path(os.environ[HOME_VARIABLE])
    if arguments.command == "restart":
        config = json.loads(Path(os.environ["SYNC_CONFIG"]).read_text(encoding="utf-8"))
        restart(home, config, os.environ["SYNC_RESTART_MODE"])
    else:
        administer(home, arguments.action, int(arguments.value))
    return 0


def run(engine: str, paths: list[str]) -> int:
    """Start a server with the baseline configuration, run the runner, end the server."""
    import asyncio

    import yaml

    from tidelog.testing.postgresql import create_database, throwaway_postgresql

    with (
        tempfile.TemporaryDirectory(prefix="tidelog-sync-") as directory,
        throwaway_postgresql(in_memory=True)
        if engine == "postgresql"
        else nullcontext("") as database,
    ):
        home = Path(directory)
        store = asyncio.run(create_database(database)) if database else ""
        (home / "store").write_text(store, encoding="utf-8")
        baseline = yaml.safe_load((FIXTURES / "baseline.yaml").read_text(encoding="utf-8"))
        os.environ[HOME_VARIABLE] = directory
        me = shlex.join([sys.executable, __file__])
        driver = shlex.join([sys.executable, str(FIXTURES / "client_driver.py")])
        try:
            port = restart(home, baseline, "graceful")
            command = [
                *(sys.executable, str(FIXTURES / "run.py"), "--no-skip"),
                *("--url", f"ws://127.0.0.1:{port}/sync", "--secret", SECRET),
                *("--restart-cmd", f"{me} restart", "--admin-cmd", f"{me} admin"),
                *("--client-cmd", driver),
                *(paths or [str(FIXTURES)]),
            ]
            return subprocess.run(command, check=False).returncode
        finally:
            end(home, "kill")


def restart(home: Path, config: dict[str, Any], mode: str) -> int:
    """End the running server, start one with `config` on the same data; returns its port."""
    end(home, mode)
    port_file = home / "port"
    port = port_file.read_text(encoding="ascii") if port_file.exists() else "0"
    model = {name: config[name] for name in ("tree_targets", "schemas", "model_version")}
    (home / "model.json").write_text(json.dumps(model), encoding="utf-8")
    settings = {name: config[name] for name in _PASSED_ON} | config["limits"]
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    lines += [
        f"jwt_secret = {json.dumps(SECRET)}",
        f"model_file = {json.dumps(str(home / 'model.json'))}",
    ]
    (home / "tidelog.toml").write_text("[sync]\n" + "\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "tidelog", "serve", "--json", "--port", port]
    command += ["--data-dir", str(home / "data"), "--config", str(home / "tidelog.toml")]
    if store := (home / "store").read_text(encoding="utf-8"):
        command += ["--store", store]
    fault = FAULTS[config["failpoint"]] if config.get("failpoint") else ""
    if workers := os.environ.get(WORKERS_VARIABLE):
        command += ["--workers", workers]
        fault = fault.replace("=kill", "=kill-all")
    ready, log = home / "ready", home / "server.log"
    ready.unlink(missing_ok=True)
    environment = {**os.environ, **CREDENTIALS, FAULTS_VARIABLE: fault}
    with ready.open("wb") as output, log.open("ab") as errors:
        server = subprocess.Popen(
            command, stdout=output, stderr=errors, env=environment, start_new_session=True
        )
    (home / "pid").write_text(str(server.pid), encoding="ascii")
    deadline = time.monotonic() + START_SECONDS
    while not ready.read_text(encoding="utf-8").endswith("\n"):
        if server.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the server did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.02)
    started: dict[str, Any] = json.loads(ready.read_text(encoding="utf-8"))
    port = started["url"].rsplit(":", 1)[1]
    port_file.write_text(port, encoding="ascii")
    return int(port)


def end(home: Path, mode: str) -> None:
    """End the running server, if there is one, and wait until it is gone."""
    pid_file = home / "pid"
    if not pid_file.exists():
        return
    pid = int(pid_file.read_text(encoding="ascii"))
    number = signal.SIGKILL if mode == "kill" else signal.SIGTERM
    try:
        family = psutil.Process(pid).children(recursive=True)
        os.kill(pid, number)
        while not _is_gone(pid):
            time.sleep(0.01)
        psutil.wait_procs(family)
    except (ProcessLookupError, psutil.NoSuchProcess):
        pass
    pid_file.unlink()


def _is_gone(pid: int) -> bool:
    """Whether a process has ended; it may be our child, and then it must be waited for."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        pass
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def administer(home: Path, action: str, value: int) -> None:
    """Carry out one of the fixtures' administrative actions."""
    if action != "set_model_version":
        raise SystemExit(f"unknown admin action {action}")
    port = (home / "port").read_text(encoding="ascii")
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/sync/admin/model-version",
        data=json.dumps({"model_version": value}).encode(),
        headers={"authorization": f"Bearer {CREDENTIALS['TIDELOG_ADMIN_TOKEN']}"},
        method="PUT",
    )
    with direct.opened(request, 60) as answer:
        answer.read()


if __name__ == "__main__":
    sys.exit(main())
