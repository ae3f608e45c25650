"""The tests that the table of rules names do check them: an inverted rule is noticed."""

import os
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

from support.sync.rule_table import ROOT, read_rules

DRAWN = 4
"""How many of the inversions are tried, unless TIDELOG_TEST_SOAK_INVERSIONS is `all`, as it is in
`scripts/soak`."""

AT_ONCE = 2
WRONG_PACKAGE = 99
"""Exit code of a run that did not import the copy."""

RUN = f"""
import sys
from pathlib import Path
import pytest
import tidelog
if not Path(tidelog.__file__).is_relative_to(sys.argv[1]):
    sys.exit({WRONG_PACKAGE})
sys.exit(pytest.main(sys.argv[2:]))
"""

SESSION = "sync/protocol/session.py"
PROFILES = "sync/protocol/profiles.py"
TOKENS = "sync/protocol/tokens.py"
PARTITIONS = "sync/protocol/partitions.py"
GUARD = "sync/decide/plugin_guard.py"
RULES = "sync/decide/rules.py"
WIRE = "sync/protocol/wire.py"
FETCHING = "client/sync/fetching.py"
CORE = "client/sync/core.py"
STORE = "client/sync/store.py"
VIEWS = "client/sync/views.py"

OF_SESSION = "tests/unit/sync/protocol/test_session.py::"
OF_PROFILES = "tests/unit/sync/protocol/test_profiles.py::"
OF_TOKENS = "tests/unit/sync/protocol/test_tokens.py::"
OF_PLUGIN = "tests/unit/sync/test_plugin.py::"
OF_PARTITIONS = "tests/unit/sync/protocol/test_partitions.py::"
OF_COLD_START = "tests/unit/client/sync/test_core_cold_start.py::"
OF_FETCHING = "tests/unit/client/sync/test_core_fetching.py::"
OF_VIEWS = "tests/unit/client/sync/test_core_views.py::"
OF_STORE = "tests/unit/client/sync/test_store.py::"
OF_INSIEME = "tests/unit/sync/protocol/test_insieme.py::"
OF_RULES = "tests/integration/sync/decide/test_rules.py::"


class Inversion(NamedTuple):
    """A rule turned into its opposite, and the test that must notice."""

    rule: str
    file: str
    old: str
    new: str
    test: str


