"""Settings of the operator's HTTP port."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field, SecretStr

from config.tables.tls import ServerTlsSettings
from config.values.addresses import HostText
from config.values.grammar import Count, Duration
from config.values.model import Table


class HttpSettings(Table):
    host: HostText = "127.0.0.1"
    """Address to listen on: this machine only by default, `0.0.0.0` in a container. On a non-loopback address, the
    status page and `/status` need `http.token` or a client certificate, and `/readyz` gives others no reasons."""

    port: Annotated[Count, Field(ge=0, le=65535)] = 9464
    """Port to listen on. 0 takes a free port and logs it."""

    token: SecretStr | None = None
    """Secret that readers send as `Authorization: Bearer …`, or as the password of Basic authentication with any user
    name. Everything except `/healthz` and `/readyz` needs it or a client certificate, also on `auth.operator_port`. At
    least 16 characters on a non-loopback address. Without both `/metrics` is open to all who reach the port, the status
    page to this machine only. A `token_file` is read again when it changes."""

    tls: ServerTlsSettings | None = None
    """TLS of this port and of `auth.operator_port`. Unset: plain HTTP, for a loopback address or a closed network."""

    overdue_after: Annotated[Duration, Field(gt=timedelta(0), le=timedelta(hours=24))] = timedelta(seconds=30)
    """Age of the oldest unacknowledged message at which `/readyz` turns red. 30 s outlasts an election. Below
    `kafka.request_timeout` it turns red at every slow request."""
