"""Verdicts of ``gateway doctor`` over MQTT brokers and EMQX's REST API: pure functions over facts."""

from dataclasses import replace
from typing import Any, Final

import pytest

from bridge.certificate import Validity
from bridge.routing.filters import Subscription
from config.errors import ExitStatus
from gateway.health.emqx.api import EmqxRefusedError
from gateway.health.emqx.model import Ban, EmqxClient, EmqxNode, EmqxZone
from gateway.mqtt.errors import ConnectError
from gateway.mqtt.probe import Visit
from gateway.tools.doctor.emqx_checks import EmqxFacts, expected_ids, judge_emqx, session_pattern
from gateway.tools.doctor.endpoint import Endpoint, Step, TlsStep
from gateway.tools.doctor.endpoint_verdicts import judge_certificate, judge_endpoint
from gateway.tools.doctor.model import Check, Findings, Severity
from gateway.tools.doctor.mqtt_facts import AddressFacts, Device, DoorFacts, broker_name, shared_for_a_look
from gateway.tools.doctor.mqtt_verdicts import judge_addresses, judge_rest
from gateway.tools.doctor.wording import since_days
from tests.doctor_looks import settings_of

OK, WARN, FAIL, SKIPPED = Severity.OK, Severity.WARN, Severity.FAIL, Severity.SKIPPED
REACHED = Endpoint("b", 1883, Step(0.001), ("10.0.0.1",), Step(0.001))
REFUSED = Visit(code=0x87)
WELCOME = Visit(0.01, code=0, granted=[1])
ASKED = (Subscription("$share/doctor-1/devices/#", 1),)
DAY_S = 86_400.0
NOW_S = 1_800_000_000.0


def door(**changes: Any) -> DoorFacts:
    values: dict[str, Any] = {
        "asked": ASKED, "filters": WELCOME, "anonymous": REFUSED, "stranger": REFUSED,
        "everything": replace(WELCOME, granted=[0x87]), "everything_as": "the device's user",
    }  # fmt: skip
    return DoorFacts("mqtt://b:1883", **{**values, **changes})


def judged(
    login: Visit = WELCOME, found: DoorFacts | None = None, endpoint: Endpoint = REACHED, **mqtt: Any
) -> dict[str, Check]:
    findings = Findings("mqtt")
    settings = settings_of(mqtt={"addresses": ["mqtt://b:1883"], "username": "gw", "password": "s", **mqtt})
    reached = endpoint.reached
    facts = AddressFacts("mqtt://b:1883", endpoint, login=login if reached else None)
    seen = (found or door()) if login.code is not None and reached else None
    judge_rest(findings, settings, judge_addresses(findings, settings, [facts]), seen, 2)
    return {check.name: check for check in findings}


def test_a_broker_that_is_well() -> None:
    checks = judged()
    assert {check.severity for check in checks.values()} == {OK}, [c for c in checks.values() if c.severity is not OK]
    assert len(checks) == 13


@pytest.mark.parametrize(("visit", "status", "says"), [
    (Visit(code=0x86), ExitStatus.REFUSED, "bad user name or password"),
    (Visit(code=0x87), ExitStatus.REFUSED, "not authorised"),
    (Visit(code=0x84), ExitStatus.UNAVAILABLE, "unsupported protocol version"),
    (Visit(code=0x97), ExitStatus.UNAVAILABLE, "quota exceeded"),
    (Visit(5.0, ConnectError("It said nothing.", "timeout")), ExitStatus.UNAVAILABLE, "frozen"),
    (Visit(0.1, ConnectError("It hung up.", "protocol")), ExitStatus.UNAVAILABLE, "It hung up."),
])  # fmt: skip
def test_who_is_not_let_in_has_no_ground_for_the_rest(visit: Visit, status: ExitStatus, says: str) -> None:
    checks = judged(visit)
    login = checks["login"]
    assert (login.severity, login.status) == (FAIL, status)
    assert says in login.text
    assert login.fix
    assert checks["window"].severity is SKIPPED
    assert "(login)" in checks["window"].text
    assert (checks["anonymous"].severity is OK) is (visit.code is not None)


