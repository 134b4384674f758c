"""Checks of the settings, the data directory's owner, and the gateway's certificates and tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.certificate import validity
from bridge.routing.router import Router
from bridge.tls import client_tables, tls_context
from config.errors import ConfigError, ExitStatus, GatewayError
from config.numbers import many
from gateway.data_dir import identity
from gateway.data_dir.meta_properties import IdentityError
from gateway.tools.doctor.endpoint_verdicts import judge_certificate

if TYPE_CHECKING:
    from bridge.ports import CredentialSource
    from config.loading.load import Loaded
    from config.settings import Settings
    from gateway.tools.doctor.model import Findings

_TOKEN_WARN_S = 60.0  # tokens are renewed earlier, so less means a failing renewal


def judge_settings(findings: Findings, loaded: Loaded) -> None:
    check = findings.of("settings")
    where = "defaults and environment alone" if loaded.file is None else str(loaded.file)
    check.ok(f"The settings load ({where}).", file=None if loaded.file is None else str(loaded.file))
    for warning in loaded.warnings:
        check.warn(warning, "See docs/configuration.md; it is allowed, and the start says it too.")


def judge_router(findings: Findings, loaded: Loaded) -> Router | None:
    """Check the routes. Returns the router, or None for faulty ones."""
    check = findings.of("routes")
    settings = loaded.settings
    if not settings.routes:
        check.fail(
            "There are no routes: the gateway would subscribe to nothing, and will not start.",
            loaded.missing_file or "Add a [[routes]] table with name, filters and topic.",
            status=ExitStatus.CONFIG,
        )
        return None
    try:
        router = Router(settings.routes, instance=settings.instance, reserved_topics=settings.own_topics)
    except ConfigError as error:
        check.fail(str(error), "See gateway routes lint.", status=ExitStatus.CONFIG)
        return None
    for warning in router.warnings:
        check.warn(f"{warning[0].upper()}{warning[1:]}.", "See gateway routes lint.")
    if not router.warnings:
        check.ok(f"{many(len(settings.routes), 'route')}; none hides or doubles another.")
    return router


def judge_identity(findings: Findings, directory: Path, instance: str) -> str | None:
    """Check the data directory as a start does. Changes nothing. Returns the directory's Kafka cluster, None if
    unknown."""
    check = findings.of("identity", str(directory.absolute()))
    try:
        meta = identity.judge(directory, instance)
    except IdentityError as error:
        fix = "Correct data_dir or instance, or run doctor as the gateway's user."
        check.fail(str(error), fix, status=error.exit_status)
        return None
    if meta is None:
        check.ok(f"It belongs to no instance yet: the next start makes it that of {instance!r}.")
        return None
    check.ok(
        f"It belongs to instance {instance!r} and Kafka cluster {meta.cluster_id or 'not known yet'}.",
        instance_id=meta.instance_id,
        cluster_id=meta.cluster_id,
    )
    return meta.cluster_id


def own_certificates(findings: Findings, settings: Settings) -> None:
    """Check the gateway's certificates: usable, and how long valid. Reads small files."""
    files: dict[str, Path] = {}
    for where, tls in client_tables(settings).items():
        try:
            tls_context(tls, where)
        except ConfigError as error:
            findings.of("certificate", where).fail(
                str(error), "Correct the setting that it names.", status=ExitStatus.CONFIG
            )
            continue
        if tls.certificate_file is not None:
            files[where] = tls.certificate_file
    if settings.http.tls is not None:
        files["http.tls"] = settings.http.tls.certificate_file
    for where, file in files.items():
        try:
            found = validity(file)
        except ValueError as error:
            findings.of("certificate", where).fail(
                f"{error}.", f"Check {where}.certificate_file.", status=ExitStatus.CONFIG
            )
            continue
        judge_certificate(findings, where, found, f"{where}.certificate_file ({file})", is_ours=True)


async def look_at_tokens(findings: Findings, sources: Mapping[str, CredentialSource], timeout_s: float) -> None:
    """Check that each token is available, and its lifetime. ``sources`` are by setting."""

    async def look(where: str, source: CredentialSource) -> None:
        check = findings.of("token", where)
        try:
            async with asyncio.timeout(timeout_s):
                credential = await source.current()
        except (GatewayError, TimeoutError) as error:
            text = str(error) or f"It did not come within {timeout_s:g} s."
            status = error.exit_status if isinstance(error, GatewayError) else ExitStatus.UNAVAILABLE
            check.fail(f"There is no token: {text}", f"Check {where} and its server.", status=status)
            return
        if credential.expires_at_ns is None:
            check.ok("There is a token; nobody can tell when it expires.")
            return
        left_s = (credential.expires_at_ns - time.monotonic_ns()) / 1e9
        if left_s < 0:
            check.fail(
                f"The token expired {-left_s:.0f} s ago, and there is no other.",
                f"Put a new one where {where} says.",
                status=ExitStatus.REFUSED,
                seconds_left=left_s,
            )
        elif left_s < _TOKEN_WARN_S:
            check.warn(f"The token ends in {left_s:.0f} s.", f"See {where}.", seconds_left=left_s)
        else:
            check.ok(f"There is a token for {left_s:,.0f} more seconds.", seconds_left=left_s)

    await asyncio.gather(*(look(where, source) for where, source in sources.items()))
