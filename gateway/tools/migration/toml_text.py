"""Imported settings as the text of a TOML file, and the proof that they load."""

import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from config.errors import ConfigError
from config.wording import as_toml
from gateway.tools.migration.findings import Imported, ImportError_


def as_toml_text(imported: Imported, heading: str) -> str:
    """The file: heading, top-level values, then tables. Raises ImportError_ for what is no text."""
    lines = [f"# {line}".rstrip() for line in heading.splitlines()]
    lines += _table(imported.settings, "", imported)
    text = "\n".join(lines) + "\n"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = ascii(text[: error.start].rpartition("\n")[2] + text[error.start])
        raise ImportError_(f"The source has half a character, which no setting can have, in {line}.") from None
    return text


def _table(table: dict[str, Any], path: str, imported: Imported) -> Iterator[str]:
    """The lines of a table: its own values, then the tables in it with their headings."""
    nested: list[tuple[str, Any]] = []
    for name, value in table.items():
        if (isinstance(value, dict) and not _inline(path, name)) or _tables(value):
            nested.append((name, value))
        else:
            yield f"{name} = {as_toml(value)}"
    for name, value in nested:
        below = f"{path}.{name}" if path else name
        if isinstance(value, dict):
            yield from _begin(f"[{_bare(below)}]", below, imported)
            yield from _table(value, below, imported)
            continue
        for number, item in enumerate(value):
            yield from _begin(f"[[{_bare(below)}]]", f"{below}.{number}", imported)
            yield from _table(item, f"{below}.{number}", imported)


def _begin(line: str, path: str, imported: Imported) -> Iterator[str]:
    yield ""
    yield from (f"# {text}" for text in imported.comments.get(path, ()))
    yield line


def _tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _inline(path: str, name: str) -> bool:
    """Free maps are short, and read better on their line."""
    return (path.startswith("routes.") and name == "headers") or name == "extensions"


def _bare(path: str) -> str:
    return ".".join(step for step in path.split(".") if not step.isdigit())


def check_text(text: str) -> tuple[str, ...]:
    """Load the file as the gateway would, with files of placeholders where it names secrets, and compile its routes and
    interceptors. Returns what the loading warns of. Raises ImportError_ when it cannot be used."""
    from bridge.intercept.loading import load_chains
    from bridge.routing.router import Router
    from config.loading.load import load

    document = tomllib.loads(text)
    with tempfile.TemporaryDirectory(prefix="gateway-import-") as folder:
        secret = Path(folder) / "secret"
        secret.write_text("placeholder-of-an-import")
        settings = Path(folder) / "gateway.toml"
        settings.write_text(_with_placeholder(text, document, secret))
        try:
            loaded = load(settings, environ={})
            warnings = list(loaded.warnings)
            if loaded.settings.routes:
                router = Router(
                    loaded.settings.routes,
                    instance=loaded.settings.instance,
                    reserved_topics=loaded.settings.own_topics,
                )
                warnings += router.warnings
                load_chains(loaded.settings).close()
        except ConfigError as error:
            sentence = str(error).replace(str(settings), "the result")
            raise ImportError_(f"What came of the source cannot be used as settings: {sentence}") from error
    return tuple(warning.replace(str(settings), "the result") for warning in warnings)


def _with_placeholder(text: str, document: dict[str, Any], secret: Path) -> str:
    for file in set(_secret_files(document)):
        text = text.replace(as_toml(file), as_toml(str(secret)))
    return text


def _secret_files(table: Any) -> Iterator[str]:
    """The file names in settings of secrets, at any depth."""
    for name, value in table.items() if isinstance(table, dict) else enumerate(table):
        if isinstance(name, str) and name in {"password_file", "client_secret_file", "key_password_file", "value_file"}:
            yield value
        elif isinstance(value, dict | list):
            yield from _secret_files(value)