@pytest.mark.parametrize(("limits", "name", "severity", "says"), [
    ({"receive_maximum": 32}, "window", WARN, "25,600 messages a second"),
    ({"receive_maximum": 2000}, "window", OK, "1000 unacknowledged"),
    ({"session_expiry": 60}, "session_expiry", WARN, "for 60 s, not for the 3600 s"),
    ({"maximum_packet_size": 16 << 20}, "packet_size", WARN, "in silence"),
    ({"maximum_packet_size": 1 << 20}, "packet_size", OK, "up to 1 MiB"),
    ({"retain_available": 0}, "retain", FAIL, "birth message"),
    ({"shared_available": 0}, "shared", FAIL, "switched off"),
])  # fmt: skip
def test_what_the_broker_grants(limits: dict[str, int], name: str, severity: Severity, says: str) -> None:
    check = judged(replace(WELCOME, limits=limits))[name]
    assert check.severity is severity
    assert says in check.text
    assert bool(check.fix) is (severity is not OK)


def test_retained_messages_are_needed_by_the_birth_message_alone() -> None:
    without = replace(WELCOME, limits={"retain_available": 0})
    assert judged(without, status={"enabled": False})["retain"].severity is OK


@pytest.mark.parametrize(("broker", "severity"), [
    ("", OK),
    ("mosquitto 2.0.11", WARN),
    ("mosquitto 2.0.9", WARN),
    ("mosquitto 2.0.13", OK),
    ("mosquitto 2.1.2", OK),
    ("mosquitto 2.1.0-test1", OK),
    ("VerneMQ 2.0.1", OK),
])  # fmt: skip
def test_a_mosquitto_that_overruns_its_window_is_named_with_its_version(broker: str, severity: Severity) -> None:
    check = judged(found=door(broker=broker))["version"]
    assert check.severity is severity
    assert broker in check.text
    assert ("mqtt.receive_maximum" in check.text) is (severity is WARN)
    old = judged(found=door(broker=broker), protocol="3.1.1")["version"]
    assert (old.severity, broker in old.text) == (OK, True), "no window is announced there"


@pytest.mark.parametrize(("said", "broker"), [
    (b"mosquitto version 2.0.11", "mosquitto 2.0.11"),
    (b"", ""),
    (b"\x1b[31mred", ""),
    ("версия".encode(), ""),
    (b"x" * 61, ""),
])  # fmt: skip
def test_what_a_broker_says_it_is_has_to_look_like_a_name(said: bytes, broker: str) -> None:
    assert broker_name(replace(WELCOME, retained=said)) == broker
    assert broker_name(WELCOME) == broker_name(None) == ""


def test_a_broker_of_3_1_1_is_not_blamed_for_what_it_cannot_say() -> None:
    checks = judged(protocol="3.1.1")
    assert {checks[name].severity for name in ("window", "session_expiry", "packet_size", "retain")} == {SKIPPED}
    assert checks["version"].severity is OK


@pytest.mark.parametrize(("changes", "name", "severity", "says"), [
    ({"filters": replace(WELCOME, granted=[0x87])}, "shared", FAIL, "devices/# (not authorised (0x87))"),
    ({"filters": replace(WELCOME, granted=[0x9E])}, "shared", FAIL, "shared subscriptions not supported"),
    ({"filters": replace(WELCOME, granted=[0])}, "qos", WARN, "devices/# (QoS 0 of 1)"),
    ({"filters": replace(WELCOME, granted=None)}, "shared", FAIL, "did not answer SUBSCRIBE"),
    ({"everything": replace(WELCOME, granted=[0])}, "everything", FAIL, "granted to the device's user"),
    ({"everything": replace(WELCOME, granted=[0x80])}, "everything", OK, "refused"),
    ({"everything": replace(WELCOME, granted=None)}, "everything", OK, "disconnected"),
    (
        {"everything": replace(WELCOME, granted=None, error=ConnectError("No answer.", "timeout"))},
        "everything", SKIPPED, "No answer.",
    ),
    ({"everything": None, "everything_as": None}, "everything", SKIPPED, "--device-user"),
    ({"everything": None, "everything_as": None, "device": REFUSED}, "everything", SKIPPED,
        "does not let in the user"),
])  # fmt: skip
def test_what_of_our_subscriptions_is_granted_and_what_a_device_may_read(
    changes: dict[str, Any], name: str, severity: Severity, says: str
) -> None:
    check = judged(found=door(**changes))[name]
    assert check.severity is severity
    assert says in check.text


