"""JSON web key sets: an issuer's public keys, fetched regularly, so that the issuer can change them.

A login waits for the network in two cases only: there is no set yet, or the token names a key that is not in the set,
as after a rotation. It then waits a second for a fetch that is due or under way. Such fetches have a minimum distance:
otherwise each invented key id would cause a request to the issuer.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import structlog
from jwt.algorithms import get_default_algorithms
from jwt.exceptions import InvalidKeyError

from auth.errors import BackendDownError
from auth.jwt.fetching import Fetcher, FetchError
from auth.jwt.keys import VerificationKey, usable
from auth.jwt.parsing import Token, json_object
from bridge.backoff import Backoff
from bridge.waiting import end_tasks, until_due, until_set
from config.errors import ConfigError
from config.tables.auth import AuthJwtKeySettings

log = structlog.get_logger("auth")

LARGEST = 512 << 10
MOST_KEYS = 100
_MOST_TRIED = 8  # keys of the set that a token without key id is tried with
SPACING_NS = 10_000_000_000  # between fetches that unknown key ids ask for
FETCH_TIMEOUT_S = 5.0
_WAIT_S = 1.0  # of a login for a fetch; auth.answer_timeout is 2 s unless changed
_RETRY_INITIAL_NS, _RETRY_MAX_NS = 1_000_000_000, 60_000_000_000

_KINDS = {"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}
_PUBLIC_MEMBERS = ("kty", "n", "e", "crv", "x", "y")


@dataclass(frozen=True, slots=True)
class KeySet:
    """The usable keys of a set, and the reasons against the others."""

    keys: tuple[VerificationKey, ...]
    skipped: tuple[str, ...] = ()
    by_id: Mapping[str, tuple[VerificationKey, ...]] = field(init=False)

    def __post_init__(self) -> None:
        """Find the keys by their ids; several may have the same."""
        found: dict[str, tuple[VerificationKey, ...]] = {}
        for key in self.keys:
            if key.key_id is not None:
                found[key.key_id] = (*found.get(key.key_id, ()), key)
        object.__setattr__(self, "by_id", found)


def parse_key_set(body: bytes) -> KeySet:
    """The usable keys of a JWK set (RFC 7517), without shared secrets and keys for other uses, which ``jwt.PyJWKSet``
    keeps. Raises ValueError for another document, or for more than MOST_KEYS keys."""
    listed = json_object(body).get("keys")
    if not isinstance(listed, list):
        raise ValueError('it has no list "keys"')  # noqa: TRY004 - of what somebody sent
    if len(listed) > MOST_KEYS:
        raise ValueError(f"it has {len(listed)} keys, more than {MOST_KEYS}")
    keys, skipped = [], []
    for number, jwk in enumerate(listed):
        try:
            keys.append(_key(jwk))
        except ValueError as error:
            skipped.append(f"keys[{number}]: {error}")
    return KeySet(tuple(keys), tuple(skipped))


def _key(jwk: Any) -> VerificationKey:
    """The public key of a JWK. Raises ValueError with the reason against it."""
    if not isinstance(jwk, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - of what somebody sent
    kind, key_id, algorithm = jwk.get("kty"), jwk.get("kid"), jwk.get("alg")
    if kind == "oct":
        raise ValueError("it is a shared secret, which is none once it is published")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError("its kty is unknown here")
    if jwk.get("use", "sig") != "sig":
        raise ValueError('its use is not "sig"')
    operations = jwk.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise ValueError('its key_ops has no "verify"')
    if key_id is not None and not isinstance(key_id, str):
        raise ValueError("its kid is no text")
    # Only the public part is read, also if the issuer publishes a private key by mistake.
    public = {name: jwk[name] for name in _PUBLIC_MEMBERS if name in jwk}
    try:
        material = get_default_algorithms()[_KINDS[kind]].from_jwk(public)
    except (InvalidKeyError, ValueError, TypeError, KeyError):
        raise ValueError("its numbers are no key") from None
    key = usable(material, key_id)
    if algorithm is None:
        return key
    if not isinstance(algorithm, str) or algorithm not in key.algorithms:
        raise ValueError("its alg is not one that it can be used with")
    return VerificationKey(key.material, frozenset({algorithm}), key_id)


class Schedule:
    """The times of fetches, and the validity of a set. No I/O; times are monotonic nanoseconds from the caller."""

    def __init__(self, refresh_ns: int, keep_ns: int, *, rng: random.Random | None = None) -> None:
        self._refresh_ns = refresh_ns
        self._good_for_ns = refresh_ns + keep_ns + int(FETCH_TIMEOUT_S * 1e9)  # a set, from its fetch
        self._random = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._backoff = Backoff(_RETRY_INITIAL_NS, _RETRY_MAX_NS, rng=self._random)
        self._began_ns: int | None = None
        self._due_ns = 0
        self._good_until_ns = 0
        self.asked = False  # whether a key was missing since the last fetch began

    def began(self, now_ns: int) -> None:
        """A fetch begins, and covers all requests up to now."""
        self._began_ns = now_ns
        self.asked = False

    def succeeded(self, now_ns: int) -> None:
        """The fetch brought a set. The next one is up to a tenth earlier, so that services that started together do not
        always fetch together."""
        self._backoff.reset()
        self._due_ns = now_ns + int(self._refresh_ns * self._random.uniform(0.9, 1.0))
        self._good_until_ns = now_ns + self._good_for_ns

    def failed(self, now_ns: int) -> None:
        """The fetch brought no set."""
        self._due_ns = now_ns + self._backoff.next_ns(now_ns)

    def ask(self, now_ns: int) -> bool:
        """A token's key is missing. Whether a fetch may begin at once; otherwise it begins later."""
        self.asked = True
        return self.due_ns() <= now_ns

    def due_ns(self) -> int:
        """When the next fetch begins; the past means at once."""
        if self.asked and self._began_ns is not None:
            return min(self._due_ns, self._began_ns + SPACING_NS)
        return self._due_ns

    def good(self, now_ns: int) -> bool:
        """Whether the last set may still be used."""
        return now_ns < self._good_until_ns


