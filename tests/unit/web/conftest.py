from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.web.page_kit import headless_browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless Chromium of the system."""
    if shutil.which("chromedriver") is None or not (shutil.which("chromium") or shutil.which("google-chrome")):
        text = "no browser: apt-get install chromium chromium-driver"
        if os.environ.get("TIDEGATE_REQUIRE_COMPONENTS"):
            pytest.fail(text)
        pytest.skip(text)
    pytest.importorskip("selenium.webdriver", reason="pip install selenium")
    found = headless_browser(tmp_path_factory.mktemp("chromium"))
    yield found
    found.quit()