INVERSIONS = (
    Inversion(
        "D1",
        SESSION,
        "if len(received.frame) > limits.max_message_bytes:",
        "if len(received.frame) > 4 * limits.max_message_bytes:",
        OF_SESSION + "test_a_message_of_exactly_the_limit_is_taken_and_one_byte_more_is_not",
    ),
    Inversion(
        "D2",
        SESSION,
        "if not isinstance(version, str) or not _VERSION.fullmatch(version):",
        "if not isinstance(version, str):",
        OF_SESSION + "test_a_version_that_is_no_version_is_a_malformed_envelope",
    ),
    Inversion(
        "D4",
        SESSION,
        "if isinstance(timestamp, bool) or not isinstance(timestamp, (int, float)):",
        "if not isinstance(timestamp, (int, float)):",
        OF_SESSION + "test_every_envelope_field_is_required_with_its_type",
    ),
    Inversion(
        "D5",
        SESSION,
        "if hint is not None:",
        "if hint is None:",
        OF_SESSION + "test_an_error_names_the_message_it_answers",
    ),
    Inversion(
        "D6",
        SESSION,
        "if version not in SUPPORTED_VERSIONS:",
        'if not version.startswith("1."):',
        OF_SESSION + "test_support_is_exact_membership",
    ),
    Inversion(
        "D7",
        SESSION,
        "requested_version=version,",
        "",
        OF_SESSION + "test_support_is_exact_membership",
    ),
    Inversion(
        "D8",
        SESSION,
        'if kind == "connect" and self.claims is not None:',
        'if kind == "connect" and self.closed:',
        OF_SESSION + "test_a_second_connect_changes_nothing",
    ),
    Inversion(
        "D9",
        SESSION,
        "while self._inbox and self._may_start(self._inbox[0]) and not self.closed:",
        "while self._inbox and not self.closed:",
        OF_SESSION + "test_messages_are_worked_on_one_after_another",
    ),
    Inversion(
        "D9",
        SESSION,
        "received.may_follow\n",
        "bool(received)\n",
        OF_SESSION + "test_submits_follow_each_other_into_the_queue",
    ),
    Inversion(
        "D9",
        SESSION,
        "received = self._inbox.popleft()",
        "received = self._inbox.pop()",
        OF_SESSION + "test_messages_are_worked_on_one_after_another",
    ),
    Inversion(
        "D10",
        WIRE,
        "AUTH_FAILED = 4401",
        "AUTH_FAILED = 4406",
        OF_SESSION + "test_who_is_not_who_it_says_is_closed",
    ),
    Inversion(
        "D12",
        SESSION,
        'whole_number(payload, "last_committed_id", default=0, least=0)',
        'whole_number(payload, "last_committed_id", least=0)',
        OF_SESSION + "test_the_clients_position_is_only_information",
    ),
    Inversion(
        "D14",
        SESSION,
        "next((name for name in wanted if name in offered), None)",
        "next((name for name in offered if name in wanted), None)",
        OF_SESSION + "test_the_profile_is_that_of_the_truth_table",
    ),
    Inversion(
        "D15",
        TOKENS,
        "algorithms=list(self._algorithms),",
        "algorithms=list(self._algorithms), leeway=3600,",
        OF_TOKENS + "test_an_expiry_is_required_and_without_leeway",
    ),
    Inversion(
        "D16",
        SESSION,
        "        if unix_now >= self.claims.expires_at:",
        "        if unix_now >= self.claims.expires_at + 60:",
        OF_SESSION + "test_a_message_at_the_end_of_the_token_is_not_processed",
    ),
    Inversion(
        "D17",
        SESSION,
        "asserting += [item for item in events if isinstance(item, dict)]",
        "asserting += []",
        OF_SESSION + "test_an_identity_inside_an_item_counts_like_the_payloads",
    ),
    Inversion(
        "D18",
        GUARD,
        "return claims.allows(partition) and self._authorize(",
        "return claims.allows(partition) or self._authorize(",
        OF_PLUGIN + "test_submit_needs_the_token_and_the_plugin",
    ),
    Inversion(
        "D18",
        TOKENS,
        "return [normal_name(value) for value in values]",
        "return list(values)",
        OF_TOKENS + "test_partitions_are_compared_in_their_normal_form",
    ),
    Inversion(
        "D19",
        SESSION,
        "named = {*partitions, *(subscriptions or ())}",
        "named = {*partitions}",
        OF_SESSION + "test_all_names_of_a_sync_are_authorized",
    ),
    Inversion(
        "D20",
        SESSION,
        "                return self._submit(payload, received)",
        "                self._alive_at = now\n"
        "                return self._submit(payload, received)",
        OF_SESSION + "test_only_heartbeats_and_the_handshake_restart_the_timer",
    ),
    Inversion(
        "D21",
        PARTITIONS,
        "len(normal_set(names)) > MAX_PARTITIONS",
        "len(names) > MAX_PARTITIONS",
        OF_PARTITIONS + "test_count_is_taken_after_normalization",
    ),
    Inversion(
        "D22",
        SESSION,
        'names = item.get("partitions")',
        'names = item.get("partitions", [item.get("partition")])',
        OF_SESSION + "test_a_request_that_is_no_request_is_refused_as_a_whole",
    ),
    Inversion(
        "D23",
        SESSION,
        "    if not partitions:",
        "    if partitions is None:",
        OF_SESSION + "test_a_malformed_sync_is_refused",
    ),
    Inversion(
        "D24",
        SESSION,
        "not 0 < len(item_id.encode()) <= MAX_ID_BYTES:",
        "not item_id:",
        OF_SESSION + "test_a_request_that_is_no_request_is_refused_as_a_whole",
    ),
    Inversion(
        "D25",
        RULES,
        "        row = view.dedupe(SCOPE, item.id)\n",
        "        for state in self.states:\n"
        "            if faults := state.tree.check(item.event):\n"
        '                reason = "validation_failed"\n'
        "                return Refuse(Rejected(item.id, reason, tuple(faults), view.now_ms))\n"
        "        row = view.dedupe(SCOPE, item.id)\n",
        OF_RULES + "test_known_ids_are_found_after_rights_and_before_validation",
    ),
    Inversion(
        "D26",
        PARTITIONS,
        "return sorted(faults)",
        "return faults",
        OF_PARTITIONS + "test_faults_are_sorted",
    ),
    Inversion(
        "D37",
        SESSION,
        "and cycle.next_since == action.since",
        "and cycle.next_since >= action.since",
        OF_SESSION + "test_anything_else_opens_a_new_cycle",
    ),
    Inversion(
        "D42",
        SESSION,
        "        action = read_sync(",
        "        cycle, self._cycle = self._cycle, None\n        action = read_sync(",
        OF_SESSION + "test_a_failed_sync_leaves_the_cycle_open",
    ),
    Inversion(
        "D44",
        SESSION,
        "return max(settings.sync_limit_min, min(settings.sync_limit_max, limit))",
        "return max(1, min(settings.sync_limit_max, limit))",
        OF_SESSION + "test_the_page_size_is_clamped",
    ),
    Inversion(
        "D48",
        RULES,
        "        for state in self.states:\n            if found",
        "        for state in self.states[:1]:\n            if found",
        OF_RULES + "test_an_event_must_pass_in_all_its_partitions",
    ),
    Inversion(
        "D50",
        PROFILES,
        "for end in range(len(segments), 0, -1):",
        "for end in range(1, len(segments) + 1):",
        OF_PROFILES + "test_longest_prefix_decides",
    ),
    Inversion(
        "D51",
        PROFILES,
        'yield from _unknown_members("event.payload", payload, known)',
        'yield from _unknown_members("event.payload", {}, known)',
        OF_PROFILES + "test_malformed",
    ),
    Inversion(
        "D65",
        STORE,
        '_file.run("sync_lower_cursors", began, began)',
        '_file.run("sync_lower_cursors", began + 9, began + 9)',
        OF_FETCHING + "test_another_history_is_fetched_from_where_they_part",
    ),
    Inversion(
        "D66",
        SESSION,
        "max_bytes = max(0, min(MAX_PAGE_BYTES, max_bytes))",
        "max_bytes = max(0, max(MAX_PAGE_BYTES, max_bytes))",
        OF_SESSION + "test_the_bytes_of_a_page_are_clamped",
    ),
    Inversion(
        "D54",
        VIEWS,
        "if self.failure is None:",
        "if self.failure is not None:",
        OF_FETCHING + "test_a_commit_that_cannot_happen_starts_over_once",
    ),
    Inversion(
        "D55",
        PROFILES,
        "for error in schema.iter_errors(value):",
        "for error in list(schema.iter_errors(value))[:1]:",
        OF_PROFILES + "test_all_errors_of_the_data",
    ),
    Inversion(
        "D56",
        SESSION,
        "too_many=self._in_flight > limits.max_in_flight_drafts",
        "too_many=drafts > limits.max_in_flight_drafts",
        OF_SESSION + "test_drafts_in_flight_are_counted_on_arrival",
    ),
    Inversion(
        "D58",
        FETCHING,
        "chosen = known or self._new(cursors)",
        "chosen = list(cursors)",
        OF_FETCHING + "test_new_partitions_are_fetched_separately",
    ),
    Inversion(
        "D60",
        FETCHING,
        "(cycle.sync_to is not None and commit.committed_id <= cycle.sync_to)",
        "(cycle.sync_to is None or commit.committed_id <= cycle.sync_to)",
        OF_FETCHING + "test_broadcasts_wait_for_the_watermark",
    ),
    Inversion(
        "D61",
        STORE,
        "return self._store(commits, (), {})",
        "commits = list(commits)\n"
        "        return self._store(\n"
        "            commits, (), {p: c.committed_id for c in commits for p in c.partitions}\n"
        "        )",
        OF_STORE + "test_pages_raise_cursors_and_nothing_else_does",
    ),
    Inversion(
        "D62",
        CORE,
        "if self._cycles.is_covering(name):",
        "if not name:",
        OF_VIEWS + "test_no_snapshot_while_the_partition_is_fetched",
    ),
    Inversion(
        "D64",
        PROFILES,
        '_unknown_members("event", event, ("type", "payload", "meta"))',
        '_unknown_members("event", {}, ("type", "payload", "meta"))',
        OF_PROFILES + "test_unknown_member_of_the_event",
    ),
    Inversion(
        "D67",
        CORE,
        "self._cycles.give_up_states(self.partitions)",
        "self._cycles.try_states()",
        OF_COLD_START + "test_a_state_that_the_log_contradicts_is_replaced_by_events",
    ),
    Inversion(
        "D68",
        SESSION,
        'stops = payload.get("stop_at_rejection", False)',
        'stops = not payload.get("stop_at_rejection", False)',
        OF_SESSION + "test_a_submit_may_stop_at_the_first_rejection",
    ),
    Inversion(
        "D69",
        PROFILES,
        '_object("event.meta", event["meta"])',
        '_text("event.meta", event["meta"])',
        OF_PROFILES + "test_meta_beside_the_payload_is_carried",
    ),
    Inversion(
        "D70",
        TOKENS,
        "return prefix.startswith(self.prefixes)",
        "return self.allows(prefix)",
        OF_INSIEME + "test_who_may_not_connect_is_told_and_closed",
    ),
    Inversion(
        "D71",
        "sync/protocol/insieme/events.py",
        "inner.schema in (*TREE_ACTIONS, VERBATIM)",
        "inner.schema in ()",
        OF_INSIEME + "test_what_the_dialect_cannot_say_comes_as_it_is",
    ),
    Inversion(
        "D73",
        "sync/protocol/insieme/form.py",
        'if problem.code == "rate_limited":',
        'if problem.code == "":',
        OF_INSIEME + "test_what_should_be_tried_again_ends_the_connection",
    ),
    Inversion(
        "D74",
        SESSION,
        "self._alive_at = max(self._alive_at, heard_at)",
        "self._alive_at = max(self._alive_at, 0.0)",
        OF_INSIEME + "test_any_frame_keeps_the_connection_and_silence_is_asked",
    ),
)


