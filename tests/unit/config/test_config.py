"""Configuration: who wins, where a value came from, and what a refusal says."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct, field

from tidelog.base.errors import ConfigError
from tidelog.base.settings.kinds import Secret, Section
from tidelog.base.settings.reading import Loaded, Shown, describe, load_as
from tidelog.channels.settings import History
from tidelog.config.settings import Settings, load


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees a `tidelog.toml` that it did not write."""
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "tidelog.toml") -> Path:
    """A settings file in the working directory."""
    path = Path(name)
    path.write_text(text)
    return path


def refusal(
    text: str = "",
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> str:
    """The message with which loading is refused."""
    write(text)
    with pytest.raises(ConfigError) as refused:
        load(flags or {}, environ or {}, None)
    return str(refused.value)


def test_defaults() -> None:
    """Without flags, variables and file every setting has its default and says so."""
    loaded = load({}, {}, None)
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.origins["limits.max_body_bytes"] == "default"


def test_precedence() -> None:
    """Flags win over variables, variables over the file, the file over defaults, key by key."""
    write('port = 1\nhost = "file"\nlog_level = "debug"\n[limits]\nmax_connections = 5')
    environ = {"TIDELOG_PORT": "2", "TIDELOG_HOST": "environment"}
    loaded = load({"port": 3}, environ, None)
    settings = loaded.settings
    assert (settings.port, settings.host, settings.log_level) == (3, "environment", "debug")
    assert settings.limits.max_connections == 5
    assert settings.limits.max_headers == 100
    assert {key: loaded.origins[key] for key in ("port", "host", "log_level", "dev")} == {
        "port": "flag --port",
        "host": "environment TIDELOG_HOST",
        "log_level": "tidelog.toml",
        "dev": "default",
    }
    assert loaded.origins["limits.max_connections"] == "tidelog.toml"


@given(st.sets(st.sampled_from(["flag", "environment", "file"])))
def test_highest_origin_present_wins(present: set[str]) -> None:
    """For every combination of origins the value is the one of the highest that gives one."""
    write("port = 3" if "file" in present else "")
    environ = {"TIDELOG_PORT": "2"} if "environment" in present else {}
    loaded = load({"port": 1 if "flag" in present else None}, environ, None)
    winner = next(
        (
            origin
            for name, origin in [
                ("flag", (1, "flag --port")),
                ("environment", (2, "environment TIDELOG_PORT")),
                ("file", (3, "tidelog.toml")),
            ]
            if name in present
        ),
        (8080, "default"),
    )
    assert (loaded.settings.port, loaded.origins["port"]) == winner


def test_sections_from_everywhere() -> None:
    """A key inside a section can be set by file, variable and flag."""
    write("[limits]\nmax_body_bytes = 1\nmax_headers = 8\nidle_timeout_ms = 1")
    environ = {"TIDELOG_LIMITS_MAX_HEADERS": "9", "TIDELOG_LIMITS_IDLE_TIMEOUT_MS": "2"}
    loaded = load({"limits.idle_timeout_ms": "3"}, environ, None)
    limits = loaded.settings.limits
    assert (limits.max_body_bytes, limits.max_headers, limits.idle_timeout_ms) == (1, 9, 3)
    assert loaded.origins["limits.max_headers"] == "environment TIDELOG_LIMITS_MAX_HEADERS"
    assert loaded.origins["limits.idle_timeout_ms"] == "flag --limits-idle-timeout-ms"


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("FALSE", False)])
def test_booleans_in_variables(text: str, value: bool) -> None:
    """A variable spells a boolean as true, false, 1 or 0."""
    assert load({}, {"TIDELOG_DEV": text}, None).settings.dev is value


def test_flags_may_be_typed_or_text() -> None:
    """The command line gives numbers, booleans and paths as objects or as text."""
    flags = {"port": "81", "dev": True, "data_dir": Path("d"), "host": None}
    settings = load(flags, {}, None).settings
    assert (settings.port, settings.dev, settings.data_dir) == (81, True, "d")
    assert settings.host == "127.0.0.1"


def test_text_of_digits_stays_text() -> None:
    """A token that looks like a number is not taken for one."""
    assert load({}, {"TIDELOG_ADMIN_TOKEN": "00123"}, None).settings.admin_token == "00123"


def test_other_variables_are_no_settings() -> None:
    """Variables without our prefix and those that steer tests are ignored."""
    environ = {
        "PATH": "/bin",
        "TIDELOG_TEST_FAULTS": "x",
        "TIDELOG_TEST_ANYTHING": "",
        "TIDELOGX": "",
    }
    assert load({}, environ, None).settings == Settings()


