"""What the browser tests know of pages: their sizes, how long to wait, what they complain of."""

from typing import Any

from playwright.async_api import Page, ViewportSize

DESKTOP: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 360, "height": 740}

WAIT_MS = 30_000
"""Longest wait for anything a page should show; a loaded machine takes its time."""

RULES_OF_COLOUR = ["color-contrast", "link-in-text-block"]
"""All rules of axe-core about colours, of those that it checks unless told otherwise."""


class Console:
    """What a page complained about."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.ignored: tuple[str, ...] = ()
        """Parts of complaints that a test provokes."""

    def watch(self, page: Page) -> None:
        """Note errors and warnings."""
        page.on("console", lambda said: self._note(said.type, said.text))
        page.on("pageerror", lambda error: self._note("error", str(error)))

    def _note(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"} and not any(part in text for part in self.ignored):
            self.complaints.append(text)


async def serious_problems(page: Page, axe: str, theme: str) -> list[tuple[str, list[str]]]:
    """What axe-core finds in a page that keeps somebody from using it.

    A page has other colours in its dark theme and nothing else, so only those are judged then.
    """
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(axe)
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if theme == "dark":
        options["runOnly"] = {"type": "rule", "values": RULES_OF_COLOUR}
    found = await page.evaluate("options => axe.run(document, options)", options)
    return [
        (problem["id"], [each["html"][:200] for each in problem["nodes"]])
        for problem in found["violations"]
        if problem["impact"] in {"serious", "critical"}
    ]