def run_with(directory: Path, tests: list[str], inversion: Inversion | None) -> tuple[int, str]:
    """Run tests on a copy of the package with an inversion in it; exit code and output."""
    source = directory / "src"
    # With what is compiled already, and without what somebody is compiling at this moment.
    shutil.copytree(
        ROOT / "src/tidelog", source / "tidelog", ignore=shutil.ignore_patterns("*.pyc.*")
    )
    if inversion is not None:
        path = source / "tidelog" / inversion.file
        text = path.read_text(encoding="utf-8")
        assert text.count(inversion.old) == 1, inversion
        path.write_text(text.replace(inversion.old, inversion.new), encoding="utf-8")
        Path(cache_from_source(str(path))).unlink(missing_ok=True)
    options = ["-q", "-x", "-p", "no:cacheprovider", f"--basetemp={directory / 'tmp'}"]
    options += ["-p", "pytest_asyncio.plugin"]  # all they need; loading every plug-in is slow
    paths = os.pathsep.join([str(source), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(directory), *options, *tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def drawn() -> list[Inversion]:
    """The inversions to try in this run."""
    if os.environ.get("TIDELOG_TEST_SOAK_INVERSIONS") == "all":
        return list(INVERSIONS)
    return random.Random(2026).sample(INVERSIONS, DRAWN)


def test_inversions_name_tests_of_their_rule() -> None:
    """The test that must notice is one that the table names for that rule."""
    rules = read_rules()
    assert [each for each in INVERSIONS if each.test not in rules[each.rule].tests] == []


def test_every_inversion_can_be_made() -> None:
    """What it replaces is in its file, once; most are tried only in the soak."""
    package = ROOT / "src/tidelog"
    counts = {
        each: (package / each.file).read_text(encoding="utf-8").count(each.old)
        for each in INVERSIONS
    }
    assert [each for each, count in counts.items() if count != 1] == []


def test_inverted_rules_are_noticed(tmp_path: Path) -> None:
    """The named test fails on every drawn inversion, by a failed test and nothing else."""
    inversions = drawn()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = [
            pool.submit(run_with, tmp_path / str(number), [each.test], each)
            for number, each in enumerate(inversions)
        ]
    unnoticed = []
    for inversion, run in zip(inversions, runs, strict=True):
        code, output = run.result()
        if code != 1 or " failed" not in output:
            unnoticed.append((inversion.rule, inversion.test, code, output[-500:]))
    assert unnoticed == []


def test_the_copy_itself_passes(tmp_path: Path) -> None:
    """Without an inversion the same tests pass on a copy: it is the inversion that fails."""
    code, output = run_with(tmp_path, sorted({each.test for each in drawn()}), None)
    assert code == 0, output
