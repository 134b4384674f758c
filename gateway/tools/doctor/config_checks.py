"""The settings' own warnings, whose the data directory is, and the certificates and tokens that the gateway shows."""

from __future__ import annotations

__all__ = ["judge_identity", "judge_router", "judge_settings", "look_at_tokens", "own_certificates", "recorded_cluster"]

import asyncio
import time
from typing import TYPE_CHECKING

from bridge.certificate import validity
from bridge.routing.router import Router
from bridge.tls import tls_context
from config.errors import ConfigError, ExitStatus, GatewayError
from gateway.data_dir.directory import explained
from gateway.data_dir.meta_properties import WITNESS_FILE, Witness, read_meta
from gateway.tools.doctor.endpoint_verdicts import judge_certificate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from bridge.ports import CredentialSource
    from config.loading.load import Loaded
    from config.settings import Settings
    from gateway.tools.doctor.model import Findings

_TOKEN_WARN_S = 60.0  # what is renewed well before should have more left


def judge_settings(findings: Findings, loaded: Loaded) -> None:
    """What loading them said."""
    where = "defaults and environment alone" if loaded.file is None else str(loaded.file)
    findings.ok("settings", f"The settings load ({where}).", file=None if loaded.file is None else str(loaded.file))
    for warning in loaded.warnings:
        findings.warn("settings", warning, "See docs/configuration.md; it is allowed, and the start says it too.")


def judge_router(findings: Findings, loaded: Loaded) -> Router | None:
    """Whether routes can be made of the settings; None when not."""
    settings = loaded.settings
    if not settings.routes:
        findings.fail(
            "routes",
            "There are no routes: the gateway would subscribe to nothing, and will not start.",
            loaded.missing_file or "Add a [[routes]] table with name, filters and topic.",
            status=ExitStatus.CONFIG,
        )
        return None
    try:
        router = Router(settings.routes, instance=settings.instance, reserved_topics=settings.own_topics)
    except ConfigError as error:
        findings.fail("routes", str(error), "See gateway routes lint.", status=ExitStatus.CONFIG)
        return None
    for warning in router.warnings:
        findings.warn("routes", f"{warning[0].upper()}{warning[1:]}.", "See gateway routes lint.")
    if not router.warnings:
        count = len(settings.routes)
        findings.ok("routes", f"{count} route{'' if count == 1 else 's'}; none hides or doubles another.")
    return router


def judge_identity(findings: Findings, directory: Path, instance: str) -> None:
    """Whose the data directory is. Changes nothing there."""
    where = str(directory.absolute())
    fix = "Set data_dir or instance right; gateway identity adopt takes a directory over that nobody else uses."
    try:
        with explained(directory):
            meta = read_meta(directory)
            path = directory / WITNESS_FILE
            witness = Witness.of(path) if path.exists() else None
    except ConfigError as error:
        findings.fail("identity", str(error), fix, where, ExitStatus.CONFIG)
        return
    if meta is None:
        findings.ok("identity", f"Nobody's yet: the next start takes it for instance {instance!r}.", where)
    elif meta.instance != instance:
        findings.fail(
            "identity",
            f"It belongs to instance {meta.instance!r}, and the settings say {instance!r}: the gateway will not start.",
            fix,
            where,
            ExitStatus.CONFIG,
        )
    elif meta.witness is not None and (witness is None or not meta.witness.is_same(witness)):
        findings.fail(
            "identity",
            f"It is a copy of the one that instance {instance!r} lives in, was moved from another disk, or comes from "
            "a backup: the gateway will not start.",
            fix,
            where,
            ExitStatus.CONFIG,
        )
    else:
        findings.ok(
            "identity",
            f"It belongs to instance {instance!r} and Kafka cluster {meta.cluster_id or 'not known yet'}.",
            where,
            instance_id=meta.instance_id,
            cluster_id=meta.cluster_id,
        )


def recorded_cluster(directory: Path) -> str | None:
    """The Kafka cluster that the data directory belongs to; None when it does not say."""
    try:
        with explained(directory):
            meta = read_meta(directory)
    except ConfigError:
        return None
    return None if meta is None else meta.cluster_id


def own_certificates(findings: Findings, settings: Settings) -> None:
    """The certificates that the gateway shows to others: can they be used, and for how long. Reads small files."""
    mqtt_tls = any(text.startswith(("mqtts", "wss")) for text in settings.mqtt.addresses)
    tables = {
        "mqtt.tls": settings.mqtt.tls if mqtt_tls else None,
        "kafka.tls": settings.kafka.tls if settings.kafka.security.endswith("SSL") else None,
        "admin.tls": settings.admin.tls if (settings.admin.security or "").endswith("SSL") else None,
        "emqx.tls": settings.emqx.tls if (settings.emqx.url or "").startswith("https") else None,
    }
    files: dict[str, Path] = {}
    for where, tls in tables.items():
        if tls is None:
            continue
        try:
            tls_context(tls, where)
        except ConfigError as error:
            findings.fail("certificate", str(error), "Correct the setting that it names.", where, ExitStatus.CONFIG)
            continue
        if tls.certificate_file is not None:
            files[where] = tls.certificate_file
    if settings.http.tls is not None:
        files["http.tls"] = settings.http.tls.certificate_file
    for where, file in files.items():
        try:
            found = validity(file)
        except ValueError as error:
            findings.fail("certificate", f"{error}.", f"Check {where}.certificate_file.", where, ExitStatus.CONFIG)
            continue
        judge_certificate(findings, where, found, f"The certificate of {where}", file=str(file))


async def look_at_tokens(findings: Findings, sources: Mapping[str, CredentialSource], timeout_s: float) -> None:
    """Whether each token can be had, and until when it is good. ``sources`` by the setting that names them."""

    async def look(where: str, source: CredentialSource) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                credential = await source.current()
        except (GatewayError, TimeoutError) as error:
            text = str(error) or f"It did not come within {timeout_s:g} s."
            status = error.exit_status if isinstance(error, GatewayError) else ExitStatus.UNAVAILABLE
            findings.fail("token", f"There is no token: {text}", f"Check {where} and its server.", where, status)
            return
        if credential.expires_at_ns is None:
            findings.ok("token", "There is a token; nobody can tell when it expires.", where)
            return
        left_s = (credential.expires_at_ns - time.monotonic_ns()) / 1e9
        if left_s < 0:
            findings.fail(
                "token",
                f"The token expired {-left_s:.0f} s ago, and there is no other.",
                f"Put a new one where {where} says.",
                where,
                ExitStatus.REFUSED,
                seconds_left=left_s,
            )
        elif left_s < _TOKEN_WARN_S:
            findings.warn("token", f"The token ends in {left_s:.0f} s.", f"See {where}.", where, seconds_left=left_s)
        else:
            findings.ok("token", f"There is a token for {left_s:,.0f} more seconds.", where, seconds_left=left_s)

    await asyncio.gather(*(look(where, source) for where, source in sources.items()))