@pytest.mark.parametrize(("name", "called"), [("anonymous", "anonymous"), ("stranger", "wrong_password")])
def test_who_is_let_in_and_must_not_be(name: str, called: str) -> None:
    check = judged(found=door(**{name: WELCOME}))[called]
    assert (check.severity, check.status) == (FAIL, ExitStatus.REFUSED)
    silent = door(**{name: Visit(error=ConnectError("It said nothing.", "timeout"))})
    assert judged(found=silent)[called].severity is SKIPPED
    busy = judged(found=door(**{name: Visit(code=0x97)}))[called]
    assert (busy.severity, "quota exceeded" in busy.text) == (SKIPPED, True), "nobody is let in now"
    hung_up = door(**{name: Visit(error=ConnectError("It hung up.", "protocol"))})
    assert judged(found=hung_up)[called].severity is SKIPPED
    assert judged(found=replace(hung_up, without_certificate=True))[called].severity is OK
    assert judged(found=replace(silent, without_certificate=True))[called].severity is SKIPPED


def test_a_look_is_never_taken_in_the_gateway_s_own_share_group() -> None:
    (found,) = shared_for_a_look([Subscription("$share/gateway/a/b/#", 1)])
    assert found.filter.startswith("$share/doctor-")
    assert found.filter.endswith("/a/b/#")
    assert shared_for_a_look([Subscription("a/#", 0)]) == (Subscription("a/#", 0),)


def test_a_device_s_password_is_in_no_repr() -> None:
    assert "secret" not in repr(Device("d", "secret"))


# --- addresses and certificates --------------------------------------------------------------------


def endpoint_checks(endpoint: Endpoint, *, encrypted: bool = False) -> tuple[str, dict[str, Check]]:
    findings = Findings("mqtt")
    because = judge_endpoint(
        findings, "a", endpoint, "mqtt.addresses", table="mqtt.tls", encrypted=encrypted, now_s=NOW_S
    )
    return because, {check.name: check for check in findings}


def test_steps_behind_a_failed_one_say_because_of_which() -> None:
    because, checks = endpoint_checks(Endpoint("b", 1, Step(0.1, "name", "unknown")), encrypted=True)
    assert "(dns)" in because
    assert {checks[name].severity for name in ("tcp", "tls")} == {SKIPPED}
    because, checks = endpoint_checks(replace(REACHED, tcp=Step(0.1, "refused", "no")), encrypted=True)
    assert "(tcp)" in because
    assert "(tcp)" in checks["tls"].text
    assert endpoint_checks(REACHED)[0] == ""


@pytest.mark.parametrize(("step", "validity", "says"), [
    (Step(5, "silent", ""), None, "frozen"),
    (Step(0, "certificate", "certificate has expired"), Validity(0, NOW_S - 3 * DAY_S), "expired 3 days ago"),
    (Step(0, "certificate", "self-signed certificate"), Validity(0, NOW_S + 9 * DAY_S), "self-signed"),
    (Step(0, "tls", "wrong version number"), None, "wrong version number"),
    (Step(0, "closed", "reset"), None, "reset"),
])  # fmt: skip
def test_tls_that_does_not_come_about(step: Step, validity: Validity | None, says: str) -> None:
    because, checks = endpoint_checks(replace(REACHED, tls=TlsStep(step, None, validity)), encrypted=True)
    assert "(tls)" in because
    assert checks["tls"].severity is FAIL
    assert says in checks["tls"].text


