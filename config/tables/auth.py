"""Settings of the service that EMQX asks who may connect, publish and subscribe: `gateway auth serve`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from config.tables.tls import ServerTlsSettings, TlsSettings
from config.values.addresses import HostText, HttpUrlText, LdapAddressText
from config.values.grammar import ByteCount, Count, Duration, duration, within
from config.values.model import Table

Identity = Literal["username", "clientid", "common_name", "address"]
Host = Annotated[str, Field(min_length=1, max_length=253)]
Name = Annotated[str, Field(min_length=1)]
BackendTimeout = Annotated[Duration, within("10ms", "4s")]
Algorithm = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]


class AuthDatabaseSettings(Table):
    file: Path | None = None
    """The built-in database, an SQLite file on a local disk. Unset: `auth/auth.sqlite3` below `data_dir`."""

    identities: Annotated[tuple[Identity, ...], Field(min_length=1, max_length=4)] = (
        "username",
        "clientid",
        "common_name",
        "address",
    )
    """Identities by which a device is looked up, in this order; the first that names a user decides. `common_name`
    (from a certificate that EMQX verified) and `address` need no password."""


class PasswordHashSettings(Table):
    algorithm: Literal["auto", "plain", "md5", "sha", "sha256", "sha512", "bcrypt", "pbkdf2"] = "auto"
    """How `password_hash` was made. `auto`: the hash tells it (`$argon2id$…`, `$2b$…`, `$pbkdf2-sha256$…`)."""

    salt_position: Literal["prefix", "suffix", "disable"] = "prefix"
    """Place of the salt in the hashed text (md5, sha, sha256, sha512): before or after the password."""

    pbkdf2_iterations: Annotated[Count, Field(ge=1, le=10_000_000)] = 4096
    """Iterations of a PBKDF2 hash that does not tell them (bare hexadecimal, SHA-256). With a wrong number every
    password is refused."""


class AuthUsersFileSettings(PasswordHashSettings):
    file: Path
    """CSV or JSON file of users, as `gateway auth user export` and EMQX's bootstrap files have it. It is read again
    when it changes; a file with an error changes nothing."""

    identity: Literal["username", "clientid"] = "username"
    """Meaning of the first column (`user_id` in EMQX's files)."""


class AuthServerSettings(PasswordHashSettings):
    host: Host = "127.0.0.1"
    """Host name or address of the server."""

    password: SecretStr | None = None
    """Password of `username`. Unset: none is sent."""

    tls: TlsSettings | None = None
    """TLS to the server. Unset: none, for a server on this machine."""

    pool_size: Annotated[Count, Field(ge=1, le=64)] = 4
    """Open connections; further queries wait."""

    timeout: BackendTimeout = duration("1s")
    """Longest wait for an answer, connecting included. Then the backend counts as down (`auth.backend_down`)."""


class AuthSqlSettings(AuthServerSettings):
    database: Name = "mqtt"
    """Name of the database with the users."""

    username: Name = "gateway"
    """User of the gateway, with the right to read what `query` reads, and no other."""


class AuthPostgresqlSettings(AuthSqlSettings):
    port: Annotated[Count, Field(ge=1, le=65535)] = 5432
    """Port of the server, or of a pooler."""

    query: Name = "SELECT password_hash, salt, is_superuser FROM mqtt_user WHERE username = ${username} LIMIT 1"
    """Query for a user. `${username}`, `${clientid}`, `${cert_common_name}`, `${peerhost}` become parameters, never
    text. Columns by name: `password_hash` (required), `salt`, `is_superuser`, `tenant`, `groups` (comma-separated),
    `attributes` (a JSON object). No row: the next in the chain is asked."""


class AuthMysqlSettings(AuthSqlSettings):
    port: Annotated[Count, Field(ge=1, le=65535)] = 3306
    """Port of the server, MariaDB or MySQL."""

    query: Name = (
        "SELECT password_hash, salt, is_superuser FROM mqtt_user WHERE username = ${username} "
        "AND CAST(username AS BINARY) = CAST(${username} AS BINARY) LIMIT 1"
    )
    """Query for a user, with the placeholders and columns of `auth.postgresql.query`. This server takes `Lamp` or `lamp
    ` with a space for `lamp`, which would evade a lock-out of one name: the second condition compares exactly; the
    first uses the index."""


class AuthRedisSettings(AuthServerSettings):
    port: Annotated[Count, Field(ge=1, le=65535)] = 6379
    """Port of the Redis server, with TLS too."""

    database: Annotated[Count, Field(ge=0, le=65535)] = 0
    """Number of the database with the users."""

    username: str | None = None
    """User of the gateway (Redis 6 and later), with the right to HMGET on the keys. Unset: the default user."""

    key: Name = "mqtt_user:${username}"
    """Key of a user's hash, with the fields `password_hash`, `salt`, `is_superuser`, `tenant`, `groups`, `attributes`.
    The default is EMQX's. Placeholders: `${username}`, `${clientid}`, `${cert_common_name}`, `${peerhost}`. A value
    that holds the text between it and the next finds nobody."""


class AuthLdapSettings(Table):
    address: LdapAddressText = "ldap://127.0.0.1:389"
    """`ldap://host:port`, or `ldaps://host:port` for TLS from the first byte."""

    tls: TlsSettings | None = None
    """TLS to the server; with `ldap://` by StartTLS. Unset with `ldap://`: passwords are readable on the network."""

    bind_dn: Name = "uid=${username},ou=people,dc=example,dc=org"
    """Name to bind as with the device's password; the bind is the check. Placeholders as in `auth.redis.key`, escaped.
    `search_base` replaces it. Unknown users are refused, and later entries of `auth.chain` are not asked: directories
    answer the same to a wrong password."""

    search_base: str | None = None
    """Where to search for the entry to bind as, if its name does not follow from the user's, or later entries of
    `auth.chain` shall be asked about unknown users."""

    search_filter: Name = "(&(objectClass=*)(uid=${username}))"
    """Filter for the entry below `search_base`; placeholders as in `bind_dn`. The login is refused if it finds
    several."""

    exact_names: bool = True
    """Whether user name or client id must equal the attribute exactly (`uid=${username}`). Directories take `DEV1` or
    `dev1` with a space for `dev1`; rules compare exactly. `false` lets other spellings in, without the rules for
    `dev1`. Bans and lock-outs apply to all spellings. `search_username`, or the user itself (`bind_dn`), needs to
    read it."""

    search_username: str | None = None
    """Name to search as, with the right to read entries. Unset: anonymous, which many directories refuse."""

    search_password: SecretStr | None = None
    """Password of `search_username`. Unset: none."""

    group_attribute: str | None = None
    """Attribute with the user's groups (`memberOf`: the first part of each name). Unset: none are read."""

    superuser_group: str | None = None
    """Group of superusers, to whom EMQX allows everything. Unset: nobody."""

    pool_size: Annotated[Count, Field(ge=1, le=64)] = 8
    """Binds at a time, one connection each; further logins wait."""

    timeout: BackendTimeout = duration("1s")
    """Longest wait for an answer, connecting included. Then the backend counts as down (`auth.backend_down`)."""


class AuthJwtKeySettings(Table):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    """Name in logs, metrics and `explain`. It must be unique."""

    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)]
    """Algorithms of this key, all of one family; with `jwks_url` any except HS…. A token with another algorithm is not
    verified by it: a key for any algorithm can be made to accept a forged token."""

    secret: SecretStr | None = None
    """Shared secret (HS…): at least 32 bytes for HS256, 48 for HS384, 64 for HS512. A `secret_file` is read again when
    it changes."""

    secret_base64: bool = False
    """Whether `secret` is written in base64, which bytes that are not text need."""

    public_key_file: Path | None = None
    """PEM file with a public key or certificate (RS…, PS…, ES…, EdDSA); RSA needs at least 2048 bits. A change is read
    within a second; an unusable file changes nothing."""

    jwks_url: HttpUrlText | None = None
    """Address of the issuer's keys (a JWK set). Give exactly one of `secret`, `public_key_file` and this. Redirects are
    not followed. At most 512 KiB and 100 keys."""

    tls: TlsSettings = TlsSettings()
    """TLS to `jwks_url`."""

    refresh: Annotated[Duration, within("10s", "1d")] = duration("5m")
    """Time between fetches of the JWK set. An unknown key id causes a fetch at once, at most every ten seconds."""

    keep: Annotated[Duration, within("0s", "7d")] = duration("1h")
    """How long beyond `refresh` the last JWK set stays valid when no new one can be fetched."""

    issuer: str | None = None
    """Required `iss` of a token. Unset: any, which is right for a key of a single issuer."""

    audience: str | None = None
    """Required value in `aud`. Unset: a token for another service of the same issuer is accepted."""

    claims: dict[str, str] = Field(default={})
    """Claims that a token must have with these values. `${clientid}` and `${username}` are replaced, and match nothing
    when empty. `sub = "${clientid}"` binds a token to one device."""

    require_expiry: bool = True
    """Whether a token without `exp` is refused: it cannot be withdrawn."""

    superuser: bool = False
    """Whether a token may make its device a superuser (`is_superuser`), to whom no rule applies. Off: the claim is
    ignored."""


