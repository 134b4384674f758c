"""Verdicts over the MQTT brokers' answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from config.errors import ExitStatus
from config.numbers import bytes_text, some
from config.values.addresses import is_loopback, parse_mqtt_address
from gateway.mqtt import reasons
from gateway.tools.doctor.endpoint_verdicts import SLOW_S, judge_endpoint
from gateway.tools.doctor.wording import milliseconds

if TYPE_CHECKING:
    from bridge.routing.filters import Subscription
    from config.settings import MqttSettings, Settings
    from gateway.mqtt.probe import Visit
    from gateway.tools.doctor.model import Findings
    from gateway.tools.doctor.mqtt_facts import AddressFacts, DoorFacts

_BEHIND_LOGIN: Final = ("version", "shared", "qos", "window", "session_expiry", "packet_size", "retain")
_DOORS: Final = ("anonymous", "wrong_password", "everything")
_NOT_FOR_THE_LOGIN: Final = {"unavailable", "protocol", "redirected"}  # refusals of any client
_REFUSED: Final = {"credentials", "not_authorised", "client_id", "banned"}
_ACKNOWLEDGED_S: Final = 0.01  # a usual time to Kafka's acknowledgement, for the arithmetic of windows
_MOSQUITTO: Final = re.compile(r"mosquitto (\d+)\.(\d+)\.(\d+)")
_WINDOW_KEPT: Final = (2, 0, 13)  # its change log: "Various fixes around inflight quota management"
_FAILED: Final = 0x80  # this and above are refusals, in CONNACK and SUBACK


def judge_addresses(findings: Findings, settings: Settings, addresses: Sequence[AddressFacts]) -> Visit | None:
    """All checks of single addresses. Returns the first accepted visit."""
    welcome = None
    for one in addresses:
        encrypted = parse_mqtt_address(one.address).encrypted and not one.proxied
        because = judge_endpoint(
            findings,
            one.address,
            one.endpoint,
            "mqtt.proxy" if one.proxied else "mqtt.addresses",
            table="mqtt.tls",
            encrypted=encrypted,
            process="the proxy" if one.proxied else "the broker",
        )
        if because or one.login is None:
            findings.of("login", one.address).skip(f"Not tried: {because}.")
        elif judge_login(findings, settings.mqtt, one) and welcome is None:
            welcome = one.login
    return welcome


def judge_rest(
    findings: Findings, settings: Settings, welcome: Visit | None, door: DoorFacts | None, workers: int
) -> None:
    """Check what the broker grants, and to whom. ``workers`` is their number by these settings."""
    if welcome is None:
        findings.skip(_BEHIND_LOGIN, "Not tried: no MQTT address lets the gateway in (login).")
    else:
        judge_welcome(findings, settings, welcome, door, workers)
    if door is None:
        findings.skip(_DOORS, "Not tried: no MQTT broker answers (login).")
    else:
        judge_door(findings, door)


def judge_login(findings: Findings, mqtt: MqttSettings, facts: AddressFacts) -> bool:
    """Check that one address accepts the gateway's credentials."""
    login, check = facts.login, findings.of("login", facts.address)
    assert login is not None
    who = "without a name" if mqtt.username is None else f"as {mqtt.username!r}"
    if login.error is not None:
        frozen = login.error.reason == "timeout" and not facts.proxied
        text, fix = str(login.error), "The broker's log says what it saw of us."
        if frozen:
            text = (
                f"It takes the connection and does not answer CONNECT within {milliseconds(login.seconds)}: the "
                "broker is frozen, or overloaded, or its access service does not answer."
            )
            fix = (
                "Look at the broker's process (stopped, swapping) and at what it asks for logins; EMQX waits 5 s for "
                "each HTTP authenticator."
            )
        status = ExitStatus.REFUSED if login.error.exit_status is ExitStatus.REFUSED else ExitStatus.UNAVAILABLE
        check.fail(text, fix, status=status, state="frozen" if frozen else login.error.reason)
        return False
    assert login.code is not None
    if not login.welcome:
        label = reasons.connect_label(login.code)
        proof = "mqtt.password" if mqtt.token is None else "mqtt.token"
        fix = f"Check mqtt.username and {proof} against the broker's users and rules."
        if label == "protocol":
            fix = 'Set mqtt.protocol to what the broker speaks ("3.1.1" for old ones).'
        elif label == "unavailable":
            fix = "The broker has no room or is stopping: look at its connection limits and its log."
        elif label == "client_id":
            fix += " A rule that ties the user to its client ids may refuse the doctor's alone: see its log."
        check.fail(
            f"It refused us {who}: {reasons.words(login.code)}.",
            fix,
            status=ExitStatus.REFUSED if label in _REFUSED else ExitStatus.UNAVAILABLE,
            code=login.code,
        )
        return False
    text = f"Logged in {who} in {milliseconds(login.seconds)}."
    if login.seconds > SLOW_S:
        check.warn(
            f"{text} Each reconnect of each session takes as long, and EMQX queues only so much meanwhile.",
            "Look at the broker's load and at the service that it asks for logins.",
            seconds=login.seconds,
        )
    else:
        check.ok(text, seconds=login.seconds)
    return True