def test_explicit_file_must_exist() -> None:
    """A file that was named and is not there is an error; the implicit one is optional."""
    with pytest.raises(ConfigError, match=r"missing\.toml: No such file"):
        load({}, {}, Path("missing.toml"))
    load({}, {}, None)


def test_explicit_file_replaces_the_implicit_one() -> None:
    """When a file is named the one in the working directory is not read."""
    write("port = 1")
    loaded = load({}, {}, write('host = "h"', "other.toml"))
    assert (loaded.settings.port, loaded.settings.host) == (8080, "h")
    assert loaded.origins["host"] == "other.toml"


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    """A directory in place of the file is reported with its path."""
    with pytest.raises(ConfigError, match=str(tmp_path)):
        load({}, {}, tmp_path)


@pytest.mark.parametrize("content", [b"port = ", b"\xff = 1", b"port = 1\nport = 2", b"[limits"])
def test_file_that_is_not_toml(content: bytes) -> None:
    """A file that is not TOML is reported with its path."""
    Path("tidelog.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"tidelog\.toml: not TOML"):
        load({}, {}, None)


@pytest.mark.parametrize(
    ("text", "unknown", "nearest"),
    [
        ("prot = 1", "prot", "port"),
        ("max_body_bytes = 1", "max_body_bytes", "limits.max_body_bytes"),
        ("[limits]\nmax_body_byte = 1", "limits.max_body_byte", "limits.max_body_bytes"),
        ("[limit]\nmax_headers = 1", "limit", "limits"),
        ("log-level = 1", "log-level", "log_level"),
        ("[[channels.apps]]\nid = 'x'", "channels.apps", "apps"),
    ],
)
def test_unknown_key_in_the_file(text: str, unknown: str, nearest: str) -> None:
    """An unknown key is refused with the file and the nearest known key."""
    assert refusal(text) == (
        f"unknown key {unknown} (tidelog.toml); the nearest known one is {nearest}"
    )


def test_unknown_variable() -> None:
    """An unknown variable is named with the nearest known one, never its value, and not used."""
    loaded = load({}, {"TIDELOG_ADMIN_TOKN": "s3cret", "TIDELOG_PORT": "99"}, None)
    [warning] = loaded.warnings
    assert warning.startswith("ignored: unknown variable TIDELOG_ADMIN_TOKN (environment); ")
    assert warning.endswith("the nearest known one is TIDELOG_ADMIN_TOKEN")
    assert "s3cret" not in warning
    assert loaded.settings.port == 99
    assert loaded.settings.admin_token == ""


def test_a_name_that_is_far_off_is_not_suggested() -> None:
    """What nobody can have meant helps nobody; where all names are does."""
    elsewhere = "; `tidelog config check` lists all settings"
    for name in ("TIDELOG_COLOUR", "TIDELOG_X", "TIDELOG_"):
        [warning] = load({}, {name: "1"}, None).warnings
        assert warning == f"ignored: unknown variable {name} (environment){elsewhere}"
    assert refusal("colour = 1") == f"unknown key colour (tidelog.toml){elsewhere}"
    assert refusal(flags={"colour": 1}) == f"unknown flag --colour (command line){elsewhere}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIDELOG_SERVICE_HOST", "10.0.0.1"),
        ("TIDELOG_SERVICE_PORT", "80"),
        ("TIDELOG_SERVICE_PORT_HTTP", "80"),
        ("TIDELOG_PORT", "tcp://10.0.0.1:80"),
        ("TIDELOG_PORT_80_TCP", "tcp://10.0.0.1:80"),
        ("TIDELOG_PORT_80_TCP_PROTO", "tcp"),
        ("TIDELOG_PORT_80_TCP_PORT", "80"),
        ("TIDELOG_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("TIDELOG_DASHBOARD_PORT", "tcp://10.0.0.1:80"),
        ("TIDELOG_DASHBOARD_SERVICE_HOST", "10.0.0.1"),
        ("TIDELOG_DAEMON_PORT", "udp://10.0.0.1:80"),
    ],
)
def test_what_kubernetes_sets_is_ignored(name: str, value: str) -> None:
    """A service named tidelog makes these variables in every container of its name space."""
    loaded = load({}, {name: value}, None)
    assert loaded.warnings == ()
    assert loaded.settings.port == load({}, {}, None).settings.port
    assert load_as(Wide, {}, {name: value}, None).warnings == ()


