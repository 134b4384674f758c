"""Settings of the service that EMQX asks who may connect, publish and subscribe: `gateway auth serve`."""

__all__ = [
    "AuthDatabaseSettings",
    "AuthHashingSettings",
    "AuthJwtKeySettings",
    "AuthJwtSettings",
    "AuthLdapSettings",
    "AuthLimitSettings",
    "AuthMysqlSettings",
    "AuthPostgresqlSettings",
    "AuthProtectionSettings",
    "AuthRedisSettings",
    "AuthSettings",
    "AuthTlsSettings",
    "AuthUsersFileSettings",
]

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from config.tls import TlsSettings
from config.values.addresses import HttpUrlText
from config.values.grammar import ByteCount, Count, Duration
from config.values.model import Table

Identity = Literal["username", "clientid", "common_name", "address"]
Host = Annotated[str, Field(min_length=1, max_length=253)]
Name = Annotated[str, Field(min_length=1)]
BackendTimeout = Annotated[Duration, Field(ge=timedelta(milliseconds=10), le=timedelta(seconds=4))]
Algorithm = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]


class AuthTlsSettings(Table):
    certificate_file: Path
    """PEM file with the service's certificate and its chain. Required when the table is there. Read again when it
    changes."""

    key_file: Path | None = None
    """PEM file with its private key. Unset: the key stands in `certificate_file`."""

    key_password: SecretStr | None = None
    """Password of an encrypted private key. Unset: it is not encrypted."""

    client_ca_file: Path | None = None
    """PEM file with the authorities that may have signed EMQX's client certificate: with it, only a client that shows
    one is answered. Unset: no certificate is asked for."""


class AuthDatabaseSettings(Table):
    file: Path | None = None
    """The built-in database, an SQLite file on a local disk. Unset: `auth/auth.sqlite3` below `data_dir`. The
    administration commands write to the same file, and the service notices."""

    identities: Annotated[tuple[Identity, ...], Field(min_length=1, max_length=4)] = (
        "username",
        "clientid",
        "common_name",
        "address",
    )
    """By what a device is looked up, in this order; the first that names a user of that kind decides. Only `username`
    and `clientid` can have passwords; a `common_name` (out of a certificate that EMQX has verified) and an `address`
    suffice by themselves."""


class AuthUsersFileSettings(Table):
    file: Path
    """CSV or JSON file of users, in the form that `gateway auth user export` writes and EMQX's own bootstrap files
    have. Required when `users_file` is in `auth.chain`. Read again when it changes; a bad one changes nothing."""

    identity: Literal["username", "clientid"] = "username"
    """What its first column names: the user name, or the client id where devices have no user name. EMQX's own files
    call it `user_id`."""

    algorithm: Literal["auto", "plain", "md5", "sha", "sha256", "sha512", "bcrypt", "pbkdf2"] = "auto"
    """How its `password_hash` was made, as in `auth.postgresql.algorithm`; `auto`: it says so itself."""

    salt_position: Literal["prefix", "suffix", "disable"] = "prefix"
    """Where the salt stood when the hash was made (md5, sha, sha256, sha512), before or behind the password."""

    pbkdf2_iterations: Annotated[Count, Field(ge=1, le=10_000_000)] = 4096
    """Iterations of a PBKDF2 hash that does not say so itself, as in `auth.postgresql.pbkdf2_iterations`."""


