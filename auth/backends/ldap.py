"""Users in an LDAP directory, which checks the password itself: the question is a bind as the user.

A bind without a password succeeds for every name (RFC 4513 section 5.1.2), so none is sent without one.

Most directories answer a wrong password and an unknown name with the same code (invalidCredentials). So with
``bind_dn`` an unknown user is refused, and the next in the chain is not asked. With ``search_base`` the next is asked,
after a bind that cannot succeed, so that it takes the same time.
"""

import contextlib
import math
import secrets
import ssl
from dataclasses import dataclass
from typing import Final

from auth.backends.ldap_connection import DirectoryConnection, EndedError
from auth.backends.ldap_filter import FilterTemplate, compared_in_name, escape_name, first_name_part
from auth.backends.ldap_messages import Entry, MalformedError, Result, element
from auth.backends.record import RecordError, read_record
from auth.backends.remote import RemoteAuthenticator
from auth.backends.templates import LoginTemplate
from auth.errors import BackendDownError
from auth.model import Allow, Deny, Ignore, LoginRequest, Verdict
from bridge.fresh_secret import fresh
from bridge.tls import tls_context
from config.errors import ConfigError
from config.tables.auth import AuthLdapSettings
from config.tables.tls import TlsSettings
from config.values.addresses import parse_ldap_address

# Result codes (RFC 4511 appendix A).
_SIZE_LIMIT_EXCEEDED: Final = 4
_NO_SUCH_OBJECT: Final = 32
_INVALID_NAME: Final = 34
_REFUSED: Final = frozenset({19, 53})  # constraintViolation, unwillingToPerform: how 389-ds says "locked", "inactive"
_NO_PASSWORD: Final = 48  # inappropriateAuthentication: the entry has none
_WRONG_PASSWORD: Final = 49
_NEEDS_TLS: Final = frozenset({8, 13})
_NEEDS_RIGHTS: Final = frozenset({1, 50})  # Active Directory says operationsError to who has not bound
_BUSY: Final = frozenset({3, 51, 52})

_TYPED: Final = frozenset({"username", "clientid"})  # names from the client, which rules and bans compare
_ANY: Final = element(0x87, b"objectClass")  # (objectClass=*)
_NO_ATTRIBUTES: Final = "1.1"  # RFC 4511 section 4.5.1.8


@dataclass(frozen=True, slots=True)
class _Found:
    """The directory's answer: the ``code`` of the bind, and the groups of an admitted user."""

    code: int
    groups: tuple[str, ...] = ()


_NOBODY: Final = _Found(_NO_SUCH_OBJECT)


