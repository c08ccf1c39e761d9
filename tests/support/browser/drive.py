"""What must hold of each page in a browser. Run by `tests.support.browser` in a Python with playwright and axe-core.

    python -m tests.support.browser.drive URL FOLDER

Each page, light and dark, in a wide and a narrow window: nothing in the console, no request to another host, nothing
wider than the window, and no serious finding of axe-core. Then a person without a mouse finds a topic, and a key in it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

PAGES = (
    "/",
    "/ui/topics/users",
    "/ui/topics/users/partitions/0?exact=true",
    "/ui/topics/users/key?key=user-7&format=json",
    "/ui/topics/users/key?key=nosuch",
    "/ui/topics/users/records?partition=1&offset=300",
    "/ui/topics/hostile/records?partition=0&offset=0",
    "/ui/topics/hostile/key?key=" + quote("<img src=x onerror=alert(1)>\"'&"),
    "/ui/topics/damaged",
    "/ui/topics/damaged/partitions/0",
    "/ui/topics/wide",
    "/ui/topics/wide?page=10",
    "/ui/topics/nosuch",
    "/ui/sinks",
)
FAILS = frozenset({"/ui/topics/damaged/partitions/0", "/ui/topics/nosuch"})
PICTURES = {"/": "serve-topics", PAGES[1]: "serve-map", PAGES[3]: "serve-key"}
SIZES = {"wide": (1200, 800), "narrow": (400, 800)}
TABS_MAX = 60


class Findings:
    """What was wrong, with where."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, where: str, what: str) -> None:
        self.found.append(f"{where}: {what}")


def watch(page: Page, url: str, where: str, findings: Findings) -> None:
    """Collect what the console says, dialogs, and requests to other hosts."""
    is_failing = any(where.startswith(each) for each in FAILS)
    page.on("pageerror", lambda error: findings.add(where, f"error: {error}"))
    page.on("dialog", lambda dialog: findings.add(where, f"dialog: {dialog.message}"))
    page.on(
        "console",
        lambda said: None if is_failing and "status of" in said.text else findings.add(where, f"console: {said.text}"),
    )
    page.on(
        "request",
        lambda asked: (
            None
            if asked.url.startswith("data:") or urlsplit(asked.url).netloc == urlsplit(url).netloc
            else findings.add(where, f"asks {asked.url}")
        ),
    )


def look(browser: Browser, url: str, folder: Path, findings: Findings) -> None:
    """Look at every page in every way."""
    axe = Axe()
    for scheme in ("light", "dark"):
        for size, (width, height) in SIZES.items():
            context = browser.new_context(
                color_scheme=scheme, viewport={"width": width, "height": height}, bypass_csp=True
            )
            for path in PAGES:
                where = f"{path} {scheme} {size}"
                page = context.new_page()
                watch(page, url, where, findings)
                begun_s = time.monotonic()
                page.goto(url + path)
                took_s = time.monotonic() - begun_s
                if page.evaluate("document.documentElement.scrollWidth > window.innerWidth + 1"):
                    findings.add(where, "is wider than the window")
                for violation in axe.run(page).response["violations"]:
                    if violation["impact"] in {"serious", "critical"}:
                        first = violation["nodes"][0]["html"][:150]
                        findings.add(where, f"axe: {violation['id']}: {violation['help']}: {first}")
                if scheme == "light" and size == "wide":
                    print(f"{path}: {1000 * took_s:.0f} ms, {len(page.content()):,} characters")
                    if path in PICTURES:
                        page.screenshot(path=folder / f"{PICTURES[path]}.png")
                page.close()
            context.close()


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(TABS_MAX):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", f"nobody sees that {selector} has the focus"
            return
    raise AssertionError(f"{selector} cannot be reached by keyboard")


def by_keyboard(browser: Browser, url: str) -> None:
    """Find a topic, and a key in it, without a mouse; the policy that forbids scripts holds."""
    page = browser.new_page()
    page.goto(url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    tab_to(page, "a[href='/ui/topics/users']")
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/topics/users")
    tab_to(page, "input[name=key]")
    page.keyboard.type("user-7")
    page.keyboard.press("Enter")
    page.wait_for_url("**/key?key=user-7*")
    assert page.locator("tbody tr").count() > 0
    page.close()


def main() -> None:
    """Drive, and print what is wrong."""
    url, folder = sys.argv[1].rstrip("/"), Path(sys.argv[2])
    findings = Findings()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        by_keyboard(browser, url)
        look(browser, url, folder, findings)
        browser.close()
    print("\n".join(findings.found) or f"{len(PAGES)} pages, light and dark, wide and narrow: nothing is wrong")
    sys.exit(1 if findings.found else 0)


if __name__ == "__main__":
    main()
