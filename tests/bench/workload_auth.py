"""The service that EMQX asks: each kind of question against the same server answering a constant, in turn."""

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

from auth.model import Rule
from auth.passwords import Argon2Cost, generate_secret, hash_argon2id, hash_device_secret
from auth.store.records import User
from auth.store.store import Store
from config.tables.auth import AuthHashingSettings
from tests.bench.account import cpu_of
from tests.bench.auth_load import Load, Mixed, Slice, auth_load, login_request
from tests.bench.measurement import Figure, Measurement
from tests.bench.processes import Helper, free_port
from tests.bench.site import Site
from tests.bench.subject import AuthService, Subject, running
from tests.toml_text import to_toml

_SECRET: Final = "0123456789abcdef0123456789abcdef"
_CONNECTIONS: Final = 16  # two nodes of EMQX with its default pool
_ROUNDS: Final = 10  # row and echo in turn, so that a neighbour's minute does not fall on one of them
_DEVICES: Final = 100_000
_TIMEOUT_S: Final = 120.0
_CACHED_PER_S: Final = 500
_FRESH_PER_S: Final = 20
_PASSWORD: Final = "a person's password"


@dataclass(frozen=True, slots=True)
class _Running:
    """The service, and who asks it."""

    subject: Subject
    load: Helper
    devices: Sequence[tuple[str, str]]
    people: Sequence[str]
    started_s: float

    def ask(self, task: Load | Mixed) -> Slice:
        self.load.send(task)
        return self.load.receive(Slice, _TIMEOUT_S, self.subject.check_alive)

    def logins(self, devices: Sequence[tuple[str, str]]) -> tuple[bytes, ...]:
        return tuple(_login("/authn", name, secret) for name, secret in devices)

    def echo(self, count: int) -> Slice:
        name, secret = self.devices[0]
        return self.ask(Load((_login("/echo", name, secret),), count, _CONNECTIONS))


def _login(path: str, name: str, secret: str) -> bytes:
    return login_request(
        path,
        _SECRET,
        {
            "username": name, "clientid": name, "password": secret, "peerhost": "10.17.4.21",
            "cert_common_name": "undefined",
        },
    )  # fmt: skip


def _access(name: str, topic: str) -> bytes:
    return login_request(
        "/authz",
        _SECRET,
        {
            "username": name, "clientid": name, "peerhost": "10.17.4.21", "cert_common_name": "undefined",
            "topic": topic, "action": "publish", "qos": 1, "retain": False, "tenant": "", "groups": "",
        },
    )  # fmt: skip


def auth_echo(site: Site) -> Measurement:
    """The constant alone."""
    with _service(site, devices=1) as service:
        service.echo(2_000)
        return _measured([service.echo(site.scaled(20_000)) for _ in range(_ROUNDS)], [], service)


def auth_cached(site: Site) -> Measurement:
    """Devices that log in again."""
    with _service(site, devices=1_000) as service:
        requests = service.logins(service.devices)
        service.ask(Load(requests, len(requests), _CONNECTIONS))
        return _compared(service, [Load(requests, site.scaled(20_000), _CONNECTIONS)] * _ROUNDS)


def auth_cold(site: Site) -> Measurement:
    """Every device once, none of which the cache knows."""
    devices = site.scaled(_DEVICES)
    with _service(site, devices=devices) as service:
        requests = service.logins(service.devices)
        step = len(requests) // _ROUNDS
        parts = [requests[at : at + step] for at in range(0, len(requests), step)]
        found = _compared(service, [Load(part, len(part), _CONNECTIONS) for part in parts])
        return replace(found, figures={**found.figures, "seconds": found.details["asked_s"] * _DEVICES / devices})


def auth_authorise(site: Site) -> Measurement:
    """Topics that EMQX has to ask about, each of many devices' own."""
    with _service(site, devices=1_000) as service:
        topics = [_access(name, f"devices/{name}/{part}") for name, _ in service.devices for part in range(20)]
        return _compared(service, [Load(tuple(topics), site.scaled(20_000), _CONNECTIONS)] * _ROUNDS)


