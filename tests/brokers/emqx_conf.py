"""EMQX's configuration file as EMQX reads it: the part of HOCON that ``deploy/emqx/emqx.conf`` uses, and what its
authentication and authorisation sections mean."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

_DEPLOYED = Path(__file__).resolve().parents[2] / "deploy" / "emqx"
_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r\n]+|(?:\#|//)[^\n]*)"""
    r"""|(?P<string>"(?:[^"\\\n]|\\.)*")"""
    r"""|(?P<required>required\("[^"\n]*"\))"""
    r"""|(?P<mark>[{}\[\],:=])"""
    r"""|(?P<bare>[A-Za-z0-9_.@%|+-]+)"""
)


class HoconError(Exception):
    """EMQX would not start with this file; the message says where."""


def read_hocon(path: Path, find: Callable[[str], Path] = Path) -> dict[str, Any]:
    """The values of a file. ``find`` says where an included file lies; one that is not there raises, when the file
    says ``include required(…)``, and is passed over otherwise, as EMQX does."""
    return _Reader(path.read_text(), str(path), find).document()


def flatten(values: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Values by dotted path, the items of lists counted from 1, as EMQX names them."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        items = {str(n): one for n, one in enumerate(value, 1)} if isinstance(value, list) else value
        if isinstance(items, dict):
            flat |= flatten(items, f"{at}{key}.")
        else:
            flat[f"{at}{key}"] = value
    return flat


class _Reader:
    def __init__(self, text: str, name: str, find: Callable[[str], Path]) -> None:
        self._name, self._find, self._text = name, find, text
        self._tokens: list[tuple[str, str, int]] = []
        position = 0
        while position < len(text):
            found = _TOKEN.match(text, position)
            if found is None:
                raise self._error(f"{text[position : position + 20]!r} is nothing", text.count("\n", 0, position) + 1)
            if found.lastgroup != "skip":
                assert found.lastgroup is not None
                self._tokens.append((found.lastgroup, found[0], text.count("\n", 0, position) + 1))
            position = found.end()
        self._at = 0

    def _error(self, sentence: str, line: int | None = None) -> HoconError:
        if line is None:
            line = self._tokens[min(self._at, len(self._tokens) - 1)][2] if self._tokens else 1
        return HoconError(f"{self._name}:{line}: {sentence}")

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at][:2] if self._at < len(self._tokens) else ("end", "the end of the file")

    def _take(self) -> tuple[str, str]:
        token = self._peek()
        self._at += 1
        return token

    def document(self) -> dict[str, Any]:
        values = self._fields("end")
        if self._peek()[0] != "end":
            raise self._error(f"{self._peek()[1]!r} closes nothing")
        return values

    def _fields(self, end: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while True:
            kind, text = self._peek()
            if (kind if end == "end" else text) == end or text in ("}", "]"):
                return values
            if text == ",":
                self._at += 1
                continue
            if (kind, text) == ("bare", "include"):
                _merge(values, self._include())
                continue
            self._field(values)

    def _include(self) -> dict[str, Any]:
        self._at += 1
        kind, text = self._take()
        if kind not in ("string", "required"):
            raise self._error(f"include of {text!r}")
        path = self._find(text.removeprefix("required(").removesuffix(")")[1:-1])
        if not path.is_file():
            if kind == "required":
                raise self._error(f"includes {path}, which is not there")
            return {}
        return read_hocon(path, self._find)

    def _field(self, values: dict[str, Any]) -> None:
        kind, text = self._take()
        if kind not in ("bare", "string"):
            raise self._error(f"{text!r} is no key")
        path = text.split(".") if kind == "bare" else [text[1:-1]]
        if self._peek()[1] in ("=", ":"):
            self._at += 1
        elif self._peek()[1] != "{":
            raise self._error(f"{text!r} has no value")
        value = self._value()
        for name in reversed(path):
            value = {name: value}
        _merge(values, value)

    def _value(self) -> Any:
        kind, text = self._take()
        if kind == "string":
            return re.sub(r"\\(.)", lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), text[1:-1])
        if text == "{":
            values = self._fields("}")
            self._close("}")
            return values
        if text == "[":
            return self._items()
        if kind == "bare":
            return {"true": True, "false": False}.get(text, int(text) if text.isdecimal() else text)
        raise self._error(f"{text!r} is no value")

    def _items(self) -> list[Any]:
        items: list[Any] = []
        while self._peek()[1] != "]":
            if items and self._tokens[self._at - 1][1] != ",":
                # EMQX's reader would make one value of the two.
                raise self._error(f"{self._peek()[1]!r} follows an item without a comma")
            items.append(self._value())
            if self._peek()[1] == ",":
                self._at += 1
        self._close("]")
        return items

    def _close(self, mark: str) -> None:
        if self._take()[1] != mark:
            raise self._error(f"{mark!r} is missing")


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


# --- what the sections mean ------------------------------------------------------------------------------------------


