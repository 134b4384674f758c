"""The command lines of what is done to the lake beside the jobs: ``gateway stream status``, ``maintain``… No pyspark.

Tool NAME is the module ``streaming.NAME`` with ``run(spark, settings, arguments) -> int``, an exit status. Of
``arguments`` it has what :func:`add_tool_arguments` adds. It prints its product to standard output.
"""

from __future__ import annotations

__all__ = ["TOOLS", "add_tool_arguments"]

from typing import TYPE_CHECKING, Final

from streaming.options import add_common_arguments

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Mapping


def _add_nothing(_parser: ArgumentParser) -> None:
    """The common options are all it needs."""


TOOLS: Final[Mapping[str, tuple[str, Callable[[ArgumentParser], None]]]] = {}
"""Name -> what it does, for ``--help``, and what adds its own options."""


def add_tool_arguments(parser: ArgumentParser, tool: str) -> None:
    """Adds the tool's options and those all have in common."""
    add_common_arguments(parser)
    TOOLS[tool][1](parser)
