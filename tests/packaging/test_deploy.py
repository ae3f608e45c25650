"""Dockerfile, compose file and systemd unit, as far as they can be tried without their runtimes.

No image is built here: there is no container runtime. What is run is what they run: the commands
that install, the health check, the settings they give, and systemd's own check of the unit.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from support.cli.outside import run
from support.cli.prepared import prepare
from support.docs.walk import blocks
from support.systemd import systemd_analyze
from tidelog.base.errors import ConfigError
from tidelog.config.credentials import require_credentials
from tidelog.config.settings import Settings, load
from tidelog.testing.process import CREDENTIALS, ServerProcess

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
UNIT = ROOT / "deploy" / "tidelog.service"
PIPELINE_UNIT = ROOT / "deploy" / "tidelog-pipeline.service"
SECONDS = 120.0
SECRETS = {
    "TIDELOG_ADMIN_TOKEN": CREDENTIALS["TIDELOG_ADMIN_TOKEN"],
    "TIDELOG_APP_SECRET": CREDENTIALS["TIDELOG_APP_SECRET"],
    "TIDELOG_POSTGRES_PASSWORD": "only-for-tests-of-compose",
}
"""What a person exports before starting; the names are those the files ask for."""


def settings_with(environment: dict[str, str]) -> Settings:
    """The settings a server would read from these variables."""
    return load({}, environment, None).settings


@pytest.fixture(autouse=True)
def _no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No `tidelog.toml` of the working directory."""
    monkeypatch.chdir(tmp_path)


# The Dockerfile.


class Instruction(NamedTuple):
    """One instruction of a Dockerfile."""

    name: str
    text: str


def stages() -> dict[str, list[Instruction]]:
    """The instructions of each stage, by its name, in order."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    found: dict[str, list[Instruction]] = {}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line.strip():
            continue
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            *_, stage = rest.split(" AS ")
            found[stage] = []
        list(found.values())[-1].append(Instruction(name, rest.strip()))
    return found


def lineage(stage: str) -> list[Instruction]:
    """The instructions of a stage behind those of the stages it is made from."""
    own = stages()[stage]
    origin = own[0].text.split(" AS ")[0]
    return [*(lineage(origin) if origin in stages() else []), *own]


def variables(stage: str) -> dict[str, str]:
    """What `ENV` sets in a stage."""
    texts = [each.text for each in lineage(stage) if each.name == "ENV"]
    return dict(pair.split("=", 1) for text in texts for pair in shlex.split(text))


def last(stage: str, name: str) -> str:
    """The instruction that is in effect."""
    return [each.text for each in lineage(stage) if each.name == name][-1]


def test_the_images_are_built_from_names_without_a_host() -> None:
    """Each stage stands on the slim Python or on a stage before it, and copies, never fetches."""
    known: set[str] = set()
    for name, instructions in stages().items():
        origin = instructions[0].text.split(" AS ")[0]
        assert origin == "python:3.11-slim" or origin in known
        known.add(name)
        assert "ADD" not in {each.name for each in instructions}
        assert "ARG" not in {each.name for each in instructions}, "arguments stay in the image"
    assert list(stages())[-1] == "server", "`docker build .` makes the last stage"


def test_the_images_run_as_nobody_in_particular() -> None:
    """Not as root, by number, so that it can be checked from outside; commands need no shell."""
    for stage in ("server", "pipeline"):
        assert last(stage, "USER") == "10001:10001"
        assert json.loads(last(stage, "ENTRYPOINT")) == ["tidelog"]
        copied = [each.text for each in stages()[stage] if each.name == "COPY"]
        assert [text.split()[0] for text in copied] in (
            ["--from=build"],
            ["--from=build-pipeline"],
        )
    assert json.loads(last("server", "CMD")) == ["serve"]
    assert json.loads(last("pipeline", "CMD")) == ["pipeline", "run"]


def test_the_image_has_settings_and_no_secrets() -> None:
    """Its variables are settings that exist; a server with them alone refuses to start."""
    environment = {k: v for k, v in variables("server").items() if k.startswith("TIDELOG_")}
    settings = settings_with(environment)
    assert (settings.host, settings.port) == ("0.0.0.0", 8080)
    assert settings.data_dir == last("server", "VOLUME") == last("server", "WORKDIR")
    assert last("server", "EXPOSE") == str(settings.port)
    assert not settings.dev
    with pytest.raises(ConfigError, match="starts only when its secrets are set"):
        require_credentials(settings)
    require_credentials(settings_with({**environment, **without_database(SECRETS)}))


def without_database(secrets: dict[str, str]) -> dict[str, str]:
    """The secrets that are tidelog's own."""
    return {name: text for name, text in secrets.items() if "POSTGRES" not in name}


