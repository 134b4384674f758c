"""The runbook on the HTTP port: what Markdown it uses becomes HTML, and headings can be linked to."""

import re
from pathlib import Path

import pytest

from gateway.http.page import runbook, status_page

ROOT = Path(__file__).resolve().parents[2]
CASES = {
    "a heading with its anchor": ("## broker-silent", '<h2 id="broker-silent">broker-silent</h2>'),
    "a heading of words": ("# What to do, and when", '<h1 id="what-to-do-and-when">What to do, and when</h1>'),
    "a paragraph over lines": ("one\ntwo", "<p>one two</p>"),
    "code, bold, links": (
        "Run `a < b`, **now**; see [below](#dead-letters) and [more](spool.md).",
        (
            "<p>Run <code>a &lt; b</code>, <strong>now</strong>; see "
            '<a href="#dead-letters">below</a> and more (spool.md).</p>'
        ),
    ),
    "no markup of its own": ("<script>x</script> & y", "<p>&lt;script&gt;x&lt;/script&gt; &amp; y</p>"),
    "a list": ("- one\n  more\n- two", "<ul><li>one more</li><li>two</li></ul>"),
    "a numbered list": ("1. one\n2. two", "<ol><li>one</li><li>two</li></ol>"),
    "code by indentation": ("    a <b>\n\n    c\nafter", "<pre>a &lt;b&gt;\n\nc</pre>\n<p>after</p>"),
    "code between fences": ("```sh\n## not a heading\n\n- x\n```", "<pre>## not a heading\n\n- x</pre>"),
    "a table": (
        "| a | b |\n|---|---|\n| `c` | d |",
        "<table><tr><td>a</td><td>b</td></tr><tr><td><code>c</code></td><td>d</td></tr></table>",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_markdown_becomes_html(name: str) -> None:
    markdown, expected = CASES[name]
    assert runbook.render(markdown) == expected


def test_the_runbook_itself_is_a_page_with_every_heading_to_link_to() -> None:
    page = runbook.runbook_page()
    assert page is not None
    headings = re.findall(r"^### (.+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert len(headings) > 30
    for heading in headings:
        assert f'<h3 id="{heading}">{heading}</h3>' in page.html
    ids = set(re.findall(r' id="([^"]+)"', page.html))
    assert set(re.findall(r' href="#([^"]+)"', page.html)) <= ids
    left = re.sub(r"<(pre|code)>.*?</\1>", "", page.html.partition("<body>")[2], flags=re.DOTALL)
    assert not re.search(r"\*\*|`|^#", left, re.MULTILINE), "Markdown that was not understood"


def test_the_pages_own_parts_are_all_put_in() -> None:
    page = status_page()
    assert "/* page" not in page.html
    assert page.html.count("<script>") == page.html.count("</script>") == 1
    assert not re.search(r"(src|href)=\"(https?:)?//", page.html), "something is fetched from elsewhere"
    assert "'unsafe" not in page.policy


def test_the_pages_files_are_as_wide_as_the_others() -> None:
    """What ruff does not look at."""
    for path in (ROOT / "gateway" / "http" / "page").iterdir():
        if path.suffix in {".html", ".css", ".js"}:
            wide = [number for number, line in enumerate(path.read_text().splitlines(), 1) if len(line) > 120]
            assert wide == [], f"{path.name} is wider than 120 in these lines"