def judge_welcome(findings: Findings, settings: Settings, welcome: Visit, door: DoorFacts | None, workers: int) -> None:
    """Check what the broker grants to the gateway."""
    check = findings.of("retain")
    mqtt, limits = settings.mqtt, welcome.limits
    _judge_version(findings, mqtt, "" if door is None else door.broker)
    _judge_subscriptions(findings, mqtt, welcome, door)
    _judge_window(findings, mqtt, limits, workers)
    _judge_expiry(findings, mqtt, limits)
    _judge_packets(findings, mqtt, limits)
    if limits.get("retain_available") == 0 and mqtt.status.enabled:
        check.fail(
            "The broker keeps no retained messages: it will refuse the gateway, whose birth message and will are.",
            "Allow retained messages there (EMQX: mqtt.retain_available), or set mqtt.status.enabled = false.",
            status=ExitStatus.REFUSED,
        )
    elif mqtt.protocol == "5":
        check.ok("Retained messages are allowed.")
    else:
        check.skip("An MQTT 3.1.1 broker does not say.")


def _judge_version(findings: Findings, mqtt: MqttSettings, broker: str) -> None:
    check = findings.of("version", version=mqtt.protocol, broker=broker or None)
    found = _MOSQUITTO.fullmatch(broker)
    named = f"The broker, {broker}," if broker else "The broker"
    if mqtt.protocol != "5":
        check.ok(
            f"{named} takes MQTT 3.1.1, as mqtt.protocol says: no user properties, reason codes or window with it.",
        )
    elif found and tuple(map(int, found.groups())) < _WINDOW_KEPT:
        check.warn(
            f"{named} speaks MQTT 5, and may send more than the window (mqtt.receive_maximum) after a connection "
            "broke: then it sends acknowledged messages again, and Kafka gets copies. Memory is bounded.",
            "Use mosquitto 2.0.13 or later, whose change log names repairs of this (docs/runbook.md#window-overrun).",
        )
    else:
        check.ok(f"{named} speaks MQTT 5.")


def _judge_subscriptions(findings: Findings, mqtt: MqttSettings, welcome: Visit, door: DoorFacts | None) -> None:
    """``welcome``: the visit that was let in. ``door`` has the answers to SUBSCRIBE; None if no broker answered."""
    shared = mqtt.distribution == "shared"
    if shared and welcome.limits.get("shared_available") == 0:
        findings.of("shared").fail(
            "The broker has shared subscriptions ($share) switched off.",
            'Allow them (EMQX: mqtt.shared_subscription = true), or set mqtt.distribution = "partitioned".',
            status=ExitStatus.REFUSED,
        )
        findings.of("qos").skip("Not tried: without shared subscriptions nothing can be subscribed (shared).")
        return
    granted = None if door is None or door.filters is None else door.filters.granted
    if door is None or not door.asked:
        findings.skip(("shared", "qos"), "There are no routes, so nothing to subscribe to.")
        return
    if granted is None or len(granted) != len(door.asked):
        findings.of("shared" if shared else "qos").fail(
            "The broker let us in and did not answer SUBSCRIBE: it hung up, or is overloaded.",
            "See its log; EMQX disconnects instead of answering where authorization.deny_action = disconnect.",
            status=ExitStatus.REFUSED,
        )
        return
    _judge_granted(findings, door.asked, granted, shared=shared)


