"""The parser of every command: its options, help that fits the terminal, and errors with the usage of their command."""

import argparse
import contextlib
import difflib
import importlib
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from config.prose import fitted, lines_of

_COLUMNS: Final = re.compile(r"( *)(\S+(?: \S+)*)( {2,})?(.*)")  # a list's line: a name and its text
_PROGRAMS: Final = {"gateway", "curl"}
_PARAGRAPHS: Final = re.compile(r"\n[ ]*\n")
_INVALID_CHOICE: Final = re.compile(r"(argument .+: )invalid choice: '(.*)' \(choose from .+\)", re.DOTALL)
_ELSEWHERE: Final = {  # names of other tools, and of a job of earlier versions
    "ingest": "silver",
    "status": "doctor",
    "check": "config",
    "lint": "routes",
    "start": "run",
    "stop": "retire",
    "lag": "groups",
    "consumers": "groups",
    "brokers": "cluster",
    "consume": "tail",
    "validate": "config",
    "show": "config",
    "diff": "compare",
    "send": "command",
}


class _Formatter(argparse.HelpFormatter):
    """Fills prose to the terminal's width. Indented lines, such as examples, stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(self._paragraph(one, width, indent) for one in _PARAGRAPHS.split(text.strip("\n")))

    def _paragraph(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        prose: list[str] = []
        for line in text.splitlines():
            if line.startswith(" "):
                lines += self._filled(prose, width, indent)
                prose = []
                lines += self._indented(indent + line, width)
            else:
                prose.append(line)
        return "\n".join(lines + self._filled(prose, width, indent))

    def _format_usage(self, usage: str | None, actions: Iterable[argparse.Action], *more: Any) -> str:
        """The usage of argparse, with groups of options wrapped to the terminal's width too."""
        lines: list[str] = []
        for line in super()._format_usage(usage, _in_order(actions), *more).splitlines():
            start = "" if line.startswith("usage") or len(line) <= self._width else " " * 8
            lines += (
                [line] if len(line) <= self._width else lines_of(line.strip(), self._width, first=start, later=" " * 8)
            )
        return "\n".join(lines) + "\n"

    @staticmethod
    def _indented(line: str, width: int) -> list[str]:
        """A line of an example or a list, broken where it is wider than the terminal. A command is continued with a
        backslash."""
        parts = _COLUMNS.fullmatch(line)
        if len(line) <= width or parts is None:
            return [line]
        start, first, gap, rest = parts.groups()
        later = " " * (len(start) + 4)
        if first.split()[0] in _PROGRAMS or (first.startswith("--") and not gap):
            lines = [start + first]
            if len(lines[0]) > width:
                at = lines[0].rfind(" --", 0, width - 2)
                if at > len(start) + 12:
                    lines = [f"{lines[0][:at]} \\", later + lines[0][at + 1 :]]
            return lines + lines_of(rest, width, first=f"{later}# ", later=f"{later}# ")
        if gap:
            later = " " * (len(start) + len(first) + len(gap))
        return lines_of(line, width, later=later if gap else start)

    @staticmethod
    def _filled(prose: list[str], width: int, indent: str) -> list[str]:
        return lines_of(" ".join(prose), width, first=indent, later=indent)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return lines_of(" ".join(text.split()), width)

    def add_arguments(self, actions: Iterable[argparse.Action]) -> None:
        super().add_arguments(_in_order(actions))


def _in_order(actions: Iterable[argparse.Action]) -> list[argparse.Action]:
    """The options of all commands come last."""
    return sorted(actions, key=lambda one: one.dest in {"json", "config"})


