"""What a daemon signs is worth nothing at another address than it dialled (mesh 9.7)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.mesh.broker_process import TOPIC, RealMesh
from support.mesh.daemon_process import DaemonProcess, eventually
from support.mesh.proxy import proxied
from support.mesh.scripted_broker import ScriptedBroker, running

PATIENCE_S = 60.0


@contextmanager
def broker(tmp_path: Path, **variables: str) -> Iterator[RealMesh]:
    """A real broker with these settings of the mesh."""
    environment = {f"TIDELOG_MESH_{name.upper()}": value for name, value in variables.items()}
    with RealMesh(tmp_path / "broker", environment=environment) as mesh:
        yield mesh


def logged(daemon: DaemonProcess, *texts: str) -> bool:
    """Wait until a daemon has logged all of them, and shows them as why it is not connected."""
    eventually(lambda: all(text in daemon.log_text() for text in texts), PATIENCE_S)
    health = daemon.health()
    return not health["connected"] and all(text in health["connection_error"] for text in texts)


def sends(daemon: DaemonProcess) -> bool:
    """Whether a daemon is connected and its message arrives."""
    eventually(lambda: daemon.health()["connected"], PATIENCE_S)
    daemon.send(f"topic:{TOPIC}", "hello", "m-1")
    eventually(lambda: daemon.outbox("m-1")["status"] == "done", PATIENCE_S)
    return True


def test_a_relayed_hello_opens_nothing(tmp_path: Path) -> None:
    """A hostile broker passes challenge and hello on: the real one refuses it and says why."""
    with (
        broker(tmp_path) as mesh,
        proxied(mesh.server.url) as hostile,
        DaemonProcess(hostile.url, key=mesh.member("ana")) as ana,
    ):
        ana.start()
        refused = f"dialled '{hostile.url.removeprefix('http://')}'"
        eventually(lambda: refused in mesh.log_text() or ana.health()["connected"], PATIENCE_S)
        assert not ana.health()["connected"]
        assert "mesh.public_hosts" in mesh.log_text()


def test_a_daemon_that_is_told_to_can_be_relayed(tmp_path: Path) -> None:
    """Version 1 is what the attack needs; only a setting makes a daemon sign it."""
    with broker(tmp_path) as mesh, proxied(mesh.server.url) as hostile:
        key = mesh.member("ana")
        with DaemonProcess(hostile.url, key=key, settings="[uplink]\nhello_version = 1") as ana:
            ana.start()
            assert sends(ana)


def test_version_1_can_be_refused(tmp_path: Path) -> None:
    """With `mesh.require_hello_2` the attack fails on such a daemon too; both sides are told."""
    with broker(tmp_path, require_hello_2="true") as mesh:
        mesh.token_host = mesh.server.url.removeprefix("http://")
        key = mesh.member("ana")
        with DaemonProcess(mesh.server.url, key=key, hello_version=1) as old:
            old.start()
            assert logged(old, "mesh.require_hello_2", "--hello-version 2")
        with DaemonProcess(mesh.server.url, key=key) as new:
            new.start()
            assert sends(new)
            assert [peer["name"] for peer in new.ask("GET", "/v1/peers")[1]["items"]] == ["ana"]


@pytest.mark.parametrize("listed", ["broker.example", "127.0.0.1:1, broker.example:8443"])
def test_an_address_that_is_not_listed(tmp_path: Path, listed: str) -> None:
    """The daemon's user and the broker's operator both read which setting to change."""
    with broker(tmp_path, public_hosts=listed) as mesh, mesh.daemon("ana") as ana:
        ana.start()
        dialled = mesh.server.url.removeprefix("http://")
        assert logged(ana, f"(4421, {dialled} is not in mesh.public_hosts)")
        assert f"'ana' of mesh harbour dialled '{dialled}'" in mesh.log_text()


def test_a_proxy_that_is_listed(tmp_path: Path) -> None:
    """What counts is the address that was dialled, not the `Host` that the proxy sends."""
    with proxied("http://127.0.0.1:9") as proxy:
        listed = f"broker.example, LOCALHOST.:{proxy.port}"
        with broker(tmp_path, public_hosts=listed) as mesh:
            proxy.lead_to(mesh.server.url)
            url = f"http://localhost:{proxy.port}"
            with DaemonProcess(url, key=mesh.member("ana")) as ana:
                ana.start()
                assert sends(ana)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "LOCALHOST"])
def test_names_of_this_machine(tmp_path: Path, name: str) -> None:
    """By default a broker that is dialled on its own machine answers to `localhost` too."""
    with broker(tmp_path) as mesh:
        url = mesh.server.url.replace("127.0.0.1", name)
        with DaemonProcess(url, key=mesh.member("ana")) as ana:
            ana.start()
            assert sends(ana)


def test_an_older_broker_gets_no_signature() -> None:
    """It may be a hostile one that wants version 1; the daemon says what to do and keeps sends."""
    with running(ScriptedBroker()) as old, DaemonProcess(old.url) as daemon:
        old.hello_versions = None
        daemon.start()
        assert daemon.send(f"topic:{TOPIC}", "kept", "m-1")[0] == 202
        assert logged(daemon, "Upgrade the broker", "--hello-version 1")
        assert old.hellos == []
        assert daemon.outbox("m-1")["status"] == "pending"


def test_an_older_broker_of_a_daemon_that_is_told() -> None:
    """Version 1, as such a broker knows it."""
    with running(ScriptedBroker()) as old, DaemonProcess(old.url, hello_version=1) as daemon:
        old.hello_versions = None
        daemon.start()
        assert sends(daemon)
        assert old.hellos[0]["hello_version"] == 1
        assert old.hellos[0]["host"] == ""