def test_unknown_flag() -> None:
    """An unknown flag is refused with the nearest known one, both spelled as flags."""
    message = refusal(flags={"limits.max_conections": 1})
    assert "unknown flag --limits-max-conections" in message
    assert message.endswith("--limits-max-connections")


def test_section_is_no_flag() -> None:
    """A whole section cannot be given as one flag or variable."""
    assert "unknown flag --limits " in refusal(flags={"limits": 1})
    [warning] = load({}, {"TIDELOG_LIMITS": "1"}, None).warnings
    assert "unknown variable TIDELOG_LIMITS " in warning


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('port = "80"', "port (tidelog.toml): '80' is not allowed; must be an integer"),
        ("port = true", "port (tidelog.toml): True is not allowed; must be an integer"),
        ("port = 80.5", "port (tidelog.toml): 80.5 is not allowed; must be an integer"),
        ("port = 65536", "65536 is not allowed; must be an integer from 0 to 65535"),
        ("port = -1", "-1 is not allowed; must be an integer from 0 to 65535"),
        ("host = 1", "host (tidelog.toml): 1 is not allowed; must be text that is not empty"),
        ('host = ""', "must be text that is not empty"),
        ("tls_key = 1", "must be text"),
        ('dev = "yes"', "dev (tidelog.toml): 'yes' is not allowed; must be true or false"),
        (
            'log_format = "xml"',
            "log_format (tidelog.toml): 'xml' is not allowed; must be one of",
        ),
        ("[limits]\nmax_headers = 7", "limits.max_headers (tidelog.toml): 7 is not allowed"),
        ("[limits]\nmax_headers = []", "limits.max_headers (tidelog.toml): [] is not allowed"),
        ("[postgresql]\npool_size = 0", "postgresql.pool_size (tidelog.toml): 0 is not allowed"),
        ("[mesh]\npublic_hosts = 5", "5 is not allowed; must be text or a list of text"),
        ("limits = 5", "limits (tidelog.toml): must be a table"),
        ("[[limits]]", "limits (tidelog.toml): must be a table"),
        ('tls_key = "k.pem"', "tls_certificate and tls_key belong together"),
    ],
)
def test_wrong_values_in_the_file(text: str, expected: str) -> None:
    """A wrong type or range is refused with key, file and what is allowed."""
    assert expected in refusal(text)


@pytest.mark.parametrize("value", ["", "abc", "70000", "8080.5", " 80"])
def test_wrong_value_in_a_variable(value: str) -> None:
    """A wrong value of a variable is refused with the variable's name and the range."""
    assert refusal(environ={"TIDELOG_PORT": value}) == (
        f"port (environment TIDELOG_PORT): {value!r} is not allowed; must be an integer from 0 "
        "to 65535"
    )


def test_all_that_is_wrong_is_said_at_once() -> None:
    """File, variables, flags and what is wrong together: whoever mends it need not try again."""
    text = """
        prot = 1
        tls_key = "k.pem"
        [limits]
        max_headers = 7
        [tracing]
        endpoint = "collector:4318"
        [per_address]
        exempt = ["the office", "10.0.0.0/33"]
        trusted_proxies = "proxy.example"
        [[apps]]
        id = "a"
    """
    message = refusal(text, {"TIDELOG_POSTGRESQL_POOL_SIZE": "0", "TIDELOG_APPS": "x"}, {"x": 1})
    first, *lines = message.splitlines()
    assert first == f"{len(lines)} settings are wrong:"
    for expected in (
        "unknown key prot (tidelog.toml)",
        "apps (environment TIDELOG_APPS): has several values",
        "unknown flag --x",
        "limits.max_headers (tidelog.toml): 7 is not allowed",
        "postgresql.pool_size (environment TIDELOG_POSTGRESQL_POOL_SIZE): '0' is not allowed",
        "tracing.endpoint: give an http:// or https:// URL",
        "per_address.exempt: 'the office' is neither an address nor a network",
        "per_address.exempt: '10.0.0.0/33' is neither",
        "per_address.trusted_proxies: 'proxy.example' is neither",
        "apps[0].key: missing",
        "apps[0].secret: missing",
    ):
        assert [line for line in lines if line.startswith(f"  {expected}")], (expected, message)


