"""The metrics of ``gateway auth serve``; docs/metrics.md prints them with the gateway's own
(``gateway.base.metrics``)."""

from __future__ import annotations

__all__ = ["RESULTS", "AuthMetrics"]

from typing import TYPE_CHECKING, Final, cast, get_args

from auth.errors import DownCause
from auth.logins.reasons import ACCESS_REASONS, LOGIN_REASONS
from gateway.base.instruments import MetricSet, counter, gauge, histogram
from gateway.base.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client.metrics_core import Metric

    from auth.backends.jwt import JwtAuthenticator
    from auth.hashing import Hasher
    from auth.jwt.jwks import JwksKeys
    from auth.logins.chain import Chain
    from auth.logins.counts import Counts
    from auth.ports import Authenticator
    from config.settings import AuthSettings

RESULTS: Final = ("allow", "deny", "ignore", "error")
_OUTCOMES: Final = ("allow", "deny", "ignore", "down", "shed")
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
    login_reasons = counter(
        "gateway_auth_logins_total",
        "Logins by the reason of their answer; docs/auth.md says what each means. shed and rate_limited are logins that"
        " nobody has looked at; bad_password, unknown and locked_out rise when somebody guesses.",
        "auth.limits.in_flight, auth.hashing.queue (shed), auth.limits.logins_per_second (rate_limited),"
        " auth.protection (locked_out), the backends (timeout, backend_down)",
        unit="logins",
        labels=("reason",),
        fixed=tuple((reason,) for reason in LOGIN_REASONS),
    )
    access_reasons = counter(
        "gateway_auth_accesses_total",
        "Questions about topics by the reason of their answer.",
        "rules (no_rule); auth.hand_over_rules, with which there are few of them",
        unit="requests",
        labels=("reason",),
        fixed=tuple((reason,) for reason in ACCESS_REASONS),
    )
    cache_hits = counter(
        "gateway_auth_cache_hits_total",
        "Answers that were remembered: login for verified logins, refused for refused ones, decision for rules.",
        "auth.limits.cache_entries, auth.limits.cache_ttl, auth.limits.negative_ttl",
        unit="requests",
        labels=("cache",),
        fixed=(("login",), ("refused",), ("decision",)),
    )
    cache_misses = counter(
        "gateway_auth_cache_misses_total",
        "Questions whose answer was not remembered.",
        "auth.limits.cache_entries when gateway_auth_cache_evicted_total grows, auth.limits.cache_ttl",
        unit="requests",
        labels=("cache",),
        fixed=(("login",), ("decision",)),
    )
    cache_hits_while_down = counter(
        "gateway_auth_cache_hits_while_down_total",
        "Logins let in from the cache while a backend was down, which nobody else could have answered.",
        "auth.limits.cache_ttl: the longer, the more of them",
        unit="requests",
    )
    cache_entries = gauge(
        "gateway_auth_cache_entries", "Logins remembered now.", "auth.limits.cache_entries", unit="logins"
    )
    cache_evicted = counter(
        "gateway_auth_cache_evicted_total",
        "Remembered logins that made room for others before their time.",
        "auth.limits.cache_entries",
        unit="logins",
    )
    cache_invalidated = counter(
        "gateway_auth_cache_invalidated_total",
        "Remembered logins that a change of the built-in database has ended.",
        "none: the change was wanted",
        unit="logins",
    )
    in_flight = gauge(
        "gateway_auth_in_flight",
        "Logins under verification.",
        "auth.limits.in_flight, beyond which they are shed",
        unit="logins",
    )
    joined = counter(
        "gateway_auth_joined_total",
        "Logins that waited for the verification of the same login instead of a second one.",
        "none",
        unit="logins",
    )
    lockouts = counter(
        "gateway_auth_lockouts_total",
        "Lock-outs that began, of users and of addresses. Alert on a rate: somebody guesses, or a fleet has a wrong"
        " password.",
        "auth.protection.failures (user), auth.protection.address_failures (address: all devices behind one NAT)",
        unit="lock-outs",
        labels=("kind",),
        fixed=(("user",), ("address",)),
    )
    locked = gauge(
        "gateway_auth_locked",
        "Users and addresses that are locked out now.",
        "auth.protection.lockout, auth.protection.lockout_max",
        unit="names",
    )
    flapping_bans = counter(
        "gateway_auth_flapping_bans_total",
        "Client ids banned for logging in too often.",
        "auth.protection.flapping_logins, auth.protection.flapping_ban",
        unit="bans",
    )
    burns = counter(
        "gateway_auth_burns_total",
        "Hashes computed for nothing, so that a refusal takes as long whatever its reason.",
        "none: without them an unknown user could be told from a wrong password",
        unit="hashes",
    )
    backend_up = gauge(
        "gateway_auth_backend_up",
        "1 unless the backend's last question had no answer: then 0, and /readyz says why.",
        "the backend's own table of settings; the log's auth_backend_down",
        unit="backends",
        labels=("backend",),
    )
    backend_requests = counter(
        "gateway_auth_backend_requests_total",
        "Questions to the backend by outcome. down: it gave no answer, or not in time; shed: there was no room.",
        "the backend's timeout and pool_size",
        unit="requests",
        labels=("backend", "result"),
        fixed=tuple((result,) for result in _OUTCOMES),
    )
    backend_failures = counter(
        "gateway_auth_backend_failures_total",
        "Questions and probes that a server of users did not answer, by cause. open: not asked, since it had failed a"
        " moment before; overload: all connections were in use; login and settings: it answers, but not to us.",
        "the backend's own table of settings; /readyz and the log's auth_backend_down have a sentence",
        unit="questions",
        labels=("backend", "cause"),
        fixed=tuple((cause,) for cause in get_args(DownCause)),
    )
    backend_seconds = histogram(
        "gateway_auth_backend_seconds",
        "Time a question to the backend took, the wait for a connection and the hash included.",
        "the backend's pool_size and its server; auth.hashing.threads",
        unit="seconds",
        labels=("backend",),
        bounds=_TIMES,
    )
    breaker_state = gauge(
        "gateway_auth_backend_breaker_state",
        "0: the backend is asked. 1: it is being tried. 2: it is not asked until the next try. 0 for backends without a"
        " server.",
        "why its server does not answer: the log's auth_backend_down",
        unit="state",
        labels=("backend",),
    )
    store_reads_failed = counter(
        "gateway_auth_database_reads_failed_total",
        "Reads of the built-in database that failed. Alert on any: rules and bans are in it, so without it nothing is"
        " allowed.",
        "auth.database.file: whether its disk is there and readable",
        unit="reads",
    )
    hashing_waiting = gauge(
        "gateway_auth_hashing_queue",
        "Hashes that wait for a thread. At auth.hashing.queue further logins are answered as auth.backend_down says.",
        "auth.hashing.threads, auth.hashing.queue; device secrets (user add --generate) need no slow hash",
        unit="hashes",
    )
    hashing_seconds = histogram(
        "gateway_auth_hashing_seconds",
        "Time from asking for a slow hash to having it, the wait for a thread included.",
        "auth.hashing.memory, auth.hashing.passes, auth.hashing.threads",
        unit="seconds",
        bounds=_TIMES,
    )
    jwks_age = gauge(
        "gateway_auth_jwks_age_seconds",
        "Age of the key set in use, by the key's name in auth.jwt.keys; 0 before the first.",
        "auth.jwt.keys[].refresh, auth.jwt.keys[].keep; whether jwks_url answers",
        unit="seconds",
        labels=("key",),
    )
    jwks_failures = counter(
        "gateway_auth_jwks_failures_total",
        "Fetches of a key set that failed.",
        "auth.jwt.keys[].jwks_url, auth.jwt.keys[].tls; the log's jwks_failed",
        unit="fetches",
        labels=("key",),
    )
    reloads = counter(
        "gateway_auth_reloads_total",
        "Files read again because they had changed: certificates, and users_file. failure: the old content stays.",
        "auth.tls, auth.users_file; the log says what is wrong with the new content",
        unit="reloads",
        labels=("what", "result"),
        fixed=tuple((what, result) for what in ("tls", "users_file") for result in ("success", "failure")),
    )
    event_loop_delay = Metrics.event_loop_delay
    build_info = Metrics.build_info

    def __init__(self, settings: AuthSettings) -> None:
        keys = [key.name for key in settings.jwt.keys if key.jwks_url is not None] if "jwt" in settings.chain else []
        super().__init__({"endpoint": ("authn", "authz"), "backend": settings.chain, "key": keys})
        for row in Metrics.build_info.fixed:
            self.build_info.child(*row).value = 1

    def watch_counts(self, counts: Counts) -> None:
        """Shows what the decisions count."""
        self.login_reasons.watch_rows(lambda: {(reason,): n for reason, n in counts.login_reasons.items()})
        self.access_reasons.watch_rows(lambda: {(reason,): n for reason, n in counts.access_reasons.items()})
        self.cache_hits.watch(lambda: counts.cache_hits, "login")
        self.cache_hits.watch(lambda: counts.negative_hits, "refused")
        self.cache_hits.watch(lambda: counts.decision_hits, "decision")
        self.cache_misses.watch(lambda: counts.cache_misses, "login")
        self.cache_misses.watch(lambda: counts.decision_misses, "decision")
        self.cache_hits_while_down.watch(lambda: counts.cache_hits_while_down)
        self.cache_entries.watch(lambda: counts.cache_entries)
        self.cache_evicted.watch(lambda: counts.cache_evicted)
        self.cache_invalidated.watch(lambda: counts.cache_invalidated)
        self.in_flight.watch(lambda: counts.in_flight)
        self.joined.watch(lambda: counts.joined)
        self.lockouts.watch(lambda: counts.lockouts_user, "user")
        self.lockouts.watch(lambda: counts.lockouts_address, "address")
        self.locked.watch(lambda: counts.locked)
        self.flapping_bans.watch(lambda: counts.flapping_bans)
        self.burns.watch(lambda: counts.burns)
        self.store_reads_failed.watch(lambda: counts.store_reads_failed)
        self.backend_requests.watch_rows(lambda: _by_outcome(counts))

    def watch_chain(self, chain: Chain) -> None:
        """Shows which backends are up, and times them."""
        self.backend_up.watch_rows(lambda: _ups(chain))
        self.breaker_state.watch_rows(lambda: {(one.name,): _breaker_state(one) for one in chain.authenticators})
        self.backend_failures.watch_rows(lambda: _failures(chain))
        observe = {one.name: self.backend_seconds.child(one.name).observe for one in chain.authenticators}
        chain.observe = lambda name, length_ns: observe[name](length_ns)
        for one in chain.authenticators:
            if one.name == "jwt":
                self._watch_key_sets(cast("JwtAuthenticator", one).key_sets)

    def _watch_key_sets(self, sets: Mapping[str, JwksKeys]) -> None:
        self.jwks_age.watch_rows(lambda: {(name,): one.age_ns / 1e9 for name, one in sets.items()})
        self.jwks_failures.watch_rows(lambda: {(name,): one.failures for name, one in sets.items()})

    def watch_hasher(self, hasher: Hasher) -> None:
        """Shows its queue, and times it."""
        self.hashing_waiting.watch(lambda: hasher.waiting)
        hasher.observe = self.hashing_seconds.child().observe

    def collect(self) -> Iterable[Metric]:
        """Every family with its present values, then the process's own. Call it in the service's loop."""
        from prometheus_client import ProcessCollector

        yield from super().collect()
        yield from ProcessCollector(registry=None).collect()


def _by_outcome(counts: Counts) -> dict[tuple[str, ...], float]:
    rows: dict[tuple[str, ...], float] = {}
    for name, one in counts.backends.items():
        outcomes = (one.allowed, one.denied, one.ignored, one.down, one.shed)
        rows |= {(name, result): number for result, number in zip(_OUTCOMES, outcomes, strict=True)}
    return rows


def _ups(chain: Chain) -> dict[tuple[str, ...], float]:
    down = chain.down()
    return {(one.name,): float(one.name not in down) for one in chain.authenticators}


def _failures(chain: Chain) -> dict[tuple[str, ...], float]:
    return {
        (one.name, cause): number
        for one in chain.authenticators
        for cause, number in getattr(one, "failures", {}).items()
    }


def _breaker_state(authenticator: Authenticator) -> int:
    """Of those that ask a server; the others have none."""
    breaker = getattr(authenticator, "breaker", None)
    return 0 if breaker is None else int(breaker.state)
