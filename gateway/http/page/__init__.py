"""The status page: one HTML document with everything in it, which asks ``/status`` every two seconds.

``page.html``, ``page.css`` and the scripts lie beside this module and are put together when somebody asks for the page.
Nothing is fetched but ``/status``, nothing is stored, and what comes from outside (topics, reasons, client ids) becomes
text, never markup: the Content-Security-Policy allows these very scripts and styles alone, by their hashes, and trusted
types keep every string out of the HTML parser.

    runbook.py   the runbook as a page, so that a problem's link leads to what to do about it
"""

__all__ = ["Document", "load", "read", "style_hash"]

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent
_STYLE: Final = "/* page.css */"
_SCRIPT: Final = "/* page.js */"
_SCRIPTS: Final = ("parts.js", "flow.js", "grid.js", "tables.js", "page.js")  # one after the other they are one script


@dataclass(frozen=True, slots=True)
class Document:
    """An HTML document, and the Content-Security-Policy that fits it."""

    html: str
    policy: str


def status_page() -> Document:
    """The page, from its files. Blocks for a few small files."""
    html, style = read("page.html"), read("page.css")
    script = "\n".join(map(read, _SCRIPTS))
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {style_hash(script)}",
            f"style-src {style_hash(style)}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )
    return Document(html.replace(_STYLE, style, 1).replace(_SCRIPT, script, 1), policy)


def read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def style_hash(text: str) -> str:
    """What a Content-Security-Policy calls a script or style with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