class AuthPostgresqlSettings(Table):
    host: Host = "127.0.0.1"
    """Host name or address of the server. This machine by default, where no TLS is needed."""

    port: Annotated[Count, Field(ge=1, le=65535)] = 5432
    """Port of the server. 5432 is PostgreSQL's own; a pooler such as PgBouncer often has 6432."""

    database: Name = "mqtt"
    """Name of the database that holds the users. `mqtt` is the one of EMQX's own examples."""

    username: Name = "gateway"
    """User to log in as. It needs to read what `query` reads, and should be allowed nothing more."""

    password: SecretStr | None = None
    """Its password. Unset: none is sent, which the server has to allow for this user and address."""

    tls: TlsSettings | None = None
    """TLS to the server. Unset: none, which suits the same machine alone."""

    query: Name = "SELECT password_hash, salt, is_superuser FROM mqtt_user WHERE username = ${username} LIMIT 1"
    """What finds a user. `${username}`, `${clientid}`, `${cert_common_name}`, `${peerhost}` become parameters, never
    text. Columns by name: `password_hash` (required), `salt`, `is_superuser`, `tenant`, `groups` (comma-separated),
    `attributes` (a JSON object). No row: the next in the chain is asked."""

    algorithm: Literal["auto", "plain", "md5", "sha", "sha256", "sha512", "bcrypt", "pbkdf2"] = "auto"
    """How `password_hash` was made. `auto`: it says so itself (`$argon2id$…`, `$2b$…`, `$pbkdf2-sha256$…`)."""

    salt_position: Literal["prefix", "suffix", "disable"] = "prefix"
    """Where the salt stood when the hash was made (md5, sha, sha256, sha512)."""

    pbkdf2_iterations: Annotated[Count, Field(ge=1, le=10_000_000)] = 4096
    """Iterations of a PBKDF2 hash that does not say so itself (bare hexadecimal, SHA-256). 4096 is EMQX's default; with
    a wrong number nobody's password is right. Many make each login dear."""

    pool_size: Annotated[Count, Field(ge=1, le=64)] = 4
    """Connections kept open, each with a question at a time; further questions wait. Many only load the server."""

    timeout: BackendTimeout = timedelta(seconds=1)
    """Longest wait for an answer, connecting included. After that the backend counts as down (`auth.backend_down`)."""


class AuthMysqlSettings(Table):
    host: Host = "127.0.0.1"
    """Host name or address of the server, MariaDB or MySQL. This machine by default, where no TLS is needed."""

    port: Annotated[Count, Field(ge=1, le=65535)] = 3306
    """Port of the server. 3306 is the one that MariaDB and MySQL listen on unless told."""

    database: Name = "mqtt"
    """Name of the database that holds the users. `mqtt` is the one of EMQX's own examples."""

    username: Name = "gateway"
    """User to log in as. It needs to read what `query` reads, and should be allowed nothing more."""

    password: SecretStr | None = None
    """Its password. Unset: none is sent, which the server has to allow for this user and address."""

    tls: TlsSettings | None = None
    """TLS to the server. Unset: none, which suits the same machine alone."""

    query: Name = (
        "SELECT password_hash, salt, is_superuser FROM mqtt_user WHERE username = ${username} "
        "AND CAST(username AS BINARY) = CAST(${username} AS BINARY) LIMIT 1"
    )
    """What finds a user, with the placeholders and columns of `auth.postgresql.query`. No row: the next is asked.
    `Lamp` and `lamp ` with a space are `lamp` to this server, so that a lock-out of one name would leave a guesser many
    others; the second condition compares exactly, after the first has used the index."""

    algorithm: Literal["auto", "plain", "md5", "sha", "sha256", "sha512", "bcrypt", "pbkdf2"] = "auto"
    """How `password_hash` was made, as in `auth.postgresql.algorithm`; `auto`: it says so itself."""

    salt_position: Literal["prefix", "suffix", "disable"] = "prefix"
    """Where the salt stood when the hash was made (md5, sha, sha256, sha512), before or behind the password."""

    pbkdf2_iterations: Annotated[Count, Field(ge=1, le=10_000_000)] = 4096
    """Iterations of a PBKDF2 hash that does not say so itself, as in `auth.postgresql.pbkdf2_iterations`."""

    pool_size: Annotated[Count, Field(ge=1, le=64)] = 4
    """Connections kept open, each with a question at a time; further questions wait. Many only load the server."""

    timeout: BackendTimeout = timedelta(seconds=1)
    """Longest wait for an answer, connecting included. After that the backend counts as down (`auth.backend_down`)."""