def auth_mixed(site: Site) -> Measurement:
    """New logins of people, whose hashes are slow, beside devices that the cache knows."""
    seconds = 5.0 if site.quick else 20.0
    with _service(site, devices=1_000, people=round(seconds * _FRESH_PER_S) + 1) as service:
        requests = service.logins(service.devices)
        service.ask(Load(requests, len(requests), _CONNECTIONS))
        fresh = tuple(_login("/authn", name, _PASSWORD) for name in service.people)
        found = service.ask(Mixed(requests, fresh, _CACHED_PER_S, _FRESH_PER_S, seconds))
        others = found.others_ns
        return Measurement(
            {
                "per_s": found.per_s,
                "p50_ms": found.quantile_ms(0.5),
                "p99_ms": found.quantile_ms(0.99),
                "rss_mib": service.subject.peak_rss_mib(),
            },
            {
                "hashed": float(len(others)),
                "hashed_p50_ms": others[len(others) // 2] / 1e6,
                "hashed_p99_ms": others[int(len(others) * 0.99)] / 1e6,
            },
        )


def _compared(service: _Running, loads: Sequence[Load]) -> Measurement:
    service.echo(2_000)
    found, echoes, marks = [], [], [cpu_of(service.subject.pid).total_ns]
    for load in loads:
        found.append(service.ask(load))
        marks.append(cpu_of(service.subject.pid).total_ns)
        echoes.append(service.echo(load.count))
        marks.append(cpu_of(service.subject.pid).total_ns)
    asked = sum(load.count for load in loads)
    spent = [after - before for before, after in pairwise(marks)]
    # What neighbours take of the time they do not take of the CPU clock.
    cpu_us = {"cpu_us": sum(spent[::2]) / 1e3 / asked, "echo_cpu_us": sum(spent[1::2]) / 1e3 / asked}
    measured = _measured(found, echoes, service)
    return replace(measured, details={**measured.details, **cpu_us})


def _measured(found: Sequence[Slice], echoes: Sequence[Slice], service: _Running) -> Measurement:
    latencies = sorted(one for part in found for one in part.latencies_ns)
    seconds = sum(part.seconds for part in found)
    figures: dict[Figure, float] = {
        "per_s": len(latencies) / seconds,
        "p50_ms": latencies[len(latencies) // 2] / 1e6,
        "p99_ms": latencies[int(len(latencies) * 0.99)] / 1e6,
        "rss_mib": service.subject.peak_rss_mib(),
    }
    details = {"requests": float(len(latencies)), "asked_s": seconds}
    if echoes:
        # Of each pair, so that both had the same neighbours.
        figures["share_of_echo"] = statistics.median(
            one.per_s / echo.per_s for one, echo in zip(found, echoes, strict=True)
        )
        details["echo_per_s"] = statistics.median(echo.per_s for echo in echoes)
    else:
        figures["share_of_echo"] = 1.0
    return Measurement(figures, details)


def auth_large(site: Site) -> Measurement:
    """What a decision costs among many users and rules, against few, on two services that are asked in turn: logins
    that no cache knows, and topics that each user has rules of its own for."""
    small = site.shared("auth-small", partial(_fill, devices=1_000, rules_each=10))
    large = site.shared("auth-large", partial(_fill, devices=_DEVICES, rules_each=10))
    with site.folder() as folder, _serving(folder / "small", small) as one, _serving(folder / "large", large) as other:
        services = {_SMALL: one, _LARGE: other}
        shares, rates = [], {name: list[float]() for name in (*services, *(f"{name}_topics" for name in services))}
        step = 1_000 // _ROUNDS
        for number in range(_ROUNDS):
            for name, service in services.items():
                spread = len(service.devices) // 1_000
                devices = service.devices[number * step * spread : (number + 1) * step * spread : spread]
                logins = service.logins(devices)
                topics = tuple(_access(who, f"devices/{who}/{part}/x") for who, _ in devices for part in range(10))
                rates[name].append(service.ask(Load(logins, len(logins), _CONNECTIONS)).per_s)
                rates[f"{name}_topics"].append(service.ask(Load(topics, len(topics), _CONNECTIONS)).per_s)
        shares = [
            statistics.median(big / few for big, few in zip(rates[_LARGE + end], rates[_SMALL + end], strict=True))
            for end in ("", "_topics")
        ]
        return Measurement(
            {"share_of_small": min(shares), "seconds": other.started_s, "rss_mib": other.subject.peak_rss_mib()},
            {f"{name}_per_s": statistics.median(found) for name, found in rates.items()}
            | {"share_logins": shares[0], "share_topics": shares[1], "small_rss_mib": one.subject.peak_rss_mib()},
        )


_SMALL: Final = "small"
_LARGE: Final = "large"


@contextmanager
def _service(site: Site, *, devices: int, people: int = 0) -> Iterator[_Running]:
    """The service with so many devices and people, freshly started."""
    with site.folder() as folder:
        (folder / "data").mkdir()
        names = [f"person-{number:04}" for number in range(people)]
        _fill(folder / "data", devices=devices, people=names)
        with _serving(folder / "service", folder / "data", names) as service:
            yield service


@contextmanager
def _serving(folder: Path, data: Path, people: Sequence[str] = ()) -> Iterator[_Running]:
    """The service over a database that is there, freshly started, its log in ``folder``."""
    folder.mkdir()
    devices = [(name, secret) for name, secret in json.loads((data / "devices.json").read_text())]
    port, operator = free_port(), free_port()
    settings = {
        "log": {"format": "json"},
        "auth": {
            "port": port,
            "operator_port": operator,
            "shared_secret": _SECRET,
            "database": {"file": str(data / "auth.sqlite3")},
        },
    }
    file = folder / "gateway.toml"
    file.write_text(to_toml(settings))
    began = time.monotonic()
    with running(AuthService().start(file, folder / "auth.log", operator)) as subject:
        subject.wait_ready()
        started_s = time.monotonic() - began
        with Helper(auth_load, port) as load:
            yield _Running(subject, load, devices, people, started_s)
        subject.stop()


def _fill(folder: Path, *, devices: int, people: Sequence[str] = (), rules_each: int = 0) -> None:
    """A database with devices, whose secrets are generated, and people, whose passwords are argon2id. Either all share
    the rules, or each device has so many of its own."""
    cost = AuthHashingSettings()
    stored = hash_argon2id(_PASSWORD, Argon2Cost(cost.memory >> 10, cost.passes))
    made = [(f"device-{number:06}", generate_secret()) for number in range(devices)]
    with Store(folder / "auth.sqlite3").edit("bench") as editor:
        key = editor.current_device_key()
        for name, secret in made:
            editor.users.add(User("username", name, hash_device_secret(secret, key)), audited=False)
        for name in people:
            editor.users.add(User("username", name, stored), audited=False)
        if not rules_each:
            editor.rules.append(Rule("allow", "devices/${username}/#"))
            editor.rules.append(Rule("allow", "commands/${username}/#", actions=frozenset({"subscribe"})))
        editor.rules.extend(
            Rule("allow", f"devices/{name}/{part}/#", who=(("username", name),))
            for name, _ in made
            for part in range(rules_each)
        )
    (folder / "devices.json").write_text(json.dumps(made))