@pytest.mark.parametrize(
    ("begins", "days", "severity"),
    [(-1, -1.0, FAIL), (-1, 1.9, FAIL), (-1, 13.9, WARN), (-1, 14.1, OK), (+1, 90.0, FAIL)],
)
def test_a_certificate_s_days(begins: int, days: float, severity: Severity) -> None:
    findings = Findings("config")
    dates = Validity(NOW_S + begins * 3600, NOW_S + days * DAY_S)
    judge_certificate(findings, "mqtt.tls", dates, "mqtt.tls.certificate_file (c.pem)", is_ours=True, now_s=NOW_S)
    assert findings[0].severity is severity
    assert findings[0].facts["days_left"] == pytest.approx(days)


def test_slow_names_connections_and_logins_are_warnings() -> None:
    assert judged(replace(WELCOME, seconds=3.0))["login"].severity is WARN
    _, checks = endpoint_checks(replace(REACHED, name=Step(4.0), tcp=Step(3.0)))
    assert {check.severity for check in checks.values()} == {WARN}


# --- EMQX ------------------------------------------------------------------------------------------


_TABLES: Final = {"mqtt": {"username": "gw", "password": "s", "sessions": 2}}
_GROUPED: Final = {
    "mqtt": {
        "sessions": 1,
        "groups": [{"name": "bulk", "sessions": 4, "receive_maximum": 1500, "memory_bytes": 8 << 20}],
    },
    "routes": [
        {"name": "telemetry", "filters": ["devices/#"], "topic": "telemetry", "group": "bulk"},
        {"name": "alarms", "filters": ["alarms/#"], "topic": "alarms"},
    ],
}
"""A session of its own and four of a group, in each worker."""


def zone(**changes: Any) -> EmqxZone:
    values: dict[str, Any] = {
        "max_inflight": 1000, "max_mqueue_len": 100_000, "shared_subscription_strategy": "hash_clientid",
        "durable_sessions": False, "max_mailbox": 100_000,
    }  # fmt: skip
    return EmqxZone(**{**values, **changes})


def emqx(
    *, runs: bool = True, rate: float | None = 1000.0, tables: dict[str, Any] = _TABLES, **changes: Any
) -> dict[str, Check]:
    settings = settings_of(**tables)
    ours = {name: EmqxClient(name, connected=True) for name in expected_ids(settings, 2)}
    values: dict[str, Any] = {
        "nodes": [EmqxNode("n1", "running", "5.8.9")], "zone": zone(), "clients": ours, "bans": [],
    }  # fmt: skip
    findings = Findings("emqx")
    facts = EmqxFacts(**{**values, **changes})
    judge_emqx(findings, settings, facts, 2, runs=runs, rate=rate)
    return {check.name: check for check in findings}


def test_an_emqx_that_is_well() -> None:
    assert {check.severity for check in emqx().values()} == {OK}


@pytest.mark.parametrize(("changes", "name", "severity", "says"), [
    ({"zone": zone(max_inflight=32)}, "window", WARN, "is 32"),
    ({"zone": zone(max_mqueue_len=1000)}, "queue", FAIL, "the next restart loses some"),
    ({"zone": zone(max_mqueue_len=1000), "rate": None}, "queue", WARN, "nobody tells"),
    ({"zone": zone(max_mqueue_len=None)}, "queue", OK, "without limit"),
    ({"zone": zone(durable_sessions=True)}, "queue", WARN, "refuses every shared subscription"),
    ({"zone": zone(max_mailbox=1000)}, "mailbox", FAIL, "at 267 messages a second over 4 sessions"),
    ({"zone": zone(max_mailbox=1000), "rate": None}, "mailbox", WARN, "nobody tells"),
    ({"zone": zone(max_mailbox=10_000)}, "mailbox", WARN, "at 2,667 messages"),
    ({"zone": zone(max_mailbox=None)}, "mailbox", OK, "kills no session"),
    ({"zone": zone(shared_subscription_strategy="round_robin")}, "strategy", WARN, "overtake"),
    ({"nodes": [EmqxNode("n1", "stopped", "5.8.9")]}, "nodes", FAIL, "n1 (stopped)"),
    ({"nodes": [EmqxNode("n1", "stopped", ""), EmqxNode("n2", "running", "5.8.9")]}, "nodes", FAIL,
        "EMQX 5.8.9 on 2 nodes; not running: n1 (stopped)."),
    ({"bans": [Ban("clientid", "gateway-0-1", "flapping", "never")]}, "bans", FAIL, "gateway-0-1"),
    ({"bans": [Ban("clientid", "somebody", "", "infinity")]}, "bans", OK, ""),
    ({"bans": [Ban("username", "gw", "", "infinity")]}, "bans", FAIL, "username gw"),
    ({"clients": {}}, "sessions", FAIL, "4 of 4 sessions are not connected"),
    ({"clients": {}, "runs": False}, "sessions", OK, "no session"),
    ({"clients": {}}, "drops", SKIPPED, "no session"),
])  # fmt: skip
def test_what_emqx_tells(changes: dict[str, Any], name: str, severity: Severity, says: str) -> None:
    changes = {"rate": 2000.0, **changes}
    check = emqx(**changes)[name]
    assert check.severity is severity, check.text
    assert says in check.text


