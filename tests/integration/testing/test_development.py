"""`tidelog serve --dev`: what it opens, and to whom."""

from pathlib import Path

from tidelog.testing.process import ServerProcess


def test_development_serves_the_known_app_and_says_so(tmp_path: Path) -> None:
    """The development app answers, its messages can change, and the log says it loudly."""
    with ServerProcess(data_dir=tmp_path / "data", arguments=("--dev",)) as server:
        server.start()
        assert "DEVELOPMENT MODE" in server.log_text()
    with ServerProcess(data_dir=tmp_path / "other") as server:
        server.start()
        assert "DEVELOPMENT MODE" not in server.log_text()
