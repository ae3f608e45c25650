"""Whether this process runs for a CI job: there a machine is made anew for every run."""

from collections.abc import Mapping

VARIABLES = (
    *("CI", "BUILDKITE", "CIRCLECI", "GITHUB_ACTIONS", "GITLAB_CI", "JENKINS_URL"),
    *("TEAMCITY_VERSION", "TF_BUILD", "TRAVIS"),
)
"""Each is set by one or several CI services."""

_FALSE = ("", "0", "false", "no")


def is_ci(environ: Mapping[str, str]) -> bool:
    """Whether one of the variables says so; `CI=false` does not."""
    return any(environ.get(name, "").lower() not in _FALSE for name in VARIABLES)