class AuthJwtSettings(Table):
    source: Literal["password", "username"] = "password"
    """Field of CONNECT with the token: password, or user name."""

    keys: tuple[AuthJwtKeySettings, ...] = ()
    """The keys, tried in this order. Required if `auth.chain` has `jwt`."""

    leeway: Annotated[Duration, within("0s", "5m")] = duration("0s")
    """Allowed difference of clocks (`exp`, `nbf`). EMQX allows none. A device whose token begins this second may need
    one or two."""

    lifetime_max: Annotated[Duration, within("1s", "3650d")] | None = None
    """Longest remaining life of an acceptable token. Unset: any."""

    acl_claim: str = "acl"
    """Claim with the device's rules, in either of EMQX's forms. Empty: none is read."""

    tenant_claim: str = "tenant"
    """Claim with the device's tenant, whose rules and limits apply to it. Empty: none is read."""

    groups_claim: str = "groups"
    """Claim with the device's groups, a list of texts without commas. Empty: none is read."""


class AuthHashingSettings(Table):
    memory: Annotated[ByteCount, Field(ge=8 << 10, le=1 << 32)] = 19 << 20
    """Memory of one argon2id hash. 19 MiB with 2 passes is OWASP's choice and takes about 20 ms."""

    passes: Annotated[Count, Field(ge=1, le=100)] = 2
    """Passes of argon2id over its memory. The time grows with it, for guessers and for logins."""

    threads: Annotated[Count, Field(ge=1, le=64)] = 2
    """Hashes computed at a time, each on one core."""

    queue: Annotated[Count, Field(ge=1, le=100_000)] = 64
    """Most hashes that wait. A further login is answered as `auth.backend_down` says, unverified. So is one whose hash
    would be later than `auth.answer_timeout`."""

    renew: bool = True
    """Whether a login replaces its user's hash if that is of another kind or weaker, as EMQX's are (bcrypt, PBKDF2,
    sha256). Then each login of a device with a salted sha256 hash costs an argon2id hash."""


