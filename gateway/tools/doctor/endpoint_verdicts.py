"""Verdicts over one address: its name, its port, its certificate."""

from __future__ import annotations

__all__ = ["SLOW_S", "WARN_DAYS", "judge_certificate", "judge_endpoint"]

from typing import TYPE_CHECKING, Final

from config.errors import ExitStatus
from gateway.tools.doctor.wording import days_left, milliseconds, since_days

if TYPE_CHECKING:
    from bridge.certificate import Validity
    from gateway.tools.doctor.endpoint import Endpoint, Step
    from gateway.tools.doctor.model import Findings

WARN_DAYS: Final = 14
SLOW_S: Final = 1.0  # what takes that long on the way to a broker holds up every batch


def judge_endpoint(
    findings: Findings,
    about: str,
    endpoint: Endpoint,
    settings: str,
    *,
    table: str,
    encrypted: bool = False,
    process: str = "the broker",
    hurt: str = "",
    now_s: float = 0,
) -> str:
    """One check for each step; why what comes behind them cannot be tried, empty when it can. ``settings`` is where the
    address comes from ("mqtt.addresses"), ``table`` that of TLS ("mqtt.tls"); ``hurt`` what stands still without it;
    ``now_s`` is for tests."""
    behind = ("tls",) if encrypted else ()
    if not _judge_name(findings, about, endpoint, settings):
        because = "its name is not resolved (dns)"
        _skip(findings, about, ("tcp", *behind), because)
        return because
    assert endpoint.tcp is not None
    if not _judge_tcp(findings, about, endpoint, endpoint.tcp, settings, process, hurt):
        because = "it cannot be connected to (tcp)"
        _skip(findings, about, behind, because)
        return because
    if endpoint.tls is not None and not _judge_tls(findings, about, endpoint, table, process, hurt, now_s):
        return "TLS does not come about (tls)"
    return ""


def _judge_name(findings: Findings, about: str, endpoint: Endpoint, settings: str) -> bool:
    step = endpoint.name
    if step.failure is not None:
        what = "the resolver did not answer" if step.failure == "silent" else f"it has no address ({step.detail})"
        findings.fail(
            "dns",
            f"The name {endpoint.host!r} cannot be resolved: {what}, after {milliseconds(step.seconds)}.",
            f"Check the spelling in {settings}, and this machine's DNS: getent hosts {endpoint.host}",
            about,
            ExitStatus.UNAVAILABLE,
            seconds=step.seconds,
        )
        return False
    ips = ", ".join(endpoint.ips)
    if step.seconds > SLOW_S:
        findings.warn(
            "dns",
            f"Resolving {endpoint.host!r} took {milliseconds(step.seconds)}; every new connection waits for it.",
            "Look at this machine's resolvers (/etc/resolv.conf): the first of them may be away.",
            about,
            seconds=step.seconds,
        )
    else:
        said = f"{endpoint.host} is {ips}, in {milliseconds(step.seconds)}."
        if endpoint.ips == (endpoint.host,):
            said = "An address, no name to resolve."
        findings.ok("dns", said, about, seconds=step.seconds)
    return True


def _judge_tcp(
    findings: Findings, about: str, endpoint: Endpoint, step: Step, settings: str, process: str, hurt: str
) -> bool:
    where = f"{endpoint.host}:{endpoint.port}"
    if step.failure == "refused":
        findings.fail(
            "tcp",
            f"It refuses connections: the machine is there, and nothing listens on port {endpoint.port}. "
            f"{process.capitalize()} is dead, or this is another port.{hurt}",
            f"Start {process}; if it runs, compare its listeners with {settings}.",
            about,
            ExitStatus.UNAVAILABLE,
            state="dead",
        )
    elif step.failure is not None:
        findings.fail(
            "tcp",
            f"It cannot be reached ({step.detail}, {milliseconds(step.seconds)}): the machine is away, or a "
            f"firewall drops the packets.{hurt}",
            f"Check the route and the firewall from this machine (nc -vz {endpoint.host} {endpoint.port}), and "
            f"{settings}.",
            about,
            ExitStatus.UNAVAILABLE,
            state="unreachable",
        )
    elif step.seconds > SLOW_S:
        findings.warn(
            "tcp",
            f"Connecting to {where} took {milliseconds(step.seconds)}.",
            "Look for packet loss on the way (a first SYN that is lost costs a second).",
            about,
            seconds=step.seconds,
        )
    else:
        findings.ok("tcp", f"Connected to {where} in {milliseconds(step.seconds)}.", about, seconds=step.seconds)
    return step.failure is None


def _judge_tls(
    findings: Findings, about: str, endpoint: Endpoint, table: str, process: str, hurt: str, now_s: float
) -> bool:
    assert endpoint.tls is not None
    step = endpoint.tls.step
    if step.failure == "silent":
        findings.fail(
            "tls",
            "It takes the connection and does not answer the TLS handshake within "
            f"{milliseconds(step.seconds)}: {process} is frozen, or does not speak TLS there.{hurt}",
            f"Look at {process}'s process (stopped, swapping, out of threads); if it is well, is this its TLS port?",
            about,
            ExitStatus.UNAVAILABLE,
            state="frozen",
        )
        return False
    if step.failure == "certificate":
        left = None if endpoint.tls.validity is None else days_left(endpoint.tls.validity, now_s or None)
        if left is not None and left < 0:
            text = f"Its certificate expired {since_days(left)}."
            fix = f"Renew it at {process}; every client that verifies is refused until then."
        else:
            text = f"Its certificate is not accepted: {step.detail}."
            fix = (
                f"Check {table}.ca_file (the authority that signed it) and {table}.server_name (the name that it "
                "carries)."
            )
        findings.fail("tls", text, fix, about, days_left=left)
        return False
    if step.failure is not None:
        findings.fail(
            "tls",
            f"The handshake failed ({step.detail}).",
            f"Is this its TLS listener? Check {table}: minimum_version, and whether it asks for certificate_file.",
            about,
        )
        return False
    findings.ok(
        "tls",
        f"{endpoint.tls.version} in {milliseconds(step.seconds)}.",
        about,
        seconds=step.seconds,
        version=endpoint.tls.version,
    )
    if endpoint.tls.validity is not None:
        judge_certificate(findings, about, endpoint.tls.validity, "Its certificate", now_s=now_s)
    return True


def judge_certificate(
    findings: Findings, about: str, validity: Validity, whose: str, *, file: str = "", now_s: float = 0
) -> None:
    """How long a certificate is good: a warning below WARN_DAYS, a FAIL when it has ended or not begun."""
    left = days_left(validity, now_s or None)
    at = f" ({file})" if file else ""
    renew = "Renew it; the gateway takes a new file up by itself." if file else "Have it renewed where it is made."
    if left < 0:
        findings.fail("certificate", f"{whose}{at} expired {since_days(left)}.", renew, about, days_left=left)
    elif days_left(validity._replace(ends_s=validity.begins_s), now_s or None) > 0:
        findings.fail(
            "certificate",
            f"{whose}{at} is not valid yet.",
            "Compare the clocks of this machine and of the one that made it.",
            about,
            days_left=left,
        )
    elif left < WARN_DAYS:
        findings.warn("certificate", f"{whose}{at} ends in {left:.0f} days.", renew, about, days_left=left)
    else:
        findings.ok("certificate", f"{whose}{at} is good for {left:.0f} more days.", about, days_left=left)


def _skip(findings: Findings, about: str, names: tuple[str, ...], because: str) -> None:
    for name in names:
        findings.skip(name, f"Not tried: {because}.", about)