class JwksKeys:
    """The keys at ``jwks_url``. One task fetches, on request of others, so there is one fetch at a time."""

    def __init__(
        self,
        settings: AuthJwtKeySettings,
        where: str,
        *,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        assert settings.jwks_url is not None
        self._name = settings.name
        self._fetcher = Fetcher(
            settings.jwks_url,
            f"{where}.jwks_url",
            tls=settings.tls,
            tls_setting=f"{where}.tls",
            timeout_s=FETCH_TIMEOUT_S,
            largest=LARGEST,
        )
        self._monotonic_ns = monotonic_ns
        self._schedule = Schedule(
            settings.refresh // timedelta(microseconds=1) * 1000,
            settings.keep // timedelta(microseconds=1) * 1000,
        )
        self._set: KeySet | None = None
        self._fetching = False
        self._asked = asyncio.Event()
        self._fetched = asyncio.Event()  # set after the present fetch, or the next one; the task replaces it
        self._failing = False
        self._taken_ns = 0  # when the set was fetched
        self.failures = 0  # fetches that brought no set
        self._task: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        return self._current() is not None

    @property
    def age_ns(self) -> int:
        """The age of the present set; 0 without one."""
        return 0 if self._set is None else self._monotonic_ns() - self._taken_ns

    async def start(self) -> None:
        """Begins to fetch; does not wait for it."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        await end_tasks(self._task)

    async def candidates(self, token: Token) -> Sequence[VerificationKey]:
        """Keys that may have signed the token. Waits for a fetch if there is no set, or its key is not in the set."""
        if (known := self._current()) is None:
            await self._missed()
            if (known := self._current()) is None:
                raise BackendDownError(
                    "jwt",
                    f'The JWK set of auth.jwt.keys "{self._name}" cannot be fetched: see jwks_failed in the log.',
                    "unreachable",
                )
        if token.key_id is not None:
            if self.lacks(token):
                await self._missed()
                known = self._current() or known
            if (found := known.by_id.get(token.key_id)) is not None:
                return found[:_MOST_TRIED]
        tried = [key for key in known.keys if token.key_id is None or key.key_id is None]
        return [key for key in tried if token.algorithm in key.algorithms][:_MOST_TRIED]

    def awaits(self, token: Token) -> bool:
        """Whether the token's key may come with a later fetch: after a rotation, while invented key ids delay fetches,
        or while the issuer cannot be asked."""
        return self._current() is not None and self.lacks(token) and (self._failing or self._schedule.asked)

    def lacks(self, token: Token) -> bool:
        """Whether the token's key, if it is of this issuer, has to be fetched."""
        known = self._current()
        if known is None or token.key_id is None:
            return known is None
        # If the issuer's keys have no ids, no key can be missing.
        return token.key_id not in known.by_id and bool(known.by_id or not known.keys)

    def _current(self) -> KeySet | None:
        return self._set if self._schedule.good(self._monotonic_ns()) else None

    async def _missed(self) -> None:
        """Ask for a fetch, and wait for one that is under way or may begin now. Does not wait for a later one."""
        at_once = self._schedule.ask(self._monotonic_ns())
        self._asked.set()
        if at_once or self._fetching:
            fetched = self._fetched
            await until_set(fetched, _WAIT_S)

    async def _run(self) -> None:
        while True:
            await self._fetch()
            await until_due(self._schedule.due_ns, self._monotonic_ns, self._asked)

    async def _fetch(self) -> None:
        """Fetch the set once, and wake who waits for it. Raises nothing but a cancellation."""
        self._schedule.began(self._monotonic_ns())
        self._fetching = True
        try:
            answer = await self._fetcher.get()
            found = await asyncio.to_thread(parse_key_set, answer.body) if answer.status == 200 else None
        except (FetchError, ConfigError) as error:
            self._failed(str(error))
        except ValueError as error:
            self._failed(f"{self._fetcher} does not answer with a JWK set: {error}.")
        except Exception:  # a defect must not end the task
            log.exception("jwks_defect", key=self._name)
            self.failures += 1
            self._schedule.failed(self._monotonic_ns())
        else:
            if found is not None:
                self._took(found)
            else:
                self._failed(f"{self._fetcher} answers with status {answer.status}.")
        finally:
            self._fetching = False
            done, self._fetched = self._fetched, asyncio.Event()
            done.set()

    def _failed(self, reason: str) -> None:
        """Keep the old set; log the first failure of several."""
        self._schedule.failed(self._monotonic_ns())
        self.failures += 1
        if not self._failing:
            log.warning("jwks_failed", key=self._name, reason=reason, keys_kept=self.up)
        self._failing = True

    def _took(self, found: KeySet) -> None:
        """Use the new set; log it if its key ids are others, or after a failure."""
        self._taken_ns = self._monotonic_ns()
        self._schedule.succeeded(self._taken_ns)
        known, self._set = self._set, found
        if known is None or self._failing or known.by_id.keys() != found.by_id.keys():
            log.info(
                "jwks_fetched",
                key=self._name,
                keys=len(found.keys),
                key_ids=sorted(found.by_id)[:20],
                skipped=list(found.skipped[:20]),
            )
        self._failing = False
