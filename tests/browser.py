"""A page as a browser shows it: Playwright drives Debian's chromium, and everything odd that happens is kept.

Where one of the two is missing the tests are skipped, except where TUTTI_REQUIRE_BROWSER is set: there they fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class View:
    """An open page, what it asked for, and what it complained about."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def ask(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)


@contextmanager
def start_browser() -> Iterator[Browser]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _do_without("the package playwright is not installed")
    program = shutil.which("chromium")
    if program is None:
        _do_without("there is no chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=list(_OPTIONS))
        yield browser
        browser.close()


def _do_without(reason: str) -> NoReturn:
    if os.environ.get("TUTTI_REQUIRE_BROWSER"):
        pytest.fail(f"TUTTI_REQUIRE_BROWSER is set, but {reason}")
    pytest.skip(reason)


@contextmanager
def open_page(browser: Browser, path: Path, width: int, dark: bool = False, paper: bool = False) -> Iterator[View]:
    """The file in a window so many pixels wide, or on paper of that width."""
    scheme: Any = "dark" if dark else "light"
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    view = View(context.new_page())
    view.page.on("request", lambda request: view.requests.append(request.url))
    view.page.on("pageerror", lambda error: view.complaints.append(str(error)))
    view.page.on("console", lambda message: _note(view, message))
    if paper:
        view.page.emulate_media(media="print")
    view.page.goto(path.as_uri())
    yield view
    context.close()


def _note(view: View, message: ConsoleMessage) -> None:
    if message.type in ("error", "warning"):
        view.complaints.append(message.text)
