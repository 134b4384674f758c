"""Settings of the operator's HTTP port."""

__all__ = ["HttpSettings", "HttpTlsSettings"]

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr

from config.values.grammar import Count, Duration
from config.values.model import Table


class HttpTlsSettings(Table):
    certificate_file: Path
    """PEM file with the certificate that the HTTP port shows, and its chain. Required where the table is there. Read
    again when it changes, as the others."""

    key_file: Path | None = None
    """PEM file with its private key. Unset: the key is looked for in `certificate_file`."""

    key_password: SecretStr | None = None
    """Password of an encrypted private key. Unset: it is not encrypted."""

    client_ca_file: Path | None = None
    """PEM file with the authorities whose clients may read everything (mutual TLS); without a certificate there are
    `/healthz` and `/readyz` alone, since probes have none. Unset: no certificate is asked for, and `http.token` is what
    opens."""


class HttpSettings(Table):
    host: Annotated[str, Field(min_length=1, max_length=253)] = "127.0.0.1"
    """Address to listen on. This machine alone unless told; in a container `0.0.0.0`. On any other than a loopback
    address the status page and `/status` open to `http.token` or a client certificate alone, and `/readyz` says to
    others yes or no without reasons."""

    port: Annotated[Count, Field(ge=0, le=65535)] = 9464
    """Port to listen on. 9464 is the one that OpenTelemetry gives Prometheus exporters; 0 takes a free one and logs
    it."""

    token: SecretStr | None = None
    """What a reader has to show, as `Authorization: Bearer …` or as the password of Basic authentication, which a
    browser asks for, with any user name. Everything but `/healthz` and `/readyz` needs it then, `/metrics` too. A
    `token_file` is read again when it changes. At least 16 characters on other than a loopback address. Unset:
    `/metrics` is open to all who reach the port, the status page to this machine alone. It also guards the port of
    `auth.operator_host`."""

    tls: HttpTlsSettings | None = None
    """TLS of the HTTP port, and of that of `auth.operator_host`. Unset: plain HTTP, which suits a loopback address or a
    closed network."""

    overdue_after: Annotated[Duration, Field(gt=timedelta(0), le=timedelta(hours=24))] = timedelta(seconds=30)
    """Age of the oldest unacknowledged message at which `/readyz` turns red. 30 s outlasts an election of Kafka's
    leaders; below `kafka.request_timeout` it turns red at every slow request."""