class LdapAuthenticator(RemoteAuthenticator[DirectoryConnection, _Found | RecordError]):
    """An ``auth.ports.Authenticator`` over a directory: by a name made of the user's, or by an entry that is found."""

    def __init__(self, settings: AuthLdapSettings) -> None:
        """Raises ConfigError for a name or filter that cannot be one. Belongs to the event loop it is used on."""
        super().__init__(
            "ldap",
            f"The LDAP server {settings.address}",
            pool_size=settings.pool_size,
            timeout=settings.timeout,
        )
        self._settings = settings
        self._address = parse_ldap_address(settings.address)
        self._search = settings.search_base is not None
        setting, text = ("search_filter", settings.search_filter) if self._search else ("bind_dn", settings.bind_dn)
        self._template = LoginTemplate(text)
        self._filter = None
        if self._search:
            try:
                self._filter = FilterTemplate(text)
            except ValueError as error:
                raise ConfigError(f"auth.ldap.search_filter cannot be read: {error}.") from None
        self._group_attributes = [settings.group_attribute or _NO_ATTRIBUTES]
        compared = compared_in_name(text) if self._filter is None else self._filter.compared
        self._spelling_checks = tuple(
            one for one in compared if settings.exact_names and not _TYPED.isdisjoint(one.names)
        )
        self._name_attributes = [one.attribute for one in self._spelling_checks]
        for name in self._template.names if settings.exact_names else ():
            if name in _TYPED and all(name not in one.names for one in self._spelling_checks):
                raise ConfigError(
                    f"auth.ldap.{setting} compares no attribute with ${{{name}}}, as uid=${{{name}}} would: it cannot "
                    "be told whether the client spells its name as its entry does. Let it compare one, or set "
                    "auth.ldap.exact_names = false, and rules then see names as clients spell them."
                )

    def _check(self) -> None:
        self._context()

    def _context(self) -> ssl.SSLContext | None:
        tls = self._settings.tls or (TlsSettings() if self._address.encrypted else None)
        return None if tls is None else tls_context(tls, "auth.ldap.tls")

    def _concerns(self, request: LoginRequest) -> bool:
        return self._template.concerns(request)

    async def _open(self) -> DirectoryConnection:
        """A new connection; bound as the searcher if users are searched."""
        connection = await DirectoryConnection.connect(
            self._address.host, self._address.port, self._context(), start_tls=not self._address.encrypted
        )
        try:
            if self._search:
                await self._become_searcher(connection)
        except BaseException:
            connection.abort()
            raise
        return connection

    async def _ask(self, connection: DirectoryConnection, request: LoginRequest) -> _Found | RecordError:
        """The result of a bind as the user, or why its entry, and perhaps no other's, cannot be used."""
        try:
            return await self._bound(connection, request)
        except RecordError as error:
            return error

    async def _bound(self, connection: DirectoryConnection, request: LoginRequest) -> _Found:
        """The result of a bind as the user: by a name made from ``bind_dn``, or by the entry that the filter finds.
        Raises RecordError."""
        values = self._template.values(request)
        try:
            password = request.password.encode()
        except UnicodeEncodeError:
            password = b""  # half a surrogate pair is no password
        if self._filter is None:
            name = self._template.filled(tuple(escape_name(value) for value in values)).encode()
            found = await self._bind(connection, name, password)
            if found.code == 0 and self._spelling_checks:
                own = await self._own_entry(connection, name, self._name_attributes, "auth.ldap.exact_names = true")
                if not self._spelled(own, values):
                    return _Found(_WRONG_PASSWORD)
            return found
        entry = await self._find(connection, values)
        if entry is None or not self._spelled(entry, values):
            # An unknown user must take as long as a wrong password.
            nobody = f"cn={secrets.token_hex(8)},{self._settings.search_base}".encode()
            if password:
                await connection.bind(nobody, password)
            return _NOBODY
        if (
            self._spelling_checks and self._settings.group_attribute is not None
        ):  # before the bind, with the searcher's rights
            entry = await self._entry(connection, entry.name, self._group_attributes) or Entry(entry.name, ())
        found = await self._bind(connection, entry.name, password, known=entry)
        return _Found(_WRONG_PASSWORD) if found.code in {_NO_SUCH_OBJECT, _INVALID_NAME} else found  # it is there

    async def _probe(self, connection: DirectoryConnection) -> None:
        if self._filter is not None:
            with contextlib.suppress(RecordError):  # "probe" may be several entries
                await self._find(connection, ("probe",) * len(self._template.names))
        else:  # the directory's own entry, which all may read
            await connection.search(b"", _ANY, whole_tree=False, attributes=[_NO_ATTRIBUTES], limit=1, seconds=1)

    async def _judge(self, request: LoginRequest, answer: _Found | RecordError) -> Verdict:
        """The verdict on ``answer``, which has the code of the user's bind, and its groups."""
        user = self._template.user(request)
        if isinstance(answer, RecordError):
            return Deny(self.name, "refused", user, detail=f"The user's entry cannot be used: {answer}.")
        match answer.code:
            case 0:
                pass
            case 32 | 34:  # no such object, a name it cannot have
                return Ignore(self.name)
            case 19 | 53:  # an account that is locked or disabled
                return Deny(
                    self.name, "refused", user, detail=f"The directory refuses the account (result {answer.code})."
                )
            case 48:  # inappropriate authentication
                return Deny(self.name, "bad_password", user, detail="The user's entry has no password.")
            case _:
                return Deny(self.name, "bad_password", user)
        try:
            groups = read_record({"groups": list(answer.groups)}).groups
        except RecordError as error:
            return Deny(self.name, "refused", user, detail=f"The user's groups cannot be used: {error}.")
        return Allow(self.name, user, groups=groups, is_superuser=self._settings.superuser_group in groups)

    def _usable(self, connection: DirectoryConnection) -> bool:
        return not connection.closing

    def _abort(self, connection: DirectoryConnection) -> None:
        connection.abort()

    # Questions.

    async def _bind(
        self, connection: DirectoryConnection, name: bytes, password: bytes, *, known: Entry | None = None
    ) -> _Found:
        """The code of a bind as the user, and its groups: of ``known``, else of the entry that it may read itself."""
        if not password:
            return _Found(_WRONG_PASSWORD)  # never asked: it would say yes
        result = await connection.bind(name, password)
        if result.code in {_NO_SUCH_OBJECT, _INVALID_NAME, _NO_PASSWORD, _WRONG_PASSWORD} | _REFUSED:
            return _Found(result.code)
        if result.code != 0:
            raise self._refused(result, "the bind of a user")
        if self._settings.group_attribute is None:
            return _Found(0)
        if known is None:
            known = await self._own_entry(connection, name, self._group_attributes, "auth.ldap.group_attribute")
        return _Found(0, tuple(first_name_part(value.decode(errors="replace")) for value in known.values))

    async def _own_entry(self, connection: DirectoryConnection, name: bytes, attributes: list[str], why: str) -> Entry:
        """The user's entry as the user may read it. Raises RecordError if it may not."""
        found = await self._entry(connection, name, attributes)
        if found is None:
            raise RecordError(
                f"the directory does not let the user read it, which {why} needs: allow it, or set search_base and a "
                "search_username that may"
            )
        return found

    async def _entry(self, connection: DirectoryConnection, name: bytes, attributes: list[str]) -> Entry | None:
        """The entry of this name, with the attributes that the connection's user may read. None: it may read none.
        Raises BackendDownError for any other failure: without its groups, a rule that denies them would be passed."""
        result, found = await connection.search(
            name, _ANY, whole_tree=False, attributes=attributes, limit=1, seconds=self._seconds
        )
        if result.code not in {0, _NO_SUCH_OBJECT} | _NEEDS_RIGHTS:
            raise self._refused(result, "the search")
        return found[0] if result.code == 0 and found else None

    def _spelled(self, entry: Entry, values: tuple[str, ...]) -> bool:
        """Whether the client spells its name exactly as its entry does. A directory takes ``DEV1`` and ``dev1`` for
        one, but rules and EMQX compare exactly. Raises RecordError when the entry's spelling cannot be read."""
        if not self._spelling_checks:
            return True
        if not entry.values:
            raise RecordError(
                f"the directory does not show its {', '.join(self._name_attributes)}: let the user that searches read "
                "that, or set auth.ldap.exact_names = false"
            )
        filled = self._by_name(values)
        exact = {name for one in self._spelling_checks if one.filled(filled) in entry.values for name in one.names}
        return exact >= _TYPED.intersection(self._template.names)

    def _by_name(self, values: tuple[str, ...]) -> dict[str, bytes]:
        return {name: value.encode() for name, value in zip(self._template.names, values, strict=True)}

    async def _find(self, connection: DirectoryConnection, values: tuple[str, ...]) -> Entry | None:
        """The entry that the filter finds with these values. Raises RecordError for several: a directory whose own
        limit is one shows one of them."""
        assert self._filter is not None
        await self._become_searcher(connection)
        result, found = await connection.search(
            (self._settings.search_base or "").encode(),
            self._filter.encoded(self._by_name(values)),
            whole_tree=True,
            attributes=self._name_attributes or self._group_attributes,
            limit=2,
            seconds=self._seconds,
        )
        if result.code == _SIZE_LIMIT_EXCEEDED or len(found) > 1:
            raise RecordError("auth.ldap.search_filter finds several entries")
        if result.code != 0:
            raise self._refused(result, "the search")
        return found[0] if found else None

    async def _become_searcher(self, connection: DirectoryConnection) -> None:
        """Bind as ``search_username`` unless bound so already, because a user's own rights may hide entries."""
        settings = self._settings
        name = (settings.search_username or "").encode()
        if connection.bound_as == name:
            return
        secret = settings.search_password
        password = b"" if secret is None or not name else fresh(secret, "auth.ldap.search_password").encode()
        if name and not password:
            raise self._down("is not asked as auth.ldap.search_username without auth.ldap.search_password", "settings")
        result = await connection.bind(name, password)
        if result.code != 0:
            raise self._refused(result, "the login")

    @property
    def _seconds(self) -> int:
        return math.ceil(self._timeout_s)

    # Errors.

    def _refused(self, result: Result, what: str) -> BackendDownError:
        """The error for a result of ``what``, which is no answer about a user."""
        words = f"result {result.code}" + (f": {result.said.splitlines()[0][:200]}" if result.said.strip() else "")
        if result.code in _NEEDS_TLS:
            return self._down(f"wants TLS for {what} ({words}): set auth.ldap.tls, or an ldaps:// address", "settings")
        if what == "the login" and result.code not in _BUSY:
            return self._down(
                f"refuses the login ({words}): check auth.ldap.search_username and auth.ldap.search_password, or "
                "whether it allows anonymous searches",
                "login",
            )
        if result.code == _NO_SUCH_OBJECT:
            return self._down(
                f"has no entry auth.ldap.search_base ({words}), or does not show it to the user that searches: check "
                "its spelling and who may read it",
                "settings",
            )
        if result.code in _NEEDS_RIGHTS:
            return self._down(
                f"does not allow {what} ({words}): give auth.ldap.search_username the right to read entries", "settings"
            )
        if result.code in _BUSY:
            return self._down(f"cannot take the question now ({words})", "busy")
        return self._down(f"refuses {what} ({words})", "other")

    def _explained(self, error: BaseException) -> BackendDownError | None:
        """What an error of the connection means; None for one of the network."""
        match error:
            case EndedError(result=Result(code=2 | 12 | 53)):  # what servers say of a StartTLS that they do not know
                return self._down("offers no StartTLS, which auth.ldap.tls asks for at ldap://", "tls")
            case EndedError():
                return self._down(f"ended the connection (result {error.result.code})", "lost")
            case MalformedError():
                return self._down(
                    f"does not speak LDAP as it should ({error}): is it one, and is TLS as auth.ldap.address says?",
                    "other",
                )
        return None