class Parser(argparse.ArgumentParser):
    """A parser whose subcommands are of its class. Wrong arguments end the process with status 2, the usage of that
    command, and the nearest name of a misspelt one."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        named.setdefault("formatter_class", _Formatter)
        super().__init__(*arguments, **named)

    def add_commands(self, metavar: str = "COMMAND") -> "Commands":
        """Make this the parser of a group, whose commands are to be added."""
        title = f"{metavar.lower()}s"
        made: Any = self.add_subparsers(action=Commands, title=title, metavar=metavar, required=True)
        assert isinstance(made, Commands)
        return made

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses like argparse, but refuses unknown arguments here, with this command's usage. argparse leaves that to
        the outermost parser."""
        first = args[0] if args and self._commands() is not None else ""
        if first.startswith("--") and not any(one.startswith(first) for one in self._option_string_actions):
            self.error(f"{first} is no option of {self.prog} itself: options come after the command")
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown))
        return known, unknown

    def error(self, message: str) -> NoReturn:
        """End with status 2. A group without its command prints its help, which lists the commands."""
        commands = self._commands()
        if commands is not None and message.endswith(f"required: {commands.metavar}"):
            self._print_message(self.format_help() + "\n")
            self.exit(2, f"{self.prog}: name one of these commands\n")
        choice = _INVALID_CHOICE.fullmatch(message)
        if commands is not None and choice is not None:
            message = f"there is no command {choice[2]!r}{_nearest(choice[2], commands.choices or ())}"
        self.print_usage(sys.stderr)
        self.exit(2, fitted(f"{self.prog}: {message} ({self.prog} --help tells more)\n", sys.stderr))

    def _commands(self) -> argparse.Action | None:
        # argparse has no public name for the action that holds the subcommands.
        return next((one for one in self._actions if one.nargs == argparse.PARSER), None)

    def _unknown(self, unknown: list[str]) -> str:
        told = []
        value = False
        for one in unknown:
            if value and not one.startswith("-"):
                value = False  # the value of an unknown option is no further mistake
                continue
            value = one.startswith("-") and "=" not in one
            if one.startswith("-"):
                told.append(f"there is no option {one}{_nearest(one.partition('=')[0], self._option_string_actions)}")
            else:
                told.append(f"{one!r} is one argument too many")
        return "; ".join(told)


class Commands(argparse._SubParsersAction):  # type: ignore[type-arg]  # noqa: SLF001 - what add_subparsers makes
    """The commands of a group."""

    config = "the gateway's settings"  # help of its commands' --config

    def later(self, module: str, text: str) -> None:
        """Add the command of a module, which is imported when the command is chosen. It has the command's name, with _
        after one that Python has taken."""
        name = module.rpartition(".")[2].rstrip("_")
        self._choices_actions.append(self._ChoicesPseudoAction(name, (), text))
        self._name_parser_map[name] = module

    def load(self, name: str) -> Parser:
        """Take the parser of a command, of one added with ``later`` also."""
        if isinstance(module := self._name_parser_map[name], str):
            del self._name_parser_map[name]
            importlib.import_module(module).add_parser(self)
        made: Parser = self._name_parser_map[name]
        return made

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        self.load(values[0])
        super().__call__(parser, namespace, values, option_string)

    def group(
        self, name: str, description: str, epilog: str = "", *, metavar: str = "COMMAND", config: str = config
    ) -> "Commands":
        """Add a command that has commands of its own. ``config`` is the help of their --config; empty: without."""
        parser: Parser = self.add_parser(name, description=description, epilog=epilog)
        commands = parser.add_commands(metavar)
        commands.config = config
        return commands

    def verb(
        self,
        name: str,
        run: Callable[[argparse.Namespace], int],
        text: str = "",
        epilog: str = "",
        *,
        json: str = "print one JSON object instead of text",
        config: str | None = None,
    ) -> Parser:
        """Add a command. ``run`` takes its arguments and returns the exit status; its docstring describes the command,
        ``text`` where it has none, and in the list of commands, where ``later`` has not. ``json`` and ``config`` are
        the help of these options, which an empty one leaves out."""
        first, _, rest = (run.__doc__ or f"{text[:1].upper()}{text[1:]}.").partition("\n")
        listed: Any = {"help": text} if text else {}
        parser: Parser = self.add_parser(name, description=f"{first}\n{textwrap.dedent(rest)}", epilog=epilog, **listed)
        parser.set_defaults(run=run)
        if json:
            flag(parser, "--json", json)
        config = self.config if config is None else config
        if config:
            text = f"{config} (default: $GATEWAY_CONFIG, then ./gateway.toml)"
            parser.add_argument("--config", type=Path, metavar="FILE", help=text)
        return parser


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Ctrl-C ends the process in this block at once. pydantic, while it is loaded, makes an error of its own of
    KeyboardInterrupt, which would end in a traceback. Nothing is open yet."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def flag(to: argparse._ActionsContainer, name: str, text: str) -> None:
    """Add an option without a value."""
    to.add_argument(name, action="store_true", help=text)


def choice(to: argparse._ActionsContainer, name: str, values: Sequence[str], text: str, **more: Any) -> None:
    """Add an option for one of some words; the first is the default, which the help ends with."""
    default = values[0]
    to.add_argument(name, choices=values, default=default, help=f"{text} (default: {default})", **more)


def repeated(to: argparse._ActionsContainer, name: str, metavar: str, text: str, **more: Any) -> None:
    """Add an option that may be given several times: a list of its values."""
    to.add_argument(name, action="append", default=[], metavar=metavar, help=text, **more)


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    elsewhere = _ELSEWHERE.get(name)
    near = [elsewhere] if elsewhere in names else difflib.get_close_matches(name, names, n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else ""