class AuthProtectionSettings(Table):
    failures: Annotated[Count, Field(ge=0, le=1_000_000)] = 10
    """Wrong passwords within `failure_window` after which a user is locked out. Also the number of a user's
    passwords verified at a time. 0: neither."""

    address_failures: Annotated[Count, Field(ge=0, le=1_000_000)] = 50
    """Wrong passwords within `failure_window` after which an address is locked out, over all users. 0: never, for
    devices behind one address (a proxy or NAT in front of EMQX)."""

    failure_window: Annotated[Duration, within("1s", "1d")] = duration("1m")
    """Begins with the first failure. Short: slow guessing is not noticed."""

    lockout: Annotated[Duration, within("1s", "1d")] = duration("30s")
    """Duration of the first lock-out; each further one doubles it."""

    lockout_max: Annotated[Duration, within("1s", "7d")] = duration("1h")
    """Longest lock-out of a user or an address."""

    flapping_logins: Annotated[Count, Field(ge=0, le=1_000_000)] = 0
    """Logins of one client id within `flapping_window` after which it is banned for `flapping_ban`. 0: never."""

    flapping_window: Annotated[Duration, within("1s", "1d")] = duration("1m")
    """Begins with the first login, for `flapping_logins`."""

    flapping_ban: Annotated[Duration, within("1s", "7d")] = duration("5m")
    """Duration of the ban; after it the count starts again."""

    tracked: Annotated[Count, Field(ge=100, le=10_000_000)] = 100_000
    """Most users whose failures are remembered, and as many addresses and client ids, about 200 bytes each. Those
    locked out stay."""