class AuthRedisSettings(Table):
    host: Host = "127.0.0.1"
    """Host name or address of the server. This machine by default, where no TLS is needed."""

    port: Annotated[Count, Field(ge=1, le=65535)] = 6379
    """Port of the server. 6379 is Redis' own, with TLS too unless it was told another."""

    database: Annotated[Count, Field(ge=0, le=65535)] = 0
    """Number of the database that holds the users. 0 is the one that a client gets which asks for none."""

    username: str | None = None
    """User to log in as (Redis 6 and later). Unset: the default user. It needs HMGET on those keys."""

    password: SecretStr | None = None
    """Password of that user, or of the server before Redis 6. Unset: none is sent."""

    tls: TlsSettings | None = None
    """TLS to the server. Unset: none, which suits the same machine alone."""

    key: Name = "mqtt_user:${username}"
    """Key of the hash that holds a user: fields `password_hash`, `salt`, `is_superuser`, `tenant`, `groups`,
    `attributes`. `${username}`, `${clientid}`, `${cert_common_name}`, `${peerhost}` are filled in; EMQX's default
    layout."""

    algorithm: Literal["auto", "plain", "md5", "sha", "sha256", "sha512", "bcrypt", "pbkdf2"] = "auto"
    """How `password_hash` was made, as in `auth.postgresql.algorithm`; `auto`: it says so itself."""

    salt_position: Literal["prefix", "suffix", "disable"] = "prefix"
    """Where the salt stood when the hash was made (md5, sha, sha256, sha512), before or behind the password."""

    pbkdf2_iterations: Annotated[Count, Field(ge=1, le=10_000_000)] = 4096
    """Iterations of a PBKDF2 hash that does not say so itself, as in `auth.postgresql.pbkdf2_iterations`."""

    pool_size: Annotated[Count, Field(ge=1, le=64)] = 4
    """Connections kept open, each with a question at a time; further questions wait. Many only load the server."""

    timeout: BackendTimeout = timedelta(seconds=1)
    """Longest wait for an answer, connecting included. After that the backend counts as down (`auth.backend_down`)."""


class AuthLdapSettings(Table):
    address: Annotated[str, Field(pattern=r"^ldaps?://[^/\s]+$")] = "ldap://127.0.0.1:389"
    """`ldap://host:port`, or `ldaps://host:port` for TLS from the first byte. This machine by default."""

    tls: TlsSettings | None = None
    """TLS to the server: with `ldap://` by StartTLS. Unset with `ldap://`: passwords travel readable."""

    bind_dn: Name = "uid=${username},ou=people,dc=example,dc=org"
    """The name to bind as with the device's password, which is the check. Placeholders as in `auth.redis.key`,
    escaped. Used unless `search_base` is set. An unknown user is refused, and nobody behind `ldap` in `auth.chain` is
    asked: directories say the same of an unknown name and of a wrong password."""

    search_base: str | None = None
    """Where to look for the entry to bind as, where its name does not follow from the user's, or where users that are
    not found shall be passed on to the next in `auth.chain`. Unset: `bind_dn`."""

    search_filter: Name = "(&(objectClass=*)(uid=${username}))"
    """Which entry below `search_base` to bind as; placeholders as in `bind_dn`. One that finds several is refused."""

    exact_names: bool = True
    """Whether a user name or client id must be spelled exactly as the attribute that it is looked up by
    (`uid=${username}`). Directories take `DEV1`, or `dev1` with a space behind it, for `dev1`; EMQX and the rules see
    what the client wrote. `false` lets such spellings in: they reach the rules, EMQX's too, as written, so rules
    for `dev1` do not concern them. Bans and lock-outs hold for all spellings either way. The user itself (`bind_dn`) or
    `search_username` has to be able to read the attribute."""

    search_username: str | None = None
    """The name to search as, with the right to read entries. Unset: anonymously, which many directories refuse."""

    search_password: SecretStr | None = None
    """Password of `search_username`. Unset: none, which only an anonymous search can do without."""

    group_attribute: str | None = None
    """Attribute of the entry whose values are the user's groups (`memberOf`: the first part of each name). Unset:
    none are read."""

    superuser_group: str | None = None
    """Group whose members are superusers, whom EMQX lets do everything. Unset: nobody is."""

    pool_size: Annotated[Count, Field(ge=1, le=64)] = 8
    """Binds under way at a time, a connection each; further logins wait. Many only load the directory."""

    timeout: BackendTimeout = timedelta(seconds=1)
    """Longest wait for an answer, connecting included. After that the backend counts as down (`auth.backend_down`)."""


