"""``gateway import``: another bridge's configuration as settings of the gateway, and a report of the differences."""

import argparse
import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from config.errors import ConfigError, ExitStatus
from config.prose import lines_of, width_of
from config.values.addresses import parse_mqtt_address
from gateway.cli.arguments import UsageError
from gateway.cli.parser import Commands, flag
from gateway.cli.table import print_json, shown, tell
from gateway.data_dir import durable
from gateway.tools.migration.emqx import import_emqx, read_emqx
from gateway.tools.migration.findings import Finding, Imported, ImportError_
from gateway.tools.migration.telegraf import import_telegraf
from gateway.tools.migration.toml_text import as_toml_text, check_text

_LARGEST = 32 << 20
_PIPE_WIDTH = 110
_WORDS = {"lost": "LOST", "differs": "differs", "check": "check", "note": "note"}
_DESCRIPTION = """\
Turns the configuration of another bridge into settings of this gateway and checks that they load. Reports what has no
counterpart, with the consequence and a way out. Connects to nothing. Secrets are never printed: the settings name a
file for each.

The report also names settings that would weaken delivery; they are not taken over.
"""
_EPILOG = """\
examples:
  curl -su KEY:SECRET 'http://emqx:18083/api/v5/rules?limit=10000' > rules.json
  curl -su KEY:SECRET http://emqx:18083/api/v5/actions    > actions.json
  curl -su KEY:SECRET http://emqx:18083/api/v5/connectors > connectors.json
  gateway import emqx rules.json actions.json connectors.json --mqtt mqtts://emqx:8883 -o gateway.toml
  gateway import telegraf /etc/telegraf/telegraf.conf -o gateway.toml

exit status: 0 everything has a counterpart, 5 something has not (LOST in the report), 78 the source cannot be read
"""


def add_parser(commands: Commands) -> None:
    kinds = commands.group("import", _DESCRIPTION, _EPILOG, metavar="SOURCE", config="")
    printed = "print one JSON object: settings (the TOML text) and findings"
    text = "rules, actions and connectors from EMQX's REST API, as JSON"
    emqx = kinds.verb("emqx", _emqx, text, _EPILOG, json=printed)
    emqx.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON; - is standard input")
    emqx.add_argument("--mqtt", metavar="URL", help="EMQX's address, as the gateway will reach it")
    emqx.add_argument(
        "--device",
        metavar="TEMPLATE",
        help="where a message names its device, such as '${topic[1]}': takes the place of ${clientid}",
    )
    text = "a TOML file with inputs.mqtt_consumer and outputs.kafka"
    telegraf = kinds.verb("telegraf", _telegraf, text, _EPILOG, json=printed)
    telegraf.add_argument("files", nargs=1, type=Path, metavar="FILE", help="TOML; - is standard input")
    for command in (emqx, telegraf):
        command.add_argument(
            "-o", "--output", type=Path, metavar="FILE", help="write the settings there (default: standard output)"
        )
        flag(command, "--force", "overwrite that file if it is there")


def _emqx(arguments: argparse.Namespace) -> int:
    """Rules, actions (kafka_producer) and connectors of EMQX 5.4 to 5.10, or bridges of 5.0 to 5.3, as GET
    /api/v5/rules, /actions, /connectors and /bridges answer, in any number of files."""
    documents = []
    for file in arguments.files:
        try:
            documents.append(json.loads(_text(file)))
        except (ValueError, RecursionError) as error:
            raise ImportError_(f"{file} is no JSON: {error}") from None
    mqtt = _mqtt(arguments.mqtt)
    with _understood("EMQX 5's REST API gives them"):
        imported = import_emqx(read_emqx(documents), mqtt=mqtt, device=arguments.device)
    return _write(arguments, imported, "EMQX's Kafka actions")


def _telegraf(arguments: argparse.Namespace) -> int:
    """A Telegraf configuration with [[inputs.mqtt_consumer]] and [[outputs.kafka]]."""
    (file,) = arguments.files
    text = _text(file)
    with _understood("Telegraf documents them"):
        imported = import_telegraf(text)
    return _write(arguments, imported, "a Telegraf configuration")


@contextlib.contextmanager
def _understood(as_what: str) -> Iterator[None]:
    """Turn errors of unexpected fields into ImportError_, without their values, which may be secrets."""
    try:
        yield
    except KeyError as error:
        raise ImportError_(f"The source lacks a field that belongs there: {error.args[0]!r}.") from error
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        lines = traceback.extract_tb(error.__traceback__)
        raise ImportError_(
            f"The source's fields are not as {as_what}: one is of another kind (found in {lines[-1].name}). Compare "
            "it with the export."
        ) from error


def _text(file: Path) -> str:
    try:
        if str(file) == "-":
            text = sys.stdin.read(_LARGEST + 1)
            if len(text) > _LARGEST:
                raise UsageError(f"The input has more than {_LARGEST >> 20} MiB: is it the right text?")
            return text
        if file.stat().st_size > _LARGEST:
            raise UsageError(f"{file} has more than {_LARGEST >> 20} MiB: is it the right file?")
        return file.read_text()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}. Check its name and its rights.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is no text in UTF-8. Is it the right file?") from None


def _mqtt(text: str | None) -> str | None:
    if text is not None:
        try:
            parse_mqtt_address(text)
        except ValueError as error:
            raise UsageError(f"--mqtt: {error}") from None
    return text


def _write(arguments: argparse.Namespace, imported: Imported, source: str) -> int:
    heading = (
        f"Settings made by gateway import from {source}.\n"
        "Read the report that came with them before you rely on them; docs/migration.md tells how to switch over."
    )
    text = as_toml_text(imported, heading)
    for warning in check_text(text):
        imported.note("check", "a warning of gateway config check", warning)
    if arguments.output is not None:
        _save(arguments.output, text, force=arguments.force)
    if arguments.json:
        print_json({"settings": text, "findings": imported.findings})
    else:
        if arguments.output is None:
            print(text, end="")
        stream = sys.stderr if arguments.output is None else sys.stdout
        tell(_report(imported.findings, width_of(stream, _PIPE_WIDTH)), to=stream)
    lost = any(one.severity == "lost" for one in imported.findings)
    return ExitStatus.INCOMPLETE if lost else ExitStatus.OK


def _save(file: Path, text: str, *, force: bool) -> None:
    try:
        if force and os.path.lexists(file):
            _overwrite(file, text)
        else:
            durable.create(file, text)
    except FileExistsError:
        raise UsageError(f"{file} is there already: say --force to overwrite it.") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}.") from None


def _overwrite(file: Path, text: str) -> None:
    """Write in place: it may be a device, or have an owner of its own. A file gets its former content back where the
    disk has no room."""
    before = file.read_bytes() if file.is_file() else None
    try:
        file.write_text(text, encoding="utf-8")
    except OSError:
        if before is not None:
            file.write_bytes(before)
        raise


def _report(findings: list[Finding], width: int) -> str:
    if not findings:
        return "Everything has a counterpart."
    lines = []
    for severity, word in _WORDS.items():
        for one in findings:
            if one.severity != severity:
                continue
            lines.append(f"{word}: {shown(one.what)}")
            lines += lines_of(shown(one.consequence), width, first="    ", later="    ")
            if one.way_out:
                lines += lines_of(f"→ {shown(one.way_out)}", width, first="    ", later="      ")
    counts = ", ".join(
        f"{number} {word}"
        for severity, word in _WORDS.items()
        if (number := sum(o.severity == severity for o in findings))
    )
    return "\n".join([*lines, "", f"{counts}."])