class AuthLimitSettings(Table):
    cache_entries: Annotated[Count, Field(ge=0, le=10_000_000)] = 200_000
    """Verified logins that are remembered, about 1.4 KiB each: a reconnect costs no hash and no query."""

    cache_ttl: Annotated[Duration, within("0s", "1d")] = duration("5m")
    """How long a verified login is remembered. A user changed in the built-in database is forgotten at once, one in
    another backend after this time."""

    negative_ttl: Annotated[Duration, within("0s", "1h")] = duration("5s")
    """How long a refused login is remembered."""

    in_flight: Annotated[Count, Field(ge=1, le=1_000_000)] = 2000
    """Logins verified at a time. Above it, logins that are not in the cache are shed."""

    logins_per_second: Annotated[Count, Field(ge=0, le=10_000_000)] = 0
    """Logins a second that are not in the cache and are verified; further ones are shed. 0: no limit."""

    tenant_logins_per_second: Annotated[Count, Field(ge=0, le=10_000_000)] = 0
    """Verified logins a second of each tenant, unless its own entry sets another limit. 0: no limit."""

    connections: Annotated[Count, Field(ge=1, le=100_000)] = 1024
    """HTTP connections at a time, TLS handshakes included. A further one replaces the oldest that never sent a request,
    or is closed."""

    request_bytes: Annotated[ByteCount, Field(ge=1024, le=16 << 20)] = 1 << 20
    """Largest body of a request; a larger one is answered with deny. MQTT user name and password may have 64 KiB each,
    six times that in JSON."""

    read_timeout: Annotated[Duration, within("100ms", "1m")] = duration("5s")
    """Longest time for a request to arrive, for a TLS handshake, and for reading an answer; a slower connection is
    closed. Idle connections stay open."""


class AuthSettings(Table):
    host: HostText = "127.0.0.1"
    """Address that EMQX connects to. Beyond this machine it needs `shared_secret` or `tls.client_ca_file`, because
    whoever may ask can guess passwords."""

    port: Annotated[Count, Field(ge=0, le=65535)] = 8085
    """Port that EMQX connects to. 0 takes a free port and logs it."""

    operator_host: HostText = "127.0.0.1"
    """Address of the service's `/metrics`, `/healthz`, `/readyz` and `/status`, protected by `http.token` and
    `http.tls`."""

    operator_port: Annotated[Count, Field(ge=0, le=65535)] = 9465
    """Port of these pages. 0 takes a free port and logs it."""

    shared_secret: SecretStr | None = None
    """Secret that EMQX sends as `authorization: Bearer …`. Unset: none is needed."""

    tls: ServerTlsSettings | None = None
    """TLS of the service. Unset: plain HTTP."""

    chain: Annotated[
        tuple[Literal["database", "users_file", "jwt", "postgresql", "mysql", "redis", "ldap"], ...],
        Field(min_length=1, max_length=7),
    ] = ("database",)
    """Backends that are asked about a login, in this order. Each answers allow, deny, or ignore for a user it does not
    know; then the next is asked. At the end: deny."""

    anonymous: bool = False
    """Whether a client without user name, password and certificate is admitted when nothing in the chain knows it, with
    the rights of rules for everybody."""

    backend_down: Literal["deny", "ignore"] = "deny"
    """Answer when a backend is down and the cache does not know the login. `deny`: nobody is admitted unverified.
    `ignore`: the rest of the chain decides, then EMQX's next authenticator, which must not be more permissive."""

    answer_timeout: Annotated[Duration, within("50ms", "4s")] = duration("2s")
    """Longest time for an answer. EMQX waits 5 s and treats a time-out as `ignore`."""

    session_max: Annotated[Duration, within("10s", "3650d")] | None = None
    """Longest time until a device must log in again (`expire_at`), and so until a removed user is gone. Unset: no limit
    but a token's own."""

    client_attributes: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")], ...] = ()
    """Attributes of users that EMQX receives (`client_attrs`) and sends back, beside `tenant` and `groups`. EMQX's
    authorisation body must name them (deploy/emqx)."""

    hand_over_rules: bool = True
    """Whether the answer to a login carries the device's rules (`acl`). A changed rule then applies from the next
    login. Off: EMQX asks for each topic."""

    hand_over_max: Annotated[Count, Field(ge=1, le=10_000)] = 100
    """Most rules in one answer. EMQX asks about topics of the others."""

    database: AuthDatabaseSettings = AuthDatabaseSettings()
    """The built-in database of users, rules, tenants and bans."""

    users_file: AuthUsersFileSettings | None = None
    """A file of users."""

    jwt: AuthJwtSettings = AuthJwtSettings()
    """JSON Web Tokens."""

    postgresql: AuthPostgresqlSettings = AuthPostgresqlSettings()
    """Users in PostgreSQL."""

    mysql: AuthMysqlSettings = AuthMysqlSettings()
    """Users in MariaDB or MySQL."""

    redis: AuthRedisSettings = AuthRedisSettings()
    """Users in Redis."""

    ldap: AuthLdapSettings = AuthLdapSettings()
    """Users in an LDAP directory."""

    hashing: AuthHashingSettings = AuthHashingSettings()
    """Password hashing."""

    protection: AuthProtectionSettings = AuthProtectionSettings()
    """Limits against guessing."""

    limits: AuthLimitSettings = AuthLimitSettings()
    """Limits against overload."""