def test_a_section_that_is_wrong_hides_nothing_of_the_rest() -> None:
    """What is wrong together is found although a section has defects of its own."""
    message = refusal('tls_key = "k.pem"\n[limits]\nmax_headers = 7')
    assert "limits.max_headers" in message
    assert "tls_certificate and tls_key belong together" in message


def test_wrong_value_of_a_flag() -> None:
    """A wrong value of a flag is refused with the flag's name."""
    message = refusal(flags={"limits.max_headers": 1})
    assert message.startswith("limits.max_headers (flag --limits-max-headers): 1 is not allowed")


def test_a_wrong_value_is_refused_only_if_it_counts() -> None:
    """A value that a higher origin replaces is not checked: the flag is there to repair it."""
    write("port = 70000")
    assert load({"port": 1}, {}, None).settings.port == 1


def test_long_values_are_cut() -> None:
    """A refusal repeats only the beginning of a long value."""
    assert len(refusal(environ={"TIDELOG_PORT": "x" * 10_000})) < 200


@pytest.mark.parametrize("key", ["admin_token", "store"])
def test_refusals_never_show_secrets(key: str) -> None:
    """The value of a secret is not repeated, whatever is wrong with it."""
    message = refusal(f'{key} = ["s3cret"]')
    assert message == f"{key} (tidelog.toml): the value is not allowed; must be text"


def test_describe_masks_secrets() -> None:
    """What is shown has every key in order, its origin, and stars for secrets."""
    environ = {"TIDELOG_ADMIN_TOKEN": "s3cret", "TIDELOG_STORE": "postgresql://u:s3cret@h/d"}
    rows = describe(load({"port": 1}, environ, None))
    assert "s3cret" not in repr(rows)
    assert [row.key for row in rows][:3] == ["data_dir", "store", "host"]
    assert "postgresql.statement_timeout_ms" in [row.key for row in rows]
    by_key = {row.key: row for row in rows}
    assert by_key["port"] == Shown("port", 1, "flag --port")
    assert by_key["admin_token"].value == "********"
    assert by_key["store"].value == "postgresql://u:********@h/d"
    assert by_key["store"].origin == "environment TIDELOG_STORE"


def test_describe_and_origins_cover_every_key() -> None:
    """Each setting has an origin and is shown, once."""
    loaded = load({}, {}, None)
    assert [row.key for row in describe(loaded)] == list(loaded.origins)


class Hook(Section, frozen=True, kw_only=True):
    """An array of tables inside another."""

    url: str


class Quota(Section, frozen=True, kw_only=True):
    """A section inside an array of tables."""

    messages: Annotated[int, Meta(ge=1)] = 10


class App(Section, frozen=True, kw_only=True):
    """An item of an array of tables."""

    id: Annotated[str, Meta(min_length=1)]
    secret: Secret = ""
    quota: Quota = Quota()
    hooks: list[Hook] = field(default_factory=list)


class Wide(Struct, frozen=True):
    """A schema with the parts that later rooms will add."""

    apps: list[App] = field(default_factory=list)
    origins: list[str] = []
    labels: dict[str, str] = {}
    ratio: Annotated[float, Meta(ge=0, le=1)] = 0.5
    level: Literal[1, 2] = 1
    free: int = 0


def wide(text: str) -> Loaded[Wide]:
    """The wide schema, loaded from a file."""
    return load_as(Wide, {}, {}, write(text))


APPS = """
origins = ["https://a", "https://b"]
ratio = 1
[labels]
any = "thing"
[[apps]]
id = "one"
secret = "s3cret"
[[apps]]
id = "two"
quota.messages = 3
[[apps.hooks]]
url = "https://hook"
"""


def test_arrays_of_tables() -> None:
    """An array of tables becomes a list of Structs, with defaults and sections inside."""
    settings = wide(APPS).settings
    assert settings.apps == [
        App(id="one", secret="s3cret"),
        App(id="two", quota=Quota(messages=3), hooks=[Hook(url="https://hook")]),
    ]
    assert settings.origins == ["https://a", "https://b"]
    assert settings.labels == {"any": "thing"}
    assert settings.ratio == 1.0


def test_arrays_of_tables_are_described_by_item() -> None:
    """Each item has its own keys and origins, and its secrets are masked."""
    loaded = wide(APPS)
    rows = {row.key: row for row in describe(loaded)}
    assert rows["apps[0].id"] == Shown("apps[0].id", "one", "tidelog.toml")
    assert rows["apps[0].secret"] == Shown("apps[0].secret", "********", "tidelog.toml")
    assert rows["apps[0].quota.messages"] == Shown("apps[0].quota.messages", 10, "default")
    assert rows["apps[0].hooks"] == Shown("apps[0].hooks", [], "default")
    assert rows["apps[1].hooks[0].url"].value == "https://hook"
    assert loaded.origins["apps"] == "tidelog.toml"
    assert "s3cret" not in repr(rows)