class AuthJwtKeySettings(Table):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    """What logs, metrics and `explain` call it. Required, and each once."""

    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)]
    """The algorithms that this key is for, of one family (with `jwks_url`: of any but HS…, since each key of the set
    says what it is); a token that names another is not one of this key's. Required, since a key that takes whatever a
    token names can be made to verify a forged one."""

    secret: SecretStr | None = None
    """The shared secret (HS…): 32 bytes at least for HS256, 48 for HS384, 64 for HS512, since a shorter one can be
    found by trying, from a single token. As `secret_file` it is read again when it changes. Unset: the key is a public
    one."""

    secret_base64: bool = False
    """Whether `secret` is written in base64, as it has to be when its bytes are no text."""

    public_key_file: Path | None = None
    """PEM file with a public key or certificate (RS…, PS…, ES…, EdDSA); an RSA key has 2048 bits at least. Read again
    within a second of a change; one that cannot be used then changes nothing."""

    jwks_url: HttpUrlText | None = None
    """Where the issuer publishes its keys (a JWK set); one of `secret`, `public_key_file` and this. Redirects are not
    followed. 512 KiB and 100 keys at most are taken."""

    tls: TlsSettings = TlsSettings()
    """TLS to `jwks_url`."""

    refresh: Annotated[Duration, Field(ge=timedelta(seconds=10), le=timedelta(hours=24))] = timedelta(minutes=5)
    """How often the JWK set is fetched. A token with an unknown key id has it fetched at once, every ten seconds at
    most. Long: a key that the issuer has withdrawn is good that much longer."""

    keep: Annotated[Duration, Field(ge=timedelta(seconds=0), le=timedelta(days=7))] = timedelta(hours=1)
    """How long beyond `refresh` the last JWK set stays good when no new one can be fetched. Short: an issuer that is
    down keeps devices out. Long: withdrawn keys are good that much longer."""

    issuer: str | None = None
    """The `iss` that a token must have. Unset: any, which is right for a key that one issuer alone has."""

    audience: str | None = None
    """What `aud` must be or contain. Unset: not looked at, so that a token made for another service of the same issuer
    is good here too."""

    claims: dict[str, str] = Field(default={})
    """Claims that a token must have with these values; `${clientid}` and `${username}` are filled in, and match
    nothing when empty. `sub = "${clientid}"` makes a token one device's own."""

    require_expiry: bool = True
    """Whether a token without `exp` is refused. One that never expires cannot be taken back."""

    superuser: bool = False
    """Whether a token of this key may make its device a superuser (`is_superuser`), to which no rule applies at all.
    Off: the claim is not looked at, since whoever signs tokens for devices seldom means to hand out the broker."""


class AuthJwtSettings(Table):
    source: Literal["password", "username"] = "password"
    """Which field of CONNECT carries the token: the password, or the user name for devices that can set that alone."""

    keys: tuple[AuthJwtKeySettings, ...] = ()
    """The keys, tried in this order; needed when `jwt` is in `auth.chain`."""

    leeway: Annotated[Duration, Field(ge=timedelta(0), le=timedelta(minutes=5))] = timedelta(seconds=0)
    """By how much clocks may differ (`exp`, `nbf`). EMQX itself allows none; a device whose token begins this very
    second may need one or two."""

    lifetime_max: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(days=3650))] | None = None
    """Longest time that a token may still be good for; one that is good for longer is refused, whoever signed it.
    Unset: any."""

    acl_claim: str = "acl"
    """Claim with the device's rules, in either of EMQX's forms. Empty: none is read."""

    tenant_claim: str = "tenant"
    """Claim with the device's tenant, whose rules and limits then hold for it. Empty: none is read."""

    groups_claim: str = "groups"
    """Claim with the device's groups, a list of texts without commas. Empty: none is read."""


