"""What the browser tests know of pages: their sizes, how long to wait, what they complain of."""

from playwright.async_api import Page, ViewportSize

DESKTOP: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 360, "height": 740}

WAIT_MS = 30_000
"""Longest wait for anything a page should show; a loaded machine takes its time."""


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


async def serious_problems(page: Page, axe: str) -> list[tuple[str, list[str]]]:
    """What axe-core finds in a page that keeps somebody from using it."""
    await page.evaluate(axe)
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (problem["id"], [each["html"][:200] for each in problem["nodes"]])
        for problem in found["violations"]
        if problem["impact"] in {"serious", "critical"}
    ]