def test_the_health_check_tells_the_living_from_the_dead(tmp_path: Path) -> None:
    """The program in the image, run against a server and against none."""
    check = last("server", "HEALTHCHECK").partition("CMD ")[2]
    python, *arguments = json.loads(check)
    assert python == "python"
    with ServerProcess(data_dir=tmp_path / "data", arguments=("--dev",)) as server:
        server.start()
        here = [text.replace("8080", str(server.port)) for text in arguments]
        run(sys.executable, *here, cwd=tmp_path)
        server.kill()
        assert run(sys.executable, *here, cwd=tmp_path, check=False).returncode != 0


def test_what_the_image_copies_is_enough_to_install(tmp_path: Path) -> None:
    """The files of its COPY lines, and its own command, make a working command."""
    project = tmp_path / "project"
    project.mkdir()
    sent = set((ROOT / ".dockerignore").read_text().splitlines())
    for instruction in stages()["build"]:
        if instruction.name == "COPY":
            for name in instruction.text.split()[:-1]:
                assert f"!{name}" in sent, f"{name} is not sent to the builder"
                if (ROOT / name).is_dir():
                    ignored = shutil.ignore_patterns("__pycache__")
                    shutil.copytree(ROOT / name, project / name, ignore=ignored)
                else:
                    shutil.copy(ROOT / name, project / name)
    commands = [each.text for each in stages()["build"] if each.name == "RUN"]
    uv_version = re.search(r"^(uv==\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    asked = commands[0].rpartition("pip install --no-cache-dir ")[2]
    assert uv_version is not None
    assert run("sh", "-c", f"echo {asked}", cwd=project).stdout.strip() == uv_version[1]
    replaced = {"/tools/bin": str(BIN), "/opt/tidelog": str(tmp_path / "venv")}
    script = commands[1].replace("--no-cache ", "")
    for path, own in replaced.items():
        script = script.replace(path, own)
    offline = script.replace("pip install", "pip install --offline")
    cached = run("sh", "-ec", offline, cwd=project, check=False)
    if cached.returncode:
        shutil.rmtree(tmp_path / "venv", ignore_errors=True)
        run("sh", "-ec", script, cwd=project, seconds=1200.0)
    shown = run(tmp_path / "venv" / "bin" / "tidelog", "--version", cwd=tmp_path)
    assert shown.stdout.startswith("tidelog ")


# The compose file.


def compose() -> dict[str, Any]:
    """The compose file."""
    document: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return document


def filled(text: str, given: dict[str, str]) -> str:
    """A value with its variables replaced, as compose does it; fails where compose would."""

    def replace(match: "re.Match[str]") -> str:
        name, _, message = match[1].partition(":?")
        assert message, f"{name} may be missing without a word"
        return given[name]

    return re.sub(r"\$\{([^}]*)\}", replace, text)


def test_compose_has_the_three_services() -> None:
    """Server, PostgreSQL and pipeline; what they name is there."""
    document = compose()
    assert set(document) == {"name", "services", "networks", "volumes"}
    services = document["services"]
    assert set(services) == {"postgresql", "server", "pipeline"}
    for service in services.values():
        assert ("image" in service) != ("build" in service)
        if "build" in service:
            assert service["build"]["target"] in stages()
        else:
            assert re.fullmatch(r"[a-z]+:\d+", service["image"]), "no host, a version"
        assert {each.split(":")[0] for each in service["volumes"]} <= set(document["volumes"])
        assert set(service.get("depends_on", {})) <= set(services)
        assert "no-new-privileges:true" in service["security_opt"]
        assert "privileged" not in service
        assert "restart" in service
    assert services["server"]["depends_on"]["postgresql"]["condition"] == "service_healthy"
    assert services["postgresql"]["healthcheck"]["test"][0] == "CMD"


def test_compose_opens_one_port_to_this_machine() -> None:
    """The database has none, the server's is on the loopback."""
    ports = {name: each.get("ports", []) for name, each in compose()["services"].items()}
    assert ports == {"postgresql": [], "server": ["127.0.0.1:8080:8080"], "pipeline": []}


def test_compose_has_no_password_of_its_own() -> None:
    """Every secret is a variable that must be set; none has a default."""
    asked: set[str] = set()
    for service in compose()["services"].values():
        for name, value in service["environment"].items():
            assert ":-" not in value
            used = re.findall(r"\$\{(\w+):\?[^}]+\}", value)
            asked.update(used)
            if re.search("PASSWORD|TOKEN|SECRET|STORE", name):
                assert used, f"{name} is written in the file"
    assert asked == set(SECRETS)


def test_compose_starts_a_server_that_accepts_its_settings() -> None:
    """With the image's variables under its own: a store on PostgreSQL, and secrets enough."""
    for name in ("server", "pipeline"):
        environment = {k: v for k, v in variables(name).items() if k.startswith("TIDELOG_")}
        for key, value in compose()["services"][name]["environment"].items():
            environment[key] = filled(value, SECRETS)
        settings = settings_with(environment)
        assert settings.is_postgresql
        assert SECRETS["TIDELOG_POSTGRES_PASSWORD"] in settings.store
        if name == "server":
            require_credentials(settings)
            [port] = compose()["services"][name]["ports"]
            assert port.rpartition(":")[0] in settings.mesh.listed_hosts, "as daemons dial it"
            [network] = compose()["networks"]["default"]["ipam"]["config"]
            assert settings.per_address.trusted_proxies == network["gateway"], (
                "this machine's proxy"
            )
        else:
            assert settings.admin_token == "", "the pipeline needs no token"


def keeps_trying(arguments: list[str], folder: Path) -> None:
    """The command goes on without its store, says so, and ends well when it is told to."""
    with subprocess.Popen(
        [BIN / "tidelog", *arguments],
        env={"PATH": os.environ["PATH"], "TIDELOG_STORE": "postgresql://nobody@127.0.0.1:1/none"},
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            assert said.startswith("tidelog: round 1 failed: ")
            assert "cannot be read" in said
            process.terminate()
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()


def test_the_pipelines_service_goes_on_until_somebody_has_to_look(tmp_path: Path) -> None:
    """A database that is away does not end it; what ends it with 1 stays so.

    That a finding does is shown by `tests/pipeline/test_commands.py`.
    """
    service = compose()["services"]["pipeline"]
    assert "entrypoint" not in service, "the image's own: tidelog"
    assert service["command"][:2] == json.loads(last("pipeline", "CMD"))
    keeps_trying(service["command"], tmp_path)
    assert service["restart"] == "no", "or it would end unseen"


# The unit.


def test_the_exact_versions_are_installed_as_printed(tmp_path: Path) -> None:
    """The lines of docs/installation.md and of the unit's head are the same, and they work.

    Most packages are there already: pip checks the hash of the extra's.
    """
    [lines] = [
        block.text.splitlines()
        for block in blocks("docs/installation.md")
        if block.kind == "sh" and "--require-hashes" in block.text
    ]
    head = [line[4:] for line in UNIT.read_text().splitlines() if line.startswith("#   ")]
    start = head.index("python3.11 -m venv /opt/tidelog")
    plain = [line.replace("python3.11", "python3") for line in head[start + 1 : start + 4]]
    assert [line.replace("/opt/tidelog/bin/", "") for line in plain] == lines[1:]
    for name in ("LICENSE", "README.md", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("scripts", "src"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").symlink_to(sys.executable)  # whichever Python runs the tests
    prepare(tmp_path)
    run(
        *("bash", "-ec", "\n".join(lines)),
        cwd=tmp_path,
        seconds=1200.0,
        more={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PIP_NO_COMPILE": "1"},
    )
    shown = run(
        *(tmp_path / ".venv/bin/python", "-c", "import asyncpg, tidelog; print(tidelog.__file__)"),
        cwd=tmp_path.parent,
    )
    assert ".venv" in shown.stdout


def unit(file: Path = UNIT) -> dict[str, list[str]]:
    """The values of each key of a unit."""
    found: dict[str, list[str]] = {}
    for line in file.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize(("file", "exposure"), [(UNIT, 20), (PIPELINE_UNIT, 40)])
def test_systemd_accepts_the_units(tmp_path: Path, file: Path, exposure: int) -> None:
    """No key is unknown or misspelled, and little is left open, in tenths of systemd's scale."""
    copy = tmp_path / file.name
    copy.write_text(file.read_text().replace("/opt/tidelog/bin/tidelog", "/bin/true"))
    verified = run(systemd_analyze(), "verify", copy, cwd=tmp_path)
    assert verified.stdout + verified.stderr == ""
    threshold = f"--threshold={exposure}"
    run(systemd_analyze(), "security", "--offline=true", threshold, copy, cwd=tmp_path)


def test_the_pipelines_unit_fits_the_service(tmp_path: Path) -> None:
    """It uses the server's directory and user, and lets the command end the JVM."""
    keys, server = unit(PIPELINE_UNIT), unit()
    for name in ("User", "StateDirectory", "WorkingDirectory", "UMask"):
        assert keys[name] == server[name]
    settings = settings_with(dict(pair.split("=", 1) for pair in keys["Environment"]))
    assert settings.lake_path == Path("/var/lib/tidelog/lake")
    assert keys["KillMode"] == ["mixed"]
    assert keys["RestartPreventExitStatus"] == ["1 2"]
    program, *arguments = shlex.split(keys["ExecStart"][0])
    assert program == "/opt/tidelog/bin/tidelog"
    keeps_trying(arguments, tmp_path)


def test_the_unit_fits_the_server(tmp_path: Path) -> None:
    """Its limits are above the server's; it keeps no secret and does not repeat a refused start."""
    keys, limits = unit(), Settings().limits
    assert int(*keys["LimitNOFILE"]) > limits.max_connections
    assert int(*keys["TimeoutStopSec"]) * 1000 > limits.shutdown_grace_ms
    environment = dict(pair.split("=", 1) for pair in keys["Environment"])
    settings = settings_with(environment)
    assert settings.data_dir == f"/var/lib/{keys['StateDirectory'][0]}"
    with pytest.raises(ConfigError, match="starts only when its secrets are set"):
        require_credentials(settings)
    command = shlex.split(keys["ExecStart"][0])
    assert command[0] == "/opt/tidelog/bin/tidelog"
    refused = run(BIN / "tidelog", *command[1:], cwd=tmp_path, check=False)
    assert str(refused.returncode) in keys["RestartPreventExitStatus"]


def test_the_units_command_starts_a_server_without_writable_code(tmp_path: Path) -> None:
    """With its variables, its secrets and memory that is never both written and executed."""
    keys = unit()
    environment = dict(pair.split("=", 1) for pair in keys["Environment"])
    environment["TIDELOG_DATA_DIR"] = str(tmp_path / "data")
    assert keys["MemoryDenyWriteExecute"] == ["yes"]
    arguments = shlex.split(keys["ExecStart"][0])[1:]
    with subprocess.Popen(
        [sys.executable, "-c", DENYING, str(BIN / "tidelog"), *arguments, "--json", "--port", "0"],
        env={"PATH": os.environ["PATH"], **environment, **without_database(SECRETS)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["head"] == 0
            process.terminate()
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()


DENYING = """
import ctypes, os, sys
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)  # Linux before 6.3 cannot, and goes on
os.execv(sys.argv[1], sys.argv[1:])
"""