def _judge_granted(findings: Findings, asked: tuple[Subscription, ...], granted: list[int], *, shared: bool) -> None:
    pairs = list(zip(asked, granted, strict=True))
    refused = [f"{_plain(one.filter)} ({reasons.words(code)})" for one, code in pairs if code >= _FAILED]
    lower = [f"{_plain(one.filter)} (QoS {code} of {one.qos})" for one, code in pairs if code < min(one.qos, _FAILED)]
    if refused:
        findings.of("shared" if shared else "qos").fail(
            f"The broker refuses the gateway's subscription to {some(refused)}.",
            "Allow this user to subscribe to them in the broker's rules; and see that it supports $share.",
            status=ExitStatus.REFUSED,
            refused=refused,
        )
        return
    if shared:
        findings.of("shared").ok(f"Shared subscriptions work: {some(_plain(one.filter) for one in asked)}.")
    if lower:
        findings.of("qos").warn(
            f"The broker grants less than asked for: {some(lower)}. Messages of these may be lost at a break.",
            "Raise its highest QoS (EMQX: mqtt.max_qos_allowed).",
            lowered=lower,
        )
    else:
        findings.of("qos").ok(f"QoS {max(one.qos for one in asked)} is granted, as asked for.")


def _plain(text: str) -> str:
    return text.split("/", 2)[2] if text.startswith("$share/") else text


def _judge_window(findings: Findings, mqtt: MqttSettings, limits: dict[str, int], workers: int) -> None:
    """``limits`` are those that the broker named when it let the gateway in."""
    if mqtt.protocol != "5":
        findings.of("window").skip("An MQTT 3.1.1 broker does not say how many unacknowledged messages it sends.")
        return
    granted, wanted = min(mqtt.receive_maximum, limits.get("receive_maximum", 65_535)), mqtt.receive_maximum
    sessions = (mqtt.sessions + sum(group.sessions for group in mqtt.groups)) * workers
    check = findings.of("window", granted=granted, wanted=wanted, sessions=sessions)
    rate = sessions * granted / _ACKNOWLEDGED_S
    if granted < wanted:
        check.warn(
            f"The broker names a window of {granted} unacknowledged messages for each session, not the {wanted} of "
            f"mqtt.receive_maximum: with {sessions} sessions and 10 ms until Kafka has acknowledged that is at most "
            f"{rate:,.0f} messages a second; what comes above it waits in the broker's queue, and is dropped there. "
            "EMQX keeps to it; mosquitto names what it takes itself, and sends as many as we ask for.",
            f"EMQX: raise mqtt.max_inflight to {wanted}, or use more sessions (mqtt.sessions). Mosquitto: nothing.",
        )
    else:
        check.ok(
            f"{granted} unacknowledged messages for each of {sessions} sessions: {rate:,.0f} a second where Kafka "
            "takes 10 ms.",
        )


def _judge_expiry(findings: Findings, mqtt: MqttSettings, limits: dict[str, int]) -> None:
    """``limits`` are those that the broker named when it let the gateway in."""
    check = findings.of("session_expiry")
    wanted = int(mqtt.session_expiry.total_seconds())
    if not mqtt.persistent:
        check.warn(
            "mqtt.persistent is off: what arrives while the gateway is away is lost, and so is what it had not yet "
            "acknowledged.",
            "Set mqtt.persistent = true, unless that is wanted.",
        )
    elif mqtt.protocol != "5":
        check.skip("In MQTT 3.1.1 the broker alone decides how long it keeps a session.")
    elif (granted := limits.get("session_expiry", wanted)) < wanted:
        check.warn(
            f"The broker keeps a session for {granted} s, not for the {wanted} s of mqtt.session_expiry: a longer "
            "absence loses what waits.",
            "Raise it at the broker (mosquitto: persistent_client_expiration; HiveMQ: session-expiry), or lower the "
            "setting to what is true.",
            granted=granted,
            wanted=wanted,
        )
    else:
        check.ok(f"A session is kept for {granted} s.", granted=granted, wanted=wanted)


