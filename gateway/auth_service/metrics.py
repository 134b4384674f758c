"""The metrics of ``gateway auth serve``; docs/metrics.md prints them with the gateway's own
(``gateway.base.metrics``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast, get_args

from auth.errors import DownCause
from auth.logins.reasons import ACCESS_REASONS, LOGIN_REASONS
from gateway.base.instruments import counter, gauge, histogram
from gateway.base.metrics import ProcessMetrics

if TYPE_CHECKING:
    from auth.backends.jwt import JwtAuthenticator
    from auth.backends.users_file import UsersFileAuthenticator
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


class AuthMetrics(ProcessMetrics):
    """The service's metrics. Belongs to its event loop."""

    # fmt: off
    requests = counter("gateway_auth_requests_total",
        "EMQX's requests, by answer. error: refused, unreadable, or a defect. Alert on any error.",
        "the reason in the log; EMQX's body template, auth.shared_secret",
        unit="requests", labels=("endpoint", "result"), fixed=tuple((result,) for result in RESULTS))
    request_seconds = histogram("gateway_auth_request_seconds",
        "Time from a request's last byte to its answer. EMQX waits 5 s.",
        "auth.answer_timeout, auth.hashing.threads, the backends' time-outs; more instances",
        unit="seconds", labels=("endpoint",), bounds=_TIMES)
    answers_late = counter("gateway_auth_answers_late_total",
        "Logins that auth.backend_down decided, after auth.answer_timeout.",
        "the backends' time-outs, auth.hashing.queue; more instances",
        unit="requests")
    logins_waiting = gauge("gateway_auth_logins_waiting",
        "Logins that wait for a backend or a hash.",
        "auth.limits.in_flight, auth.hashing.threads",
        unit="requests")
    requests_refused = counter("gateway_auth_requests_refused_total",
        "Requests that no correctly configured EMQX sends.",
        "EMQX's url and method (path, method), auth.shared_secret (secret); otherwise an attacker",
        unit="requests", labels=("reason",), fixed=(("secret",), ("path",), ("method",), ("malformed",)))
    connections = gauge("gateway_auth_connections",
        "HTTP connections, mostly EMQX's pools.",
        "auth.limits.connections; EMQX's pool_size",
        unit="connections")
    connections_refused = counter("gateway_auth_connections_refused_total",
        "Connections that the service closed. full, evicted: no room. slow_sender, slow_reader:"
        " auth.limits.read_timeout. tls: a failed handshake.",
        "auth.limits.connections (full, evicted), auth.tls.client_ca_file and EMQX's ssl (tls)",
        unit="connections", labels=("reason",),
        fixed=(("full",), ("evicted",), ("slow_sender",), ("slow_reader",), ("tls",)))
    login_reasons = counter("gateway_auth_logins_total",
        "Logins by the reason of their answer (docs/auth.md). shed and rate_limited: not judged.",
        "auth.limits.in_flight, auth.hashing.queue (shed), auth.limits.logins_per_second (rate_limited),"
        " auth.protection (locked_out), the backends (timeout, backend_down)",
        unit="logins", labels=("reason",), fixed=tuple((reason,) for reason in LOGIN_REASONS))
    access_reasons = counter("gateway_auth_accesses_total",
        "Questions about topics, by the reason of their answer.",
        "rules (no_rule); auth.hand_over_rules makes them few",
        unit="requests", labels=("reason",), fixed=tuple((reason,) for reason in ACCESS_REASONS))
    cache_hits = counter("gateway_auth_cache_hits_total",
        "Answers from a cache. login: verified logins. refused: refused logins. decision: rules.",
        "auth.limits.cache_entries, auth.limits.cache_ttl, auth.limits.negative_ttl",
        unit="requests", labels=("cache",), fixed=(("login",), ("refused",), ("decision",)))
    cache_misses = counter("gateway_auth_cache_misses_total",
        "Questions without an answer in the cache.",
        "auth.limits.cache_entries if gateway_auth_cache_evicted_total grows, auth.limits.cache_ttl",
        unit="requests", labels=("cache",), fixed=(("login",), ("decision",)))
    cache_hits_while_down = counter("gateway_auth_cache_hits_while_down_total",
        "Logins allowed from the cache while a backend was down.",
        "auth.limits.cache_ttl: a longer one allows more",
        unit="requests")
    cache_entries = gauge("gateway_auth_cache_entries",
        "Logins in the cache.",
        "auth.limits.cache_entries",
        unit="logins")
    cache_evicted = counter("gateway_auth_cache_evicted_total",
        "Cached logins removed early to make room.",
        "auth.limits.cache_entries",
        unit="logins")
    cache_invalidated = counter("gateway_auth_cache_invalidated_total",
        "Cached logins removed by a change of the built-in database.",
        "none",
        unit="logins")
    in_flight = gauge("gateway_auth_in_flight",
        "Logins under verification.",
        "auth.limits.in_flight, beyond which they are shed",
        unit="logins")
    joined = counter("gateway_auth_joined_total",
        "Logins that waited for the verification of an identical one.",
        "none",
        unit="logins")
    lockouts = counter("gateway_auth_lockouts_total",
        "Lock-outs of users and addresses. Alert on a rate.",
        "auth.protection.failures (user), auth.protection.address_failures (address: all devices behind one NAT)",
        unit="lock-outs", labels=("kind",), fixed=(("user",), ("address",)))
    locked = gauge("gateway_auth_locked",
        "Users and addresses locked out now.",
        "auth.protection.lockout, auth.protection.lockout_max",
        unit="names")
    flapping_bans = counter("gateway_auth_flapping_bans_total",
        "Client ids banned for logging in too often.",
        "auth.protection.flapping_logins, auth.protection.flapping_ban",
        unit="bans")
    burns = counter("gateway_auth_burns_total",
        "Hashes computed only to give each refusal the same duration.",
        "none: without them a refusal's duration would tell unknown users from wrong passwords",
        unit="hashes")
    backend_up = gauge("gateway_auth_backend_up",
        "0 if the backend's last question got no answer, else 1. /readyz has the reason.",
        "the backend's own table of settings; the log's auth_backend_down",
        unit="backends", labels=("backend",))
    backend_requests = counter("gateway_auth_backend_requests_total",
        "Questions to the backend, by outcome. down: no answer in time. shed: no room.",
        "the backend's timeout and pool_size",
        unit="requests", labels=("backend", "result"), fixed=tuple((result,) for result in _OUTCOMES))
    backend_failures = counter("gateway_auth_backend_failures_total",
        "Questions and probes that a user server did not answer. open: not asked after a recent failure. overload: no"
        " free connection. login, settings: it refuses the service.",
        "the backend's settings; /readyz and the log's auth_backend_down",
        unit="questions", labels=("backend", "cause"), fixed=tuple((cause,) for cause in get_args(DownCause)))
    backend_seconds = histogram("gateway_auth_backend_seconds",
        "Time of a question to the backend, including the wait for a connection and the hash.",
        "the backend's pool_size and its server; auth.hashing.threads",
        unit="seconds", labels=("backend",), bounds=_TIMES)
    breaker_state = gauge("gateway_auth_backend_breaker_state",
        "0: the backend is asked, or has no server. 1: it is being tried. 2: not asked until the next try.",
        "the cause in the log's auth_backend_down",
        unit="state", labels=("backend",))
    store_reads_failed = counter("gateway_auth_database_reads_failed_total",
        "Failed reads of the built-in database. Alert on any: without rules and bans nothing new is allowed.",
        "auth.database.file: is its disk readable?",
        unit="reads")
    hashing_waiting = gauge("gateway_auth_hashing_queue",
        "Hashes that wait for a thread. At auth.hashing.queue, auth.backend_down decides further logins.",
        "auth.hashing.threads, auth.hashing.queue; device secrets (user add --generate) need no slow hash",
        unit="hashes")
    hashing_seconds = histogram("gateway_auth_hashing_seconds",
        "Time of a slow hash, including the wait for a thread.",
        "auth.hashing.memory, auth.hashing.passes, auth.hashing.threads",
        unit="seconds", bounds=_TIMES)
    jwks_age = gauge("gateway_auth_jwks_age_seconds",
        "Age of the key set in use, by its name in auth.jwt.keys; 0 before the first.",
        "auth.jwt.keys[].refresh, auth.jwt.keys[].keep; does jwks_url answer?",
        unit="seconds", labels=("key",))
    jwks_failures = counter("gateway_auth_jwks_failures_total",
        "Failed fetches of a key set.",
        "auth.jwt.keys[].jwks_url, auth.jwt.keys[].tls; the log's jwks_failed",
        unit="fetches", labels=("key",))
    reloads = counter("gateway_auth_reloads_total",
        "Changed files read again: certificates, users_file. failure: looks while the former content stays in use.",
        "auth.tls, auth.users_file; the log has the error",
        unit="reloads", labels=("what", "result"),
        fixed=tuple((what, result) for what in ("tls", "users_file") for result in ("success", "failure")))
    # fmt: on

    def __init__(self, settings: AuthSettings) -> None:
        keys = [key.name for key in settings.jwt.keys if key.jwks_url is not None] if "jwt" in settings.chain else []
        super().__init__({"endpoint": ("authn", "authz"), "backend": settings.chain, "key": keys})

    def watch_counts(self, counts: Counts) -> None:
        """Shows the counts of decisions."""
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
        """Shows and times the backends."""
        self.backend_up.watch_rows(lambda: _ups(chain))
        self.breaker_state.watch_rows(lambda: {(one.name,): _breaker_state(one) for one in chain.authenticators})
        self.backend_failures.watch_rows(lambda: _failures(chain))
        observe = {one.name: self.backend_seconds.child(one.name).observe for one in chain.authenticators}
        chain.observe = lambda name, length_ns: observe[name](length_ns)
        for one in chain.authenticators:
            if one.name == "jwt":
                self._watch_key_sets(cast("JwtAuthenticator", one).key_sets)
            if one.name == "users_file":
                self._watch_users_file(cast("UsersFileAuthenticator", one))

    def _watch_key_sets(self, sets: Mapping[str, JwksKeys]) -> None:
        self.jwks_age.watch_rows(lambda: {(name,): one.age_ns / 1e9 for name, one in sets.items()})
        self.jwks_failures.watch_rows(lambda: {(name,): one.failures for name, one in sets.items()})

    def _watch_users_file(self, users: UsersFileAuthenticator) -> None:
        self.reloads.watch_rows(lambda: {("users_file", result): count for result, count in users.reloads.items()})

    def watch_hasher(self, hasher: Hasher) -> None:
        """Shows and times the hashing queue."""
        self.hashing_waiting.watch(lambda: hasher.waiting)
        hasher.observe = self.hashing_seconds.child().observe


def _by_outcome(counts: Counts) -> dict[tuple[str, ...], float]:
    """The questions to each backend, by name and outcome."""
    rows: dict[tuple[str, ...], float] = {}
    for name, one in counts.backends.items():
        outcomes = (one.allowed, one.denied, one.ignored, one.down, one.shed)
        rows |= {(name, result): number for result, number in zip(_OUTCOMES, outcomes, strict=True)}
    return rows


def _ups(chain: Chain) -> dict[tuple[str, ...], float]:
    down = chain.down()
    return {(one.name,): float(one.name not in down) for one in chain.authenticators}


def _failures(chain: Chain) -> dict[tuple[str, ...], float]:
    """Questions without an answer, by backend and cause; the built-in database counts none."""
    return {
        (one.name, cause): number
        for one in chain.authenticators
        for cause, number in getattr(one, "failures", {}).items()
    }


def _breaker_state(authenticator: Authenticator) -> int:
    """The state of a backend's breaker, which only backends with a server have."""
    breaker = getattr(authenticator, "breaker", None)
    return 0 if breaker is None else int(breaker.state)
