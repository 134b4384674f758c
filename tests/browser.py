"""Debian's Chromium without a screen, driven through Debian's chromedriver: nothing is downloaded, nobody asked."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.programs import find
from tests.waiting import DEADLINE_S, wait_until

WIDE, PHONE = (1280, 1000), (360, 740)


class Browser:
    """One window. What it does with the network and what it complains of is recorded."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str, *, size: tuple[int, int] = WIDE, dark: bool = False) -> None:
        """Load a page as a window of that size shows it; what was recorded before is forgotten."""
        self.resize(size)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(url)

    def resize(self, size: tuple[int, int]) -> None:
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 640}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def script(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)  # type: ignore[no-untyped-call]

    def text(self, selector: str) -> str:
        return self.driver.find_element(By.CSS_SELECTOR, selector).text

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def style(self, selector: str, name: str) -> str:
        return str(
            self.script("return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]", selector, name)
        )

    def wait(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, lambda: f"{what}. The page says: {self.text('body')[:500]}", DEADLINE_S)

    def complaints(self) -> list[str]:
        """What its console says since the page was opened; reading it takes it away."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requested(self) -> list[str]:
        """Every URL that was asked for since the page was opened; reading it takes them away."""
        events = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    def save(self, path: str) -> None:
        """A picture of the whole page."""
        size = self.script("return [document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
        self.resize((int(size[0]), int(size[1])))
        self.driver.save_screenshot(path)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a file's tests."""
    options = webdriver.ChromeOptions()
    options.binary_location = find("chromium", "chromium chromium-driver")
    for argument in (
        "--headless=new",
        "--no-sandbox",  # tests may run as root, for whom it does not start otherwise
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--no-proxy-server",
        "--hide-scrollbars",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # The driver is named, so that selenium does not look for one, which it would do over the network.
    driver = webdriver.Chrome(options=options, service=Service(find("chromedriver", "chromium-driver")))
    try:
        driver.set_page_load_timeout(DEADLINE_S)
        yield Browser(driver)
    finally:
        driver.quit()


def luminance(colour: str) -> float:
    """Relative luminance of ``rgb(…)``, as WCAG 2 defines it."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """How much two colours differ, as WCAG 2 counts it."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
