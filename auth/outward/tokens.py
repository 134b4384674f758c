"""The sources of tokens for EMQX (as the password) and Kafka (OAUTHBEARER)."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from auth.errors import CredentialError
from auth.outward.keeper import Found, Keeper
from auth.outward.renewal import PollPlan, RenewalPlan
from auth.outward.token_text import LONGEST, problem_of_token, token_expiry_ns
from bridge.ports import Credential, CredentialSource
from config.errors import ConfigError
from config.settings import OAuthSettings, TokenSettings
from config.values.secret_files import FileSecret


def token_source(settings: TokenSettings, where: str) -> CredentialSource:
    """The source for a token's table. ``where`` is the table's name ("mqtt.token"). Idle until started."""
    if settings.oauth is not None:
        return OAuthTokens(settings.oauth, f"{where}.oauth", renew_at=settings.renew_at)
    if settings.file is not None:
        return FileToken(settings.file, f"{where}.file")
    assert settings.value is not None, "config.relations.tokens sees to it"
    if isinstance(settings.value, FileSecret):
        return FileToken(settings.value.file, f"{where}.value_file")
    return StaticToken(settings.value.get_secret_value(), f"{where}.value")


class StaticToken:
    """One fixed token. An expired JWT is still used: there is no other, and the broker gives the reason."""

    failures = 0
    failing = False

    def __init__(self, token: str, setting: str) -> None:
        self._setting = setting
        self._credential = Credential(token, token_expiry_ns(token, time.monotonic_ns(), time.time()))

    async def start(self) -> None:
        """Raises ConfigError for a text that is no token."""
        if (problem := problem_of_token(self._credential.token)) is not None:
            raise ConfigError(f"{self._setting} cannot be a token: {problem}.")

    async def current(self) -> Credential:
        return self._credential

    def watch(self, told: Callable[[Credential], None]) -> Callable[[], None]:  # noqa: ARG002 - no other will come
        return _nothing

    def refused(self, credential: Credential) -> None:
        """There is no other."""

    async def close(self) -> None:
        """Nothing to close."""


class FileToken(Keeper):
    """The token in a file that another program renews. While the file is missing, empty or half-written, the last token
    stays in use until it expires."""

    def __init__(
        self,
        file: Path,
        setting: str,
        *,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(self._read, PollPlan(), setting, monotonic_ns=monotonic_ns)
        self._file = file
        self._now_ns = monotonic_ns
        self._clock = clock
        self._place = f"{setting} {file}"

    async def start(self) -> None:
        """Begin to read. Raises ConfigError for a folder."""
        if await asyncio.to_thread(self._file.is_dir):
            raise ConfigError(f"{self._place} is a folder; name the file in it that holds the token.")
        await super().start()

    async def _read(self) -> Found:
        """The token in the file. Raises CredentialError, also for an expired one."""
        # In a thread, because the file's volume may hang.
        token = (await asyncio.to_thread(self._text)).strip()
        if (problem := problem_of_token(token)) is not None:
            raise CredentialError(
                f"{self._place} holds no token: {problem}. It should hold the token and nothing else."
            )
        expires_at_ns = token_expiry_ns(token, self._now_ns(), self._clock())
        if expires_at_ns is not None and expires_at_ns <= self._now_ns():
            raise CredentialError(
                f"{self._place} holds a token that has expired. Does the program that renews it still run, and are "
                "both clocks right?"
            )
        return Found(token, expires_at_ns)

    def _text(self) -> str:
        """The file's text, without what exceeds the longest token. Blocks. Raises CredentialError."""
        try:
            with self._file.open("rb") as file:
                return file.read(LONGEST + 3).decode()
        except OSError as error:
            raise CredentialError(
                f"{self._place} cannot be read: {str(error.strerror).lower()}. Has the program that writes it written "
                "it, and may the gateway read it?"
            ) from error
        except UnicodeDecodeError:
            raise CredentialError(f"{self._place} holds no token: it is no text.") from None


class OAuthTokens(Keeper):
    """Tokens fetched with client credentials. aiohttp is loaded with the first request, not with this module."""

    def __init__(
        self,
        settings: OAuthSettings,
        where: str,
        *,
        renew_at: float = 0.75,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        from auth.outward.oauth import OAuthClient

        self._client = OAuthClient(settings, where, monotonic_ns=monotonic_ns)
        super().__init__(self._client.token, RenewalPlan(renew_at), f"{where}.token_url", monotonic_ns=monotonic_ns)

    async def start(self) -> None:
        """Begin to fetch. Raises ConfigError when the files of its TLS cannot be used."""
        await asyncio.to_thread(self._client.check)
        await super().start()


def _nothing() -> None:
    """Nothing to end: fetching has not begun."""