class AuthHashingSettings(Table):
    memory: Annotated[ByteCount, Field(ge=8 << 10, le=1 << 32)] = 19 << 20
    """Memory of one argon2id hash. 19 MiB with 2 passes is OWASP's choice, some 20 ms."""

    passes: Annotated[Count, Field(ge=1, le=100)] = 2
    """Passes of argon2id over its memory. 2 goes with 19 MiB; time grows with it, for guessers and for logins."""

    threads: Annotated[Count, Field(ge=1, le=64)] = 2
    """Hashes computed at a time. Each keeps a core busy; they have a lower priority than the answers from the
    cache."""

    queue: Annotated[Count, Field(ge=1, le=100_000)] = 64
    """Hashes that wait at most; a login beyond it is not verified but answered as `auth.backend_down` says. So is one
    that would not have its hash within `auth.answer_timeout`, as measured: on a busy machine far fewer wait."""

    renew: bool = True
    """Whether a hash of another kind or with weaker settings is replaced by one of today's when its user logs in: those
    taken over from EMQX (bcrypt, PBKDF2, sha256, ...). A fleet of devices whose hashes are salted sha256 pays for it:
    each login then costs an argon2id hash. `false` leaves them as they are until they get generated secrets."""


class AuthProtectionSettings(Table):
    failures: Annotated[Count, Field(ge=0, le=1_000_000)] = 10
    """Wrong passwords in `failure_window` after which a user is locked out, and how many of its logins are verified at
    a time: more guesses than that must not be answered before they count. 0: never, and any number."""

    address_failures: Annotated[Count, Field(ge=0, le=1_000_000)] = 50
    """The same for an address, whatever users it tries. 0: never, which is right where all devices share an address
    (a proxy or NAT in front of EMQX)."""

    failure_window: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(hours=24))] = timedelta(minutes=1)
    """How far back failures count. A minute. Long: the typing errors of a day add up; short: slow guessing passes."""

    lockout: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(hours=24))] = timedelta(seconds=30)
    """How long the first lock-out lasts; each one after doubles it."""

    lockout_max: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(days=7))] = timedelta(hours=1)
    """How long a lock-out lasts at most, however often it was doubled. Long: a device mended meanwhile waits on."""

    flapping_logins: Annotated[Count, Field(ge=0, le=1_000_000)] = 0
    """Logins of one client id in `flapping_window` after which it is banned for `flapping_ban`. 0: never; a device
    that reconnects in a loop costs little here, and EMQX can do the same."""

    flapping_window: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(hours=24))] = timedelta(minutes=1)
    """How far back logins count for `flapping_logins`. A minute, as with EMQX's own flapping detection."""

    flapping_ban: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(days=7))] = timedelta(minutes=5)
    """How long a flapping client id is banned; with the next login after it the count begins anew."""

    tracked: Annotated[Count, Field(ge=100, le=10_000_000)] = 100_000
    """Users whose failures are remembered at most, and as many each of addresses and client ids, some 200 bytes each.
    Of those that are only counted, the oldest make room; one that is locked out stays so."""


class AuthLimitSettings(Table):
    cache_entries: Annotated[Count, Field(ge=0, le=10_000_000)] = 200_000
    """Logins whose verification is remembered, about 1.3 KiB each; 0 remembers none. A reconnect within
    `cache_ttl` costs no hash and no query."""

    cache_ttl: Annotated[Duration, Field(ge=timedelta(0), le=timedelta(hours=24))] = timedelta(minutes=5)
    """How long. A user changed in the built-in database is forgotten at once; one changed in another backend after
    this time."""

    negative_ttl: Annotated[Duration, Field(ge=timedelta(0), le=timedelta(hours=1))] = timedelta(seconds=5)
    """How long a refused login is remembered, so that a device with a wrong password that tries again and again costs
    no hash each time."""

    in_flight: Annotated[Count, Field(ge=1, le=1_000_000)] = 2000
    """Logins that may be under verification at a time; beyond it those that are not in the cache are shed."""

    logins_per_second: Annotated[Count, Field(ge=0, le=10_000_000)] = 0
    """Logins a second that are not in the cache and still verified; beyond it they are shed. Guesses at who is locked
    out do not count. 0: no limit."""

    tenant_logins_per_second: Annotated[Count, Field(ge=0, le=10_000_000)] = 0
    """The same for each tenant, unless its own entry says otherwise. It counts logins that were verified: whose tenant
    a client is shows only then, and so nobody uses up another's by guessing. 0: no limit."""

    connections: Annotated[Count, Field(ge=1, le=100_000)] = 1024
    """HTTP connections at a time, TLS handshakes included. For a further one the oldest that has never asked anything
    is closed, else the new one. EMQX keeps as many as its `pool_size` for each of its nodes and purposes."""

    request_bytes: Annotated[ByteCount, Field(ge=1024, le=16 << 20)] = 1 << 20
    """Largest body of a request; a larger one is answered with deny. An MQTT user name and password may have 64 KiB
    each, and up to six times that in JSON. Each connection may hold one in memory, if it knows the shared secret."""

    read_timeout: Annotated[Duration, Field(ge=timedelta(milliseconds=100), le=timedelta(minutes=1))] = timedelta(
        seconds=5
    )
    """Longest time for a request to arrive, from its first byte, for a TLS handshake, and for answers to be taken; a
    slower connection is closed. One without a request is not: EMQX keeps its connections."""