def _judge_packets(findings: Findings, mqtt: MqttSettings, limits: dict[str, int]) -> None:
    """``limits`` are those that the broker named when it let the gateway in."""
    theirs = limits.get("maximum_packet_size")
    check = findings.of("packet_size", broker=theirs, gateway=mqtt.max_packet_bytes)
    if mqtt.protocol != "5":
        check.skip("An MQTT 3.1.1 broker does not say what packets it takes.")
    elif theirs is not None and theirs > mqtt.max_packet_bytes:
        check.warn(
            f"The broker takes packets of up to {bytes_text(theirs)} from devices, the gateway only "
            f"{bytes_text(mqtt.max_packet_bytes)} (mqtt.max_packet_bytes): what is between is dropped by the broker in "
            "silence, though the device was acknowledged.",
            "Raise mqtt.max_packet_bytes, or lower the broker's limit (EMQX: mqtt.max_packet_size).",
        )
    else:
        said = "names no limit for packets" if theirs is None else f"takes packets of up to {bytes_text(theirs)}"
        check.ok(
            f"The broker {said}; the gateway takes {bytes_text(mqtt.max_packet_bytes)}; larger ones never reach it.",
        )


def judge_door(findings: Findings, door: DoorFacts) -> None:
    """Check who else is admitted, and what a device may read."""
    here = is_loopback(parse_mqtt_address(door.address).host)
    only = " Harmless only as long as nobody but this machine reaches the broker." if here else ""
    _judge_stranger(
        findings,
        "anonymous",
        door.anonymous,
        f"Whoever connects without user name and password is let in.{only}",
        "Switch anonymous logins off (EMQX: an authenticator under Access Control; mosquitto: allow_anonymous false; "
        "HiveMQ: a security extension in place of allow-all).",
        "A client without user name and password is refused",
        certificate=door.without_certificate,
    )
    _judge_stranger(
        findings,
        "wrong_password",
        door.stranger,
        f"A user that does not exist is let in with a random password: passwords are not checked.{only}",
        "Give the broker an authenticator (EMQX: Access Control, Authentication; mosquitto: password_file).",
        "An unknown user with a random password is refused",
        certificate=door.without_certificate,
    )
    _judge_everything(findings, door)


def _judge_stranger(
    findings: Findings, name: str, visit: Visit | None, let_in: str, fix: str, refused: str, *, certificate: bool
) -> None:
    """``let_in`` and ``refused`` are the sentences for these results. ``certificate``: the test used no client
    certificate, unlike the gateway."""
    check = findings.of(name)
    if visit is not None and visit.code is not None:
        if visit.welcome:
            check.fail(let_in, fix, status=ExitStatus.REFUSED)
        elif reasons.connect_label(visit.code) in _NOT_FOR_THE_LOGIN:
            check.skip(f"It could not be told: the broker takes no login now ({reasons.words(visit.code)}).")
        else:
            check.ok(f"{refused} ({reasons.words(visit.code)}).", code=visit.code)
        return
    error = None if visit is None else visit.error
    # TLS 1.3 asks for a certificate after its handshake, so a refusal may look like a closed connection.
    if certificate and error is not None and error.reason in {"tls", "protocol"}:
        check.ok(f"{refused}, and hung up on without a client certificate.")
    else:
        check.skip(f"It could not be told: the broker did not answer that login. {error or ''}".rstrip())


def _judge_everything(findings: Findings, door: DoorFacts) -> None:
    """Whether a client other than the gateway may subscribe to ``#``: the device's user, else one without a name."""
    check = findings.of("everything")
    visit, who = door.everything, door.everything_as  # the visit that asked for "#"
    if visit is None or who is None:
        if door.device is not None:
            said = "did not answer" if door.device.code is None else reasons.words(door.device.code)
            because = f"Not tried: the broker does not let in the user of --device-user ({said})."
        else:
            because = (
                "Not tried: a client without a name is refused, and there is no device's user: give one with "
                "--device-user NAME --device-password-file FILE."
            )
        check.skip(because)
        return
    granted = visit.granted[0] if visit.granted else None
    if visit.error is not None:
        check.skip(f"It could not be told: {visit.error}")
    elif granted is not None and granted < _FAILED:
        check.fail(
            f"SUBSCRIBE # is granted to {who}: it reads every message of every device.",
            "Let devices read their own topics alone (EMQX: Access Control, Authorization, with no_match = deny). "
            "mosquitto grants every subscription and withholds what its acl_file denies: look there.",
            status=ExitStatus.REFUSED,
        )
    else:
        said = "it was disconnected" if granted is None else reasons.words(granted)
        check.ok(f"SUBSCRIBE # is refused to {who} ({said}).")
