"""`tidelog serve --workers`: one port, one log and one end, whatever the number of processes."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.serve.processes import WAIT_SECONDS, kill, state
from tidelog.monitoring.scrape import Scrape
from tidelog.serve.private_directory import private_directory
from tidelog.serve.workers import counted
from tidelog.testing.process import CREDENTIALS, ServerProcess, spawn

WORKERS = 2
COMMAND = [sys.executable, "-m", "tidelog", "serve", "--workers", str(WORKERS)]


class Server(ServerProcess):
    """Without the surface that other tests add, which is served by one process only.

    Its processes start from nothing, as those of users do; elsewhere they are forks (`warm`).
    """

    program = "tidelog"
    spawn = staticmethod(spawn)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Of a data directory whose path is longer than that of any socket; its log is JSON."""
    data_dir = tmp_path_factory.mktemp("workers") / ("long" * 30) / "data"
    arguments = ("--workers", str(WORKERS), "--log-format", "json")
    with Server(data_dir=data_dir, arguments=arguments) as process:
        process.start()
        yield process


def children(pid: int) -> dict[int, list[str]]:
    """The command lines of a process's children, of each from its `-m` on."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    lines = {int(each): Path(f"/proc/{each}/cmdline").read_bytes() for each in listed}
    return {each: line.decode().split("\0")[2:-1] for each, line in lines.items()}


def interpreter_options(pid: int) -> str:
    """What a process's interpreter was told before `-m`."""
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[1]


def until_gone(processes: dict[int, list[str]]) -> None:
    """Return when none of them is left."""
    until = time.monotonic() + WAIT_SECONDS
    while any(state(each) not in ("", "Z", "X") for each in processes):
        assert time.monotonic() < until
        time.sleep(0.02)


def logged(server: ServerProcess, text: str) -> dict[str, str]:
    """The first line of the log that has this text, as soon as there is one."""
    until = time.monotonic() + WAIT_SECONDS
    while True:
        for line in server.log_text().splitlines():
            if text in line:
                return dict(json.loads(line))
        assert time.monotonic() < until, server.log_text()
        time.sleep(0.02)


def test_every_front_serves_the_port_and_no_command_line_has_a_secret(
    server: ServerProcess,
) -> None:
    """They are an owner and fronts; the socket between them is nobody else's."""
    programs = children(server.pid)
    names = sorted(line[2] for line in programs.values())
    assert names == ["front 1", "front 2", "owner"]
    until_ready(server)
    [path] = {line[3] for line in programs.values()}
    assert len(path) < 108
    assert {interpreter_options(each) for each in programs} == {"-P"}, "imports nothing from here"
    assert stat.S_IMODE(Path(path).parent.stat().st_mode) == 0o700
    shown = " ".join(word for line in programs.values() for word in line)
    assert not any(secret in shown for secret in CREDENTIALS.values())


