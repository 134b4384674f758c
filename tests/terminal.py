"""A stream that says that it is a terminal, and what a small one shows."""

import io

from rich.console import Console, RenderableType


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def picture(drawn: RenderableType) -> str:
    """What is drawn, as text of 80 columns."""
    file = io.StringIO()
    Console(file=file, width=80, color_system=None).print(drawn)
    return file.getvalue()
