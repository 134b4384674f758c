"""The runbook as a page, so that a problem's link leads to what to do about it, also where there is no network.

``docs/runbook.md`` is packed beside this module; a checkout has it in ``docs``. What it uses of Markdown is headings,
paragraphs, lists, tables, code in blocks and in lines, bold words and links.
"""

import html
import re
from pathlib import Path
from typing import Final

from gateway.http.page import Document, read, style_hash

_FOLDER: Final = Path(__file__).parent
_PLACES: Final = (_FOLDER / "runbook.md", _FOLDER.parents[2] / "docs" / "runbook.md")
_HEADING: Final = re.compile(r"(#{1,4}) +(.+?)(?: +#+)?")
_ITEM: Final = re.compile(r"([-*]|\d+\.) +(.*)")
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Runbook</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main class="runbook">
<p><a href="./">Back to the status page</a></p>
{body}
</main>
</body>
</html>
"""


def runbook_page() -> Document | None:
    """The page; None where the installation has no runbook. Blocks for two files."""
    for place in _PLACES:
        try:
            text = place.read_text(encoding="utf-8")
        except OSError:
            continue
        style = read("page.css")
        policy = (
            f"default-src 'none'; style-src {style_hash(style)}; img-src data:; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        return Document(_PAGE.format(style=style, body=render(text)), policy)
    return None


def render(markdown: str) -> str:
    """The text as HTML; each heading has the id that a link to it has elsewhere."""
    out: list[str] = []
    block: list[str] = []
    fence = False

    def close() -> None:
        if block:
            out.append(_block(block))
            block.clear()

    for line in markdown.splitlines():
        if line.lstrip().startswith("```"):
            if fence:
                out.append(f"<pre>{html.escape(chr(10).join(block))}</pre>")
                block.clear()
            else:
                close()
            fence = not fence
        elif fence:
            block.append(line)
        elif heading := _HEADING.fullmatch(line):
            close()
            level, text = len(heading[1]), heading[2]
            out.append(f'<h{level} id="{_slug(text)}">{_inline(text)}</h{level}>')
        elif not line.strip() and not (block and block[0].startswith("    ")):
            close()
        else:
            if block and block[0].startswith("    ") and line.strip() and not line.startswith("    "):
                close()
            block.append(line)
    close()
    return "\n".join(out)


def _block(lines: list[str]) -> str:
    """The HTML of a paragraph, list, table or indented code: lines without an empty one between them."""
    first = lines[0]
    if first.startswith("    "):
        return f"<pre>{html.escape(chr(10).join(line[4:] for line in lines).rstrip())}</pre>"
    if first.startswith("|"):
        return _table(lines)
    if _ITEM.match(first):
        return _list(lines)
    return f"<p>{_inline(' '.join(line.strip() for line in lines))}</p>"


def _list(lines: list[str]) -> str:
    """A list; a line without a mark continues its item."""
    items: list[str] = []
    for line in lines:
        found = _ITEM.match(line)
        if found:
            items.append(found[2])
        else:
            items[-1] += f" {line.strip()}"
    tag = "ol" if lines[0][0].isdigit() else "ul"
    return f"<{tag}>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</{tag}>"


def _table(lines: list[str]) -> str:
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        for line in lines
        if not re.fullmatch(r"[|:\s-]+", line)
    ]
    html_rows = ["".join(f"<td>{_inline(cell)}</td>" for cell in row) for row in rows]
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in html_rows)}</table>"


def _inline(text: str) -> str:
    """Code, bold words and links within a line. A link to a heading of this page stays one; others become text."""
    parts = html.escape(text, quote=False).split("`")
    for at, part in enumerate(parts):
        if at % 2:
            parts[at] = f"<code>{part}</code>"
        else:
            found = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", part)
            found = re.sub(r"\[([^\]]+)\]\((#[\w-]+)\)", r'<a href="\2">\1</a>', found)
            parts[at] = re.sub(r"\[([^\]]+)\]\(([^)]+)\)", r"\1 (\2)", found)
    return "".join(parts)


def _slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return html.escape(kept.replace(" ", "-"))