def test_a_second_server_on_the_port_is_refused(server: ServerProcess, tmp_path: Path) -> None:
    """As with one process: it would take half of the clients to another log."""
    refused = subprocess.run(
        [*COMMAND, "--port", str(server.port), "--data-dir", str(tmp_path)],
        env={**os.environ, **CREDENTIALS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert refused.stderr == (
        f"tidelog: cannot listen on 127.0.0.1:{server.port}: Address already in use. Choose "
        "another --host or --port (0 takes a free one).\n"
    )


def test_a_second_server_of_the_data_is_refused(server: ServerProcess) -> None:
    """The owner says so, in one line, and the command has its exit code."""
    command = [sys.executable, "-m", "tidelog", "serve", "--port", "0"]
    command += ["--data-dir", str(server.data_dir)]
    refused = [
        subprocess.run(
            [*command, *workers],
            env={**os.environ, **CREDENTIALS},
            capture_output=True,
            text=True,
            check=False,
        )
        for workers in ((), ("--workers", "2"))
    ]
    assert refused[0].returncode == 1
    assert refused[1].returncode == refused[0].returncode
    assert refused[1].stderr == refused[0].stderr
    assert f"(process {server.pid}). Stop that one" in refused[0].stderr, "not the owner alone"
    assert refused[1].stdout == ""


@contextlib.contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """A process that does nothing within the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        while state(pid) != "T":
            time.sleep(0)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def get(server: ServerProcess, path: str) -> httpx.Response:
    """Ask whichever front accepts."""
    return httpx.get(server.url + path, timeout=WAIT_SECONDS, verify=False)


def requests_served(server: ServerProcess) -> float:
    """What `/metrics` says of all requests before this one, whichever front is asked."""
    return served_by(server)[0]


def served_by(server: ServerProcess) -> tuple[float, set[str]]:
    """The same, and which processes have said anything."""
    scrape = Scrape.parse(get(server, "/metrics").text, 0.0)
    processes = set(scrape.by("process_open_fds", "process"))
    return scrape.total("tidelog_http_requests_total", status="200"), processes


def until_known(server: ServerProcess) -> float:
    """The same, as soon as no process is too busy to say it: each look is one request more."""
    until, before = time.monotonic() + WAIT_SECONDS, 0.0
    while True:
        served, processes = served_by(server)
        if processes == {"front 1", "front 2", "owner"} and served == before + 1:
            return served
        before = served
        assert time.monotonic() < until


def until_ready(server: ServerProcess) -> None:
    """Return when whichever front is asked says that it is."""
    until = time.monotonic() + WAIT_SECONDS
    while not get(server, "/healthz").json()["ready"]:
        assert time.monotonic() < until


def until_served(server: ServerProcess, count: float) -> float:
    """Ask for metrics until all requests so far are in them; returns how many those are.

    A front that is busy for a second is taken as it was before; so there may be fewer for a while,
    but never fewer than there were, and never more.
    """
    until, before = time.monotonic() + WAIT_SECONDS, 0.0
    while (served := requests_served(server)) != count:
        assert before <= served < count
        assert time.monotonic() < until
        before, count = served, count + 1
    return served


def of_front(server: ServerProcess, name: str) -> int:
    """The process of that name, as soon as there is one."""
    until = time.monotonic() + WAIT_SECONDS
    while True:
        for each, line in children(server.pid).items():
            if line[2:3] == [name]:
                return each
        assert time.monotonic() < until
        time.sleep(0.02)


def test_metrics_are_those_of_all_processes_and_never_go_back(server: ServerProcess) -> None:
    """Whichever front is asked, also when one does not answer, or is gone."""
    before = until_known(server)
    for _ in range(20):
        get(server, "/healthz/live").raise_for_status()
    counted_all = until_served(server, before + 21)
    front = of_front(server, "front 1")
    with standing_still(front):
        assert requests_served(server) >= counted_all
    until_served(server, counted_all + 2)
    kill(front)
    assert of_front(server, "front 1") != front
    assert until_known(server) >= counted_all + 3


def test_a_front_says_that_its_owner_does_not_answer(server: ServerProcess) -> None:
    """It is alive, and not ready."""
    with standing_still(of_front(server, "owner")):
        answer = get(server, "/healthz")
    assert answer.status_code == 503
    assert answer.json()["reason"] == "the owner of the log does not answer"
    until_ready(server)


def test_what_dies_is_started_again_and_the_log_says_which(server: ServerProcess) -> None:
    """Each line names the process that wrote it."""
    kill(of_front(server, "front 2"))
    line = logged(server, "front 2 ended (signal 9); it is started again in 0.1 s")
    assert (line["process"], line["level"]) == ("supervisor", "error")
    of_front(server, "front 2")
    until_ready(server)


def test_all_end_when_the_supervisor_is_killed_and_when_it_is_told(server: ServerProcess) -> None:
    """A new one has the port and the log at once; the orderly end leaves nothing behind."""
    former = children(server.pid)
    [left] = {Path(line[3]).parent for line in former.values()}
    server.kill()
    until_gone(former)
    server.start()
    assert not left.exists(), "of a server that was killed"
    programs = children(server.pid)
    [path] = {line[3] for line in programs.values()}
    assert server.terminate() == 0
    assert not any(map(state, programs))
    assert not Path(path).parent.exists()


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (["--workers", "0"], "workers (flag --workers): '0' is not allowed; must be an integer "),
        (["--workers", "many"], "an integer from 1 to 256 or one of auto"),
    ],
)
def test_wrong_numbers_are_refused(given: list[str], wrong: str) -> None:
    """With what is allowed."""
    command = [sys.executable, "-m", "tidelog", "serve", *given]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert wrong in refused.stderr


def test_auto_leaves_a_processor_to_the_owner() -> None:
    """And is never none."""
    assert counted("auto") == max(1, len(os.sched_getaffinity(0)) - 1)
    assert counted(7) == 7


def test_sockets_have_short_paths_wherever_temporary_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only directories of servers that are no more are removed."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("x" * 100)))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("y" * 100)))
    with private_directory() as first, private_directory() as second:
        assert first.parent == second.parent == Path("/tmp")
        assert first.is_dir()
    assert not first.exists()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory in which a socket's path has room, wherever the tests have theirs."""
    with tempfile.TemporaryDirectory(prefix="t") as made:
        yield Path(made)


def test_sockets_are_where_nobody_can_put_others_in_their_place(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can rename the directory could be the owner of the log to its fronts."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    for mode, is_used in ((0o777, False), (0o770, False), (0o1777, True), (0o700, True)):
        short_path.chmod(mode)
        with private_directory() as directory:
            assert (directory.parent == short_path) is is_used


def test_servers_that_start_at_once_keep_their_directories(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One may sweep when another has made its directory, and not locked it yet."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    make = tempfile.mkdtemp
    others = contextlib.ExitStack()

    def made_and_swept(**place: str) -> str:
        monkeypatch.setattr(tempfile, "mkdtemp", make)
        made = make(**place)
        others.enter_context(private_directory())
        return made

    monkeypatch.setattr(tempfile, "mkdtemp", made_and_swept)
    with others, private_directory() as directory:
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert len(list(short_path.iterdir())) == 2
    assert not list(short_path.iterdir())
