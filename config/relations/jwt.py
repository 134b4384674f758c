"""Relations between the settings of logins by token (``auth.jwt``)."""

from collections.abc import Callable, Iterator

from config.relations.client_tls import tls_files
from config.relations.rules import Rule, names_apart, when
from config.settings import Settings
from config.tables.auth import AuthJwtKeySettings
from config.values.addresses import is_readable_on_the_way
from config.values.auth_placeholders import SIDE_BY_SIDE
from config.values.jwt_secrets import SECRET_BYTES, decoded_secret
from config.values.names import placeholders

_SOURCES = ("secret", "public_key_file", "jwks_url")
_KINDS = {"RS": "RSA", "PS": "RSA", "ES": "elliptic curve", "Ed": "EdDSA"}


def _of_keys(find: Callable[[AuthJwtKeySettings, str], Iterator[str]]) -> Rule:
    """A rule about each key alone; ``find`` gets it and its path."""

    def find_all(settings: Settings) -> Iterator[str]:
        for number, key in enumerate(settings.auth.jwt.keys):
            yield from find(key, f"auth.jwt.keys.{number}")

    return Rule(("auth.jwt.keys",), find_all)


def _sources(key: AuthJwtKeySettings, at: str) -> Iterator[str]:
    """Refuses a key with no source, or with several. ``at``: its path, for the sentence."""
    given = _given(key)
    if not given:
        yield (
            f"<{at}.name> has none of secret, public_key_file and jwks_url: it could verify nothing; give one of them."
        )
    elif len(given) > 1:
        yield (
            f"<{at}.{given[0]}> and <{at}.{given[1]}> are both given, and a key has one source; make two keys of it, "
            "or remove one."
        )


def _given(key: AuthJwtKeySettings) -> list[str]:
    return [name for name in _SOURCES if getattr(key, name) is not None]


def _algorithms(key: AuthJwtKeySettings, at: str) -> Iterator[str]:
    """Refuses algorithms that the key's source cannot verify; not judged without exactly one source."""
    if len(given := _given(key)) != 1:
        return
    shared = [one for one in key.algorithms if one in SECRET_BYTES]
    kinds = {_KINDS[one[:2]] for one in key.algorithms if one not in SECRET_BYTES}
    if shared and kinds:
        yield (
            f"<{at}.algorithms> mixes {shared[0]}, which wants a secret, with others, which want a public key: a "
            "forger could then use the public key as the secret; make two keys of it."
        )
    elif kinds and key.secret is not None:
        yield (
            f"<{at}.algorithms>, but <{at}.secret> is given: only HS256, HS384 and HS512 verify with a secret; correct "
            "the algorithms, or give public_key_file."
        )
    elif shared and key.secret is None:
        yield (
            f"<{at}.algorithms> wants a secret, but <{at}.{given[0]}> is given: what is public keeps no secret, and "
            "anybody could sign tokens with it; give secret, or other algorithms."
        )
    elif key.public_key_file is not None and (
        len(kinds) > 1 or len({"ES256", "ES384", "ES512"} & {*key.algorithms}) > 1
    ):
        yield (
            f"<{at}.algorithms>, but <{at}.public_key_file> is one key, and no key can do all of these; give the "
            "algorithms of that key alone."
        )


def _secrets(key: AuthJwtKeySettings, at: str) -> Iterator[str]:
    """Refuses secrets that no HS algorithm of their key can use."""
    if key.secret is None or not all(one in SECRET_BYTES for one in key.algorithms):
        return
    try:
        decoded_secret(key.secret.get_secret_value(), key.algorithms, base64_text=key.secret_base64)
    except ValueError as error:
        yield f"<{at}.secret> {error} (<{at}.algorithms>); let the issuer give another."


def _claims(settings: Settings) -> Iterator[str]:
    """Refuses claims of a key that are times, or whose template cannot be filled."""
    known = ("clientid", "username") if settings.auth.jwt.source == "password" else ("clientid",)
    for number, key in enumerate(settings.auth.jwt.keys):
        say = f"<auth.jwt.keys.{number}.claims>"
        for name in sorted({"exp", "nbf", "iat"} & key.claims.keys()):
            yield f'{say} has "{name}", which is a time and always checked; remove it.'
        for name, template in key.claims.items():
            try:
                unknown = [one for one in placeholders(template) if one not in known]
            except ValueError as error:
                yield f'{say}: "{name}": {error}.'
                continue
            if unknown == ["username"]:
                yield (
                    f"{say} has ${{username}}, but <auth.jwt.source>: the user name is the token itself, and no claim "
                    "can hold it; use ${clientid}."
                )
            elif "}${" in template:
                yield f'{say}: "{name}": {SIDE_BY_SIDE}.'
            elif unknown:
                yield (
                    f'{say}: "{name}" has ${{{unknown[0]}}}, which is unknown here; known are '
                    f"{', '.join(f'${{{one}}}' for one in known)}."
                )


REFUSED = (
    when(
        lambda s: "jwt" in s.auth.chain and not s.auth.jwt.keys,
        "<auth.chain> has jwt, but auth.jwt.keys is empty: no token could be verified; add an [[auth.jwt.keys]] table, "
        "or take jwt out of the chain.",
        "auth.jwt.keys",
    ),
    names_apart("auth.jwt.keys", "logs and metrics"),
    _of_keys(_sources),
    _of_keys(_algorithms),
    _of_keys(_secrets),
    Rule(("auth.jwt.keys", "auth.jwt.source"), _claims),
    Rule(
        ("auth.jwt.keys",),
        lambda s: [
            text for number in range(len(s.auth.jwt.keys)) for text in tls_files(s, f"auth.jwt.keys.{number}.tls")
        ],
    ),
)


def _readable(key: AuthJwtKeySettings, at: str) -> Iterator[str]:
    """Warns of key sets fetched without encryption, or from a server that is not verified."""
    if key.jwks_url is not None and is_readable_on_the_way(key.jwks_url):
        yield (
            f"<{at}.jwks_url> is not encrypted: others on the network can add their keys, and sign themselves tokens; "
            "use https://."
        )
    elif key.jwks_url is not None and not key.tls.verify:
        yield (
            f"<{at}.tls.verify>: others on the network can pretend to be the issuer, and sign themselves tokens; name "
            "the authority in its ca_file instead."
        )


def _anybodys(key: AuthJwtKeySettings, at: str) -> Iterator[str]:
    """Warns of issuers whose tokens for anybody else would be taken."""
    if key.jwks_url is not None and key.audience is None and not key.claims:
        yield (
            f"<{at}.jwks_url> has neither audience nor claims beside it: a token that its issuer made for any other "
            'service, or for another device, would do here; set audience, or claims such as sub = "${clientid}".'
        )


WARNED = (_of_keys(_readable), _of_keys(_anybodys))