def test_empty_array_of_tables() -> None:
    """An empty array is shown as empty, with where that was said."""
    assert describe(wide("apps = []"))[0] == Shown("apps", [], "tidelog.toml")
    assert describe(wide(""))[0] == Shown("apps", [], "default")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[apps]]\nidd = 'x'", "key apps[0].idd (tidelog.toml); the nearest known one is apps.id"),
        ("[[apps]]\nid = 'x'\n[[apps]]\nid = ''", "apps[1].id (tidelog.toml): '' is not allowed"),
        ("[[apps]]", "apps[0].id: missing; must be text that is not empty"),
        ("[apps]\nid = 'x'", "apps (tidelog.toml): must be an array of tables, [[apps]]"),
        ("apps = [1]", "apps[0] (tidelog.toml): must be a table"),
        ("[[apps]]\nid = 'x'\nsecret = 7", "apps[0].secret (tidelog.toml): the value is not"),
        ("[[apps]]\nid = 'x'\nquota.messages = 0", "apps[0].quota.messages (tidelog.toml): 0"),
        ("origins = 'a'", "must be a list"),
        ("labels = 1", "must be a dict"),
        ("ratio = 2.0", "must be a number from 0 to 1"),
        ("level = 3", "must be one of 1, 2"),
        ("free = 'x'", "must be an integer"),
    ],
)
def test_refusals_inside_arrays_and_lists(text: str, expected: str) -> None:
    """A refusal names the item by its index and what is allowed there."""
    with pytest.raises(ConfigError) as refused:
        wide(text)
    assert expected in str(refused.value)


@pytest.mark.parametrize("key", ["apps", "origins", "labels"])
def test_lists_can_be_set_in_the_file_only(key: str) -> None:
    """A variable or a flag for something with several values is refused with where to set it."""
    with pytest.raises(ConfigError, match=r"several values; set it in tidelog\.toml"):
        load_as(Wide, {}, {f"TIDELOG_{key.upper()}": "x"}, None)
    with pytest.raises(ConfigError, match=f"flag --{key}"):
        load_as(Wide, {key: "x"}, {}, None)


def test_sections_inside_sections() -> None:
    """A key two sections deep can be set by file, variable and flag."""
    write("[channels]\nmax_batch_events = 3\n[channels.history]\nmax_page_size = 5")
    environ = {"TIDELOG_CHANNELS_HISTORY_ENABLED": "false"}
    loaded = load({"channels.history.retention_seconds": 9}, environ, None)
    channels = loaded.settings.channels
    assert channels.max_batch_events == 3
    assert channels.history == History(enabled=False, max_page_size=5, retention_seconds=9)
    assert loaded.origins["channels.history.max_page_size"] == "tidelog.toml"
    assert (
        loaded.origins["channels.history.enabled"] == "environment TIDELOG_CHANNELS_HISTORY_ENABLED"
    )
    assert (
        loaded.origins["channels.history.retention_seconds"]
        == "flag --channels-history-retention-seconds"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[channels.history]\nmax_page_sise = 1",
            "max_page_sise (tidelog.toml); the nearest known one is channels.history.max_page_size",
        ),
        ("[channels]\nhistory = 5", "channels.history (tidelog.toml): must be a table"),
        (
            "[channels]\npong_timeout_seconds = 0",
            "0 is not allowed; must be a number above 0 to 86400",
        ),
        ('[[apps]]\nid = "a"\nkey = "k"', "apps[0].secret: missing; must be text that is not"),
        (
            '[[apps]]\nid = "a b"\nkey = "k"\nsecret = "s"',
            "apps[0].id (tidelog.toml): 'a b' is not allowed; must be text of the form ^[A-Za-z",
        ),
        ('[[apps]]\nid = "a\\n"\nkey = "k"\nsecret = "s"', "apps[0].id (tidelog.toml)"),
        ('[[apps]]\nid = "a"\nkey = "k"\nsecret = ""', "apps[0].secret (tidelog.toml): the value"),
    ],
)
def test_refusals_inside_the_channels_settings(text: str, expected: str) -> None:
    """Keys and values two levels deep are refused as precisely as others."""
    assert expected in refusal(text)
