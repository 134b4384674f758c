"""The metrics of ``gateway auth serve``; docs/metrics.md prints them with the gateway's own (``gateway.metrics``)."""

from __future__ import annotations

__all__ = ["RESULTS", "AuthMetrics"]

from typing import TYPE_CHECKING, Final

from gateway.instruments import MetricSet, counter, gauge, histogram
from gateway.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

    from config.settings import AuthSettings

RESULTS: Final = ("allow", "deny", "ignore", "error")
_TIMES: Final = (
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
)  # fmt: skip


class AuthMetrics(MetricSet):
    """The service's metrics. Belongs to its event loop."""

    requests = counter(
        "gateway_auth_requests_total",
        "EMQX's requests by what was answered. error: what could not be read as a question, a wrong shared secret, or"
        " a defect; it is answered with deny wherever EMQX understands that. Alert on any error.",
        "the log names the reason of each error; EMQX's body template, auth.shared_secret",
        unit="requests",
        labels=("endpoint", "result"),
        fixed=tuple((result,) for result in RESULTS),
    )
    request_seconds = histogram(
        "gateway_auth_request_seconds",
        "Time from a request's last byte to its answer. EMQX gives up after 5 s and asks its next source.",
        "auth.answer_timeout, auth.hashing.threads, the backends' time-outs; more instances of the service",
        unit="seconds",
        labels=("endpoint",),
        bounds=_TIMES,
    )
    answers_late = counter(
        "gateway_auth_answers_late_total",
        "Logins that were not decided within auth.answer_timeout, and answered as auth.backend_down says.",
        "the backends' time-outs, auth.hashing.queue; more instances of the service",
        unit="requests",
    )
    logins_waiting = gauge(
        "gateway_auth_logins_waiting",
        "Logins that wait for a backend or a hash.",
        "auth.limits.in_flight, auth.hashing.threads",
        unit="requests",
    )
    requests_refused = counter(
        "gateway_auth_requests_refused_total",
        "Requests that no EMQX with the right configuration sends, by reason. EMQX does not take their answer for a"
        " deny: it asks its next source.",
        "EMQX's url and method (path, method), auth.shared_secret (secret); else somebody tries",
        unit="requests",
        labels=("reason",),
        fixed=(("secret",), ("path",), ("method",), ("malformed",)),
    )
    connections = gauge(
        "gateway_auth_connections",
        "HTTP connections, EMQX's pools above all.",
        "auth.limits.connections; EMQX's pool_size",
        unit="connections",
    )
    connections_refused = counter(
        "gateway_auth_connections_refused_total",
        "Connections that were closed from our side: full and evicted for want of room, slow_sender and slow_reader"
        " after auth.limits.read_timeout, tls for a handshake that failed.",
        "auth.limits.connections (full, evicted), auth.tls.client_ca_file and EMQX's ssl (tls)",
        unit="connections",
        labels=("reason",),
        fixed=(("full",), ("evicted",), ("slow_sender",), ("slow_reader",), ("tls",)),
    )
    event_loop_delay = Metrics.event_loop_delay
    build_info = Metrics.build_info

    def __init__(self, settings: AuthSettings) -> None:
        super().__init__({"endpoint": ("authn", "authz"), "backend": settings.chain})
        for row in Metrics.build_info.fixed:
            self.build_info.child(*row).value = 1

    def collect(self) -> Iterable[Metric]:
        """Every family with its present values, then the process's own. Call it in the service's loop."""
        from prometheus_client import ProcessCollector

        yield from super().collect()
        yield from ProcessCollector(registry=None).collect()