class AuthSettings(Table):
    host: Host = "127.0.0.1"
    """Address that EMQX reaches the service at. This machine alone unless told; any other needs `shared_secret` or
    `tls.client_ca_file`, since whoever may ask can also guess."""

    port: Annotated[Count, Field(ge=0, le=65535)] = 8085
    """Port that EMQX reaches it at. 8085 is taken by nothing that EMQX itself opens; 0 takes a free one and logs it."""

    operator_host: Host = "127.0.0.1"
    """Address for `/metrics`, `/healthz`, `/readyz` and `/status` of the service. `http.token` and `http.tls` guard it
    as they guard the gateway's own port."""

    operator_port: Annotated[Count, Field(ge=0, le=65535)] = 9465
    """Port for them, beside the gateway's own 9464. 0 takes a free one and logs it."""

    shared_secret: SecretStr | None = None
    """What EMQX sends as `authorization: Bearer …`. Unset: nothing is asked for."""

    tls: AuthTlsSettings | None = None
    """TLS of the service. Unset: plain HTTP."""

    chain: Annotated[
        tuple[Literal["database", "users_file", "jwt", "postgresql", "mysql", "redis", "ldap"], ...],
        Field(min_length=1, max_length=7),
    ] = ("database",)
    """Who is asked about a login, in this order. Each says allow, deny, or ignore when it does not know the user; then
    the next is asked. At the end of the chain: deny."""

    anonymous: bool = False
    """Whether a client with neither user name, password nor certificate is let in when no one in the chain knows it.
    It still has no rights but those of rules for everybody."""

    backend_down: Literal["deny", "ignore"] = "deny"
    """What to say when a backend cannot be asked and the cache does not know. `deny`: nobody is let in unverified.
    `ignore`: the rest of the chain decides, and at its end EMQX's next authenticator; let EMQX have none that allows
    more."""

    answer_timeout: Annotated[Duration, Field(ge=timedelta(milliseconds=50), le=timedelta(seconds=4))] = timedelta(
        seconds=2
    )
    """Longest time for an answer, all of the chain included. EMQX waits 5 s, and takes a time-out for `ignore`."""

    session_max: Annotated[Duration, Field(ge=timedelta(seconds=10), le=timedelta(days=3650))] | None = None
    """Longest time after which a device has to log in again (`expire_at`); a token's own expiry may be earlier.
    Unset: no limit. It bounds how long a removed user stays connected."""

    client_attributes: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")], ...] = ()
    """Attributes of users that EMQX is told (`client_attrs`) and sends back with each question; `tenant` and `groups`
    always are. EMQX's authorisation body has to name them, see deploy/emqx."""

    hand_over_rules: bool = True
    """Whether a login's answer carries the device's rules (`acl`), so that EMQX asks once for each connection instead
    of once for each topic. A changed rule then reaches a device at its next login."""

    hand_over_max: Annotated[Count, Field(ge=1, le=10_000)] = 100
    """Rules in one answer at most; a device with more is judged topic by topic."""

    database: AuthDatabaseSettings = AuthDatabaseSettings()
    """The built-in database: users, rules, tenants, bans."""

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
    """How people's passwords are hashed."""

    protection: AuthProtectionSettings = AuthProtectionSettings()
    """Against guessing."""

    limits: AuthLimitSettings = AuthLimitSettings()
    """Against overload."""
