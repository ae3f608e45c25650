"""Where a lake may be."""

from pathlib import Path

import pytest

from tidelog.base.errors import ConfigError
from tidelog.config.lake_location import lake_directory
from tidelog.config.settings import load


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("lake", "lake"),
        ("/srv/lake", "/srv/lake"),
        ("file:///srv/my%20lake", "/srv/my lake"),
        ("file:/srv/lake", "/srv/lake"),
        ("file://localhost/srv/lake", "/srv/lake"),
        ("of:the/sea", "of:the/sea"),
    ],
)
def test_a_directory_by_its_path_or_its_url(location: str, path: str) -> None:
    """What is no URL is a path, whatever it looks like."""
    assert lake_directory(location, "lake") == Path(path)


@pytest.mark.parametrize(
    "location",
    ["s3://bucket/lake", "S3A://key:secret@host/lake", "gs:/b", "hdfs://h:1/x", "file://host/lake"],
)
def test_anything_else_is_refused(location: str) -> None:
    """The error says what can be given, and repeats no secret."""
    with pytest.raises(
        ConfigError, match=r"pipeline\.lake: .* not supported.* /srv/lake"
    ) as refused:
        load({}, {"TIDELOG_PIPELINE_LAKE": location}, None)
    assert "secret" not in str(refused.value)
