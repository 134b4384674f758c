"""Verdicts over one address: name, port, certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from config.errors import ExitStatus
from gateway.health.measured import certificate_expires
from gateway.tools.doctor.wording import days_left, milliseconds, since_days

if TYPE_CHECKING:
    from bridge.certificate import Validity
    from gateway.tools.doctor.endpoint import Endpoint, Step
    from gateway.tools.doctor.model import Findings

SLOW_S: Final = 1.0  # a step that takes longer delays every batch


def judge_endpoint(
    findings: Findings,
    about: str,
    endpoint: Endpoint,
    settings: str,
    *,
    table: str,
    encrypted: bool = False,
    process: str = "the broker",
    consequence: str = "",
    now_s: float = 0,
) -> str:
    """One check for each step. Returns why further checks are impossible, or an empty text.

    ``settings`` names the address's setting ("mqtt.addresses"), ``table`` that of TLS ("mqtt.tls"). ``consequence``:
    that of a broker that cannot be reached. ``now_s`` is for tests."""
    behind = ("tls",) if encrypted else ()
    if not _judge_name(findings, about, endpoint, settings):
        because = "its name is not resolved (dns)"
        findings.skip(("tcp", *behind), f"Not tried: {because}.", about)
        return because
    assert endpoint.tcp is not None
    if not _judge_tcp(findings, about, endpoint, endpoint.tcp, settings, process, consequence):
        because = "it cannot be connected to (tcp)"
        findings.skip(behind, f"Not tried: {because}.", about)
        return because
    if endpoint.tls is not None and not _judge_tls(findings, about, endpoint, table, process, consequence, now_s):
        return "TLS does not come about (tls)"
    return ""


def _judge_name(findings: Findings, about: str, endpoint: Endpoint, settings: str) -> bool:
    """Returns whether the name has an address."""
    step = endpoint.name
    check = findings.of("dns", about, seconds=step.seconds)
    if step.failure is not None:
        what = "the resolver did not answer" if step.failure == "silent" else f"it has no address ({step.detail})"
        check.fail(
            f"The name {endpoint.host!r} cannot be resolved: {what}, after {milliseconds(step.seconds)}.",
            f"Check the spelling in {settings}, and this machine's DNS: getent hosts {endpoint.host}",
            status=ExitStatus.UNAVAILABLE,
        )
        return False
    if step.seconds > SLOW_S:
        check.warn(
            f"Resolving {endpoint.host!r} took {milliseconds(step.seconds)}; every new connection waits for it.",
            "Look at this machine's resolvers (/etc/resolv.conf): the first of them may be away.",
        )
    else:
        said = f"{endpoint.host} is {', '.join(endpoint.ips)}, in {milliseconds(step.seconds)}."
        if endpoint.ips == (endpoint.host,):
            said = "An address, no name to resolve."
        check.ok(said)
    return True


def _judge_tcp(
    findings: Findings, about: str, endpoint: Endpoint, step: Step, settings: str, process: str, consequence: str
) -> bool:
    """Returns whether there was a connection."""
    check = findings.of("tcp", about, seconds=step.seconds)
    where = f"{endpoint.host}:{endpoint.port}"
    if step.failure == "refused":
        check.fail(
            f"It refuses connections: the machine is there, and nothing listens on port {endpoint.port}. "
            f"{process.capitalize()} is dead, or this is another port.{consequence}",
            f"Start {process}; if it runs, compare its listeners with {settings}.",
            status=ExitStatus.UNAVAILABLE,
            state="dead",
        )
    elif step.failure is not None:
        check.fail(
            f"It cannot be reached ({step.detail}, {milliseconds(step.seconds)}): the machine is away, or a "
            f"firewall drops the packets.{consequence}",
            f"Check the route and the firewall from this machine (nc -vz {endpoint.host} {endpoint.port}), and "
            f"{settings}.",
            status=ExitStatus.UNAVAILABLE,
            state="unreachable",
        )
    elif step.seconds > SLOW_S:
        check.warn(
            f"Connecting to {where} took {milliseconds(step.seconds)}.",
            "Look for packet loss on the way (a first SYN that is lost costs a second).",
        )
    else:
        check.ok(f"Connected to {where} in {milliseconds(step.seconds)}.")
    return step.failure is None


def _judge_tls(
    findings: Findings, about: str, endpoint: Endpoint, table: str, process: str, consequence: str, now_s: float
) -> bool:
    """Returns whether TLS comes about. ``now_s``: 0 is now."""
    check = findings.of("tls", about)
    assert endpoint.tls is not None
    step = endpoint.tls.step
    if step.failure == "silent":
        check.fail(
            "It takes the connection and does not answer the TLS handshake within "
            f"{milliseconds(step.seconds)}: {process} is frozen, or does not speak TLS there.{consequence}",
            f"Look at {process}'s process (stopped, swapping, out of threads); if it is well, is this its TLS port?",
            status=ExitStatus.UNAVAILABLE,
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
        check.fail(text, fix, days_left=left)
        return False
    if step.failure is not None:
        check.fail(
            f"The handshake failed ({step.detail}).",
            f"Is this its TLS listener? Check {table}: minimum_version, and whether it asks for certificate_file.",
        )
        return False
    check.ok(
        f"{endpoint.tls.version} in {milliseconds(step.seconds)}.", seconds=step.seconds, version=endpoint.tls.version
    )
    if endpoint.tls.validity is not None:
        judge_certificate(findings, about, endpoint.tls.validity, process, now_s=now_s)
    return True


def judge_certificate(
    findings: Findings, about: str, validity: Validity, name: str, *, is_ours: bool = False, now_s: float = 0
) -> None:
    """Check a certificate's validity. ``name`` is the setting with the gateway's own, or the server. ``now_s`` is for
    tests; 0 is now."""
    left = days_left(validity, now_s or None)
    check = findings.of("certificate", about, days_left=left)
    expires = certificate_expires(name, left * 86_400, is_ours=is_ours)
    if expires is None and days_left(validity._replace(ends_s=validity.begins_s), now_s or None) > 0:
        check.fail(
            f"The certificate {name} is not valid yet." if is_ours else f"The certificate of {name} is not valid yet.",
            "Compare the clocks of this machine and of the one that made it.",
        )
    elif expires is not None:
        check.problem(expires)
    else:
        check.ok(f"The certificate is good for {left:.0f} more days.")
