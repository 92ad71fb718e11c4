"""The page in a browser, as a person uses it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.unit.web.web_kit import FakeJobs
from tidegate.web.rest import RestServer


def headless_browser(home: Path) -> Any:
    """Chromium of the system, with its files in `home`. Whoever made it quits it."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run"):
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={home}")
    options.add_argument("--window-size=1280,900")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    found.set_page_load_timeout(30)
    return found


class Page:
    def __init__(self, browser: Any, url: str, token: str, job_id: str) -> None:
        self.browser, self.url, self.token, self.job_id = browser, url, token, job_id

    def open(self, token: str | None = None) -> None:
        """Log in with a token in the address, as `tidegate ui` prints it."""
        self.browser.get("about:blank")
        self.browser.get(f"{self.url}/#token={token or self.token}")
        self.wait(lambda: "Jobs" in self.text)

    @property
    def text(self) -> str:
        return str(self.browser.execute_script("return document.body.innerText"))

    def wait(self, what: Callable[[], Any], within_s: float = 20.0) -> Any:
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            found = what()
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"it did not come; the page says: {self.text}")

    def all(self, selector: str) -> list[Any]:
        return list(self.browser.find_elements("css selector", selector))

    def texts(self, selector: str) -> list[str]:
        """Of all elements that there are at one moment: what they say changes with the job."""
        code = "return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText ?? e.textContent)"
        return list(self.script(code, selector))

    def key(self, key: str) -> Any:
        return self.wait(lambda: self.all(f'[data-key="{key}"]'))[0]

    def type(self, key: str, text: str) -> None:
        """Into a field, as soon as it takes it: one that is being laid out does not."""
        from selenium.common.exceptions import ElementNotInteractableException, StaleElementReferenceException

        def taken() -> bool:
            try:
                self.key(key).send_keys(text)
            except (ElementNotInteractableException, StaleElementReferenceException):
                return False
            return True

        self.wait(taken, 60)

    def press(self, key: str) -> None:
        self.script("document.querySelector(arguments[0]).dispatchEvent(new MouseEvent('click', {bubbles: true}))", key)

    def script(self, code: str, *arguments: Any) -> Any:
        return self.browser.execute_script(code, *arguments)

    def tab(self, name: str) -> None:
        self.wait(lambda: self.all(f'[data-key="tab-{name}"]'))
        self.press(f'[data-key="tab-{name}"]')

    def to_job(self) -> None:
        job = self.job_id
        self.wait(lambda: self.all(f'[data-key="job-{job}"]'))
        self.press(f'[data-key="job-{job}"]')
        self.wait(lambda: self.all("svg.graph .vertex"))

    @property
    def complaints(self) -> list[str]:
        return [e["message"] for e in self.browser.get_log("browser") if e["level"] == "SEVERE"]


class FakePage(Page):
    """Of a fake of a job, which the test changes."""

    def __init__(self, browser: Any, rest: RestServer, jobs: FakeJobs) -> None:
        super().__init__(browser, rest.start(), rest.token, jobs.shown.job_id)
        self.rest, self.jobs = rest, jobs

    @classmethod
    def over(cls, browser: Any, jobs: FakeJobs) -> Iterator[FakePage]:
        """For a fixture."""
        rest = RestServer(jobs)
        found = cls(browser, rest, jobs)
        browser.get_log("browser")
        yield found
        browser.get("about:blank")
        rest.close()
