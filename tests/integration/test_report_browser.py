"""The report in a real browser: it loads nothing, fits the window, is legible day and night, and nothing overlaps."""

from pathlib import Path

import pytest

from streaming.report.page import render
from tests.browser import PHONE, WIDE, Browser, contrast
from tests.unit.report_sample import full_report

_OVERLAPS = """
const found = [];
for (const plot of document.querySelectorAll('svg')) {
  const texts = [...plot.querySelectorAll('text')].filter(one => one.textContent.trim());
  const boxes = texts.map(one => one.getBoundingClientRect());
  for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
    const a = boxes[i], b = boxes[j];
    if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
        Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1)
      found.push(texts[i].textContent + ' | ' + texts[j].textContent);
  }
}
return found;
"""
_OUTSIDE = """
return [...document.querySelectorAll('svg text')].filter(one => {
  const box = one.getBoundingClientRect(), plot = one.closest('svg').getBoundingClientRect();
  return box.left < plot.left - 2 || box.right > plot.right + 2 || box.bottom > plot.bottom + 2;
}).map(one => one.textContent);
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(full_report()), encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_loads_nothing_fits_and_nothing_overlaps(
    browser: Browser, address: str, size: tuple[int, int], dark: bool
) -> None:
    browser.open(address, size=size, dark=dark)
    assert [url for url in browser.requested() if url != "about:blank"] == [address]
    assert browser.complaints() == []
    assert browser.script("return document.documentElement.scrollWidth") <= size[0]
    assert len(browser.all("svg")) == 7
    assert all(plot.size["width"] > 250 and plot.size["height"] > 50 for plot in browser.all("svg"))
    assert browser.script(_OVERLAPS) == []
    assert browser.script(_OUTSIDE) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("selector", ["p", "td", "figcaption p", ".bad dd", "svg text"])
def test_text_stands_out_from_the_page(browser: Browser, address: str, selector: str, dark: bool) -> None:
    """4.5 to 1, as WCAG 2.2 (1.4.3) asks of text of this size."""
    browser.open(address, dark=dark)
    text = browser.style(selector, "fill" if selector.startswith("svg") else "color")
    assert contrast(text, browser.style("body", "background-color")) >= 4.5
