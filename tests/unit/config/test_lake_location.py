"""Where a lake may be."""

from pathlib import Path

import pytest

from tidelog.base.errors import ConfigError
from tidelog.config.lake_location import LakeLocation, lake_location
from tidelog.config.settings import load

CACHE = Path("cache")


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
    assert lake_location(location, "lake", CACHE) == LakeLocation(Path(path))


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("s3://bucket/lake", "s3://bucket/lake"),
        ("S3://bucket/a/b=c/", "s3://bucket/a/b=c"),
        ("s3://bucket", "s3://bucket"),
        ("az://container/lake", "az://container/lake"),
    ],
)
def test_an_object_store_by_its_url(location: str, url: str) -> None:
    """Copies of its files are in a directory of its own, which no other lake has."""
    found = lake_location(location, "lake", CACHE)
    assert found.url == url
    assert found.root.parent == CACHE
    assert found.root != lake_location(f"{url}/other", "lake", CACHE).root


def test_copies_are_in_the_data_directory_unless_another_is_set() -> None:
    """The settings say where."""
    settings = {"TIDELOG_DATA_DIR": "/data", "TIDELOG_PIPELINE_LAKE": "s3://bucket/lake"}
    assert load({}, settings, None).settings.lake_path.parent == Path("/data/lake-cache")
    elsewhere = settings | {"TIDELOG_PIPELINE_CACHE": "/fast"}
    assert load({}, elsewhere, None).settings.lake_path.parent == Path("/fast")


@pytest.mark.parametrize(
    "location",
    ["S3A://key:secret@host/lake", "gs:/b", "hdfs://h:1/x", "file://host/lake"],
)
def test_anything_else_is_refused(location: str) -> None:
    """The error says what can be given, and repeats no secret."""
    with pytest.raises(
        ConfigError, match=r"pipeline\.lake: .* not supported.* /srv/lake.* s3://BUCKET"
    ) as refused:
        load({}, {"TIDELOG_PIPELINE_LAKE": location}, None)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "location",
    [
        "s3://key:secret@bucket/lake",
        "s3://bucket/lake?secret=1",
        "s3://bucket/../lake",
        "s3://bucket/a//b",
        "s3://bucket/my lake",
        "s3:/lake",
        "s3://B/lake",
    ],
)
def test_an_object_store_that_is_not_named_clearly_is_refused(location: str) -> None:
    """All who read the URL must take it for the same place; keys are not part of it."""
    with pytest.raises(ConfigError, match=r"write s3://BUCKET/FOLDER.*environment") as refused:
        load({}, {"TIDELOG_PIPELINE_LAKE": location}, None)
    assert "secret" not in str(refused.value)