def parse_duration(text: str | int) -> float:
    """Seconds."""
    if isinstance(text, int):
        return text / 1000
    found = re.fullmatch(r"(\d+)(ms|s|m|h|d)", text)
    if found is None:
        raise HoconError(f"{text!r} is no duration")
    return int(found[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


@dataclass(frozen=True)
class HttpConf:
    """One HTTP backend, of authentication or authorisation."""

    host: str
    port: int
    path: str
    body: Mapping[str, str]
    headers: Mapping[str, str]
    request_timeout_s: float
    connect_timeout_s: float = 15.0
    pool_size: int = 8
    pipelining: int = 100


@dataclass(frozen=True)
class AuthConf:
    """What decides who gets in and what they may do. ``authentication`` empty: everybody gets in."""

    authentication: tuple[HttpConf, ...] = ()
    sources: tuple[HttpConf | Path, ...] = ()
    """In order: an HTTP backend, or the file ``acl.conf``."""
    no_match: Literal["allow", "deny"] = "allow"
    deny_action: Literal["ignore", "disconnect"] = "ignore"
    cache_size: int = 32
    """0: no cache."""
    cache_ttl_s: float = 60.0
    listeners_without_authentication: tuple[str, ...] = field(default=())


_COMMON = {
    "enable", "method", "url", "headers", "body", "request_timeout", "connect_timeout", "pool_size",
    "enable_pipelining",
}  # fmt: skip


def read_auth_conf(values: Mapping[str, Any], find: Callable[[str], Path] = Path) -> AuthConf:
    """The sections ``authentication`` and ``authorization``; what EMQX's schema does not know raises HoconError.

    ``find`` says where a file that EMQX names lies.
    """
    authenticators = values.get("authentication", [])
    for one in authenticators:
        if (one.get("mechanism"), one.get("backend")) != ("password_based", "http"):
            raise HoconError(f"the model knows no authentication by {one.get('mechanism')} and {one.get('backend')}")
    backend = {"mechanism", "backend"}
    section = values.get("authorization", {})
    _known(section, {"no_match", "deny_action", "cache", "sources"}, "authorization")
    cache = section.get("cache", {})
    _known(cache, {"enable", "max_size", "ttl", "excludes"}, "authorization.cache")
    # Not named at all, the sources are the file that EMQX brings along, which ends in {allow, all}.
    default = [{"type": "file", "path": "etc/acl.conf", "enable": True}]
    open_listeners = [
        name
        for name, value in flatten(values.get("listeners", {})).items()
        if name.endswith(".enable_authn") and value is not True
    ]
    return AuthConf(
        authentication=tuple(_http(one, backend, "5s") for one in authenticators if one.get("enable", True)),
        sources=tuple(_source(one, find) for one in section.get("sources", default) if one.get("enable", True)),
        no_match=section.get("no_match", "allow"),
        deny_action=section.get("deny_action", "ignore"),
        cache_size=cache.get("max_size", 32) if cache.get("enable", True) else 0,
        cache_ttl_s=parse_duration(cache.get("ttl", "1m")),
        listeners_without_authentication=tuple(open_listeners),
    )


def deployed(secrets: Path, port: int, **changes: Any) -> AuthConf:
    """What deploy/emqx says, with the files of secrets of that folder, and the service at this port."""

    def find(name: str) -> Path:
        return _DEPLOYED / "acl.conf" if name.endswith("acl.conf") else secrets / Path(name).name

    def at(one: Any) -> Any:
        return one if isinstance(one, Path) else replace(one, host="127.0.0.1", port=port, **changes)

    conf = read_auth_conf(read_hocon(_DEPLOYED / "emqx.conf", find), find)
    return replace(conf, authentication=tuple(map(at, conf.authentication)), sources=tuple(map(at, conf.sources)))


def _source(raw: Mapping[str, Any], find: Callable[[str], Path]) -> HttpConf | Path:
    if raw["type"] == "file":
        _known(raw, {"type", "enable", "path"}, "authorization.sources")
        return find(raw["path"])
    if raw["type"] == "http":
        return _http(raw, {"type"}, "30s")
    raise HoconError(f"the model knows no source of type {raw['type']}")


def _http(raw: Mapping[str, Any], more: set[str], timeout: str) -> HttpConf:
    _known(raw, _COMMON | more, "an HTTP backend")
    if raw.get("method") != "post":
        raise HoconError("the model posts")
    address = urlsplit(raw["url"])
    if address.scheme != "http" or address.hostname is None:
        raise HoconError(f"the model speaks plain HTTP, not {raw['url']}")
    headers = {name.lower(): value for name, value in raw.get("headers", {}).items()}
    return HttpConf(
        host=address.hostname,
        port=address.port or 80,
        path=address.path + (f"?{address.query}" if address.query else ""),
        body=dict(raw.get("body", {})),
        headers={"content-type": "application/json", **headers},
        request_timeout_s=parse_duration(raw.get("request_timeout", timeout)),
        connect_timeout_s=parse_duration(raw.get("connect_timeout", "15s")),
        pool_size=raw.get("pool_size", 8),
        pipelining=raw.get("enable_pipelining", 100),
    )


def _known(raw: Mapping[str, Any], names: set[str], where: str) -> None:
    if unknown := set(raw) - names:
        raise HoconError(f"{where} has no {', '.join(sorted(unknown))}")