def test_drops_and_orphans_are_named_by_client_id() -> None:
    clients = {
        "gateway-0-0": EmqxClient("gateway-0-0", connected=True, mqueue_dropped=1200),
        "gateway-5-1": EmqxClient("gateway-5-1", connected=False, mqueue_len=17),
        "gateway-other": EmqxClient("gateway-other", connected=True),
        "gateway-doctor-12ab": EmqxClient("gateway-doctor-12ab", connected=True),
    }
    checks = emqx(clients=clients)
    assert checks["drops"].facts["dropped"] == {"gateway-0-0": 1200}
    assert "1,200 messages" in checks["drops"].text
    assert checks["orphans"].facts["orphans"] == ["gateway-5-1"]
    assert "17 messages" in checks["orphans"].text


def test_sessions_of_groups_count_too() -> None:
    theirs = zone(shared_subscription_strategy="round_robin", max_mqueue_len=1000)
    checks = emqx(tables=_GROUPED, zone=theirs, rate=1900.0)
    assert "take 1500" in checks["window"].text
    assert "for each of 10 sessions" in checks["queue"].text
    assert checks["queue"].severity is WARN, "2,000 messages a second"
    assert "over 10 sessions" in checks["mailbox"].text
    assert "with 8 sessions" in checks["strategy"].text
    findings = Findings("mqtt")
    judge_rest(findings, settings_of(**_GROUPED), WELCOME, door(), 2)
    assert next(check for check in findings if check.name == "window").facts["sessions"] == 10


def test_an_api_that_cannot_be_asked() -> None:
    problem = EmqxRefusedError("EMQX refuses the key.", "refused")
    checks = emqx(problems={"api": problem})
    assert (checks["api"].severity, checks["api"].status) == (FAIL, ExitStatus.REFUSED)
    assert {check.severity for name, check in checks.items() if name != "api"} == {SKIPPED}
    partly = emqx(zone=None, bans=None, problems={"zone": problem, "bans": problem})
    assert partly["queue"].severity is partly["bans"].severity is SKIPPED
    assert partly["drops"].severity is OK


def test_client_ids_of_groups_and_their_pattern() -> None:
    routes = [
        {"name": "alarms", "filters": ["alarms/#"], "topic": "alarms", "group": "alarms"},
        {"name": "telemetry", "filters": ["devices/#"], "topic": "telemetry"},
    ]
    settings = settings_of(mqtt={"sessions": 1, "groups": [{"name": "alarms"}]}, routes=routes)
    assert expected_ids(settings, 2) == ["gateway-0-0", "gateway-0-alarms-0", "gateway-1-0", "gateway-1-alarms-0"]
    pattern = session_pattern(settings)
    for name in ("gateway-9-3", "gateway-12-alarms-4"):
        assert pattern.fullmatch(name)
    for name in ("gateway-9", "gateway-9-other-1", "agateway-9-3", "gateway-doctor-12"):
        assert not pattern.fullmatch(name)


def test_what_ended_today_is_not_zero_days_ago() -> None:
    ago = [since_days(-minutes / 1440) for minutes in (0.2, 5, 59, 90, 47 * 60, 72 * 60)]
    assert ago == ["1 minute ago", "5 minutes ago", "59 minutes ago", "2 hours ago", "47 hours ago", "3 days ago"]
