"""Relations between the settings of logins by token (``auth.jwt``)."""

from __future__ import annotations

__all__ = ["REFUSED", "WARNED"]

from typing import TYPE_CHECKING

from config.relations.rules import Rule, View
from config.values.addresses import is_readable_on_the_way
from config.values.jwt_secrets import SECRET_BYTES, decoded_secret
from config.values.names import placeholders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from config.auth import AuthJwtKeySettings
    from config.schema import Path

_SOURCES = ("secret", "public_key_file", "jwks_url")
_KINDS = {"RS": "RSA", "PS": "RSA", "ES": "elliptic curve", "Ed": "EdDSA"}


def _keys(view: View) -> Iterator[tuple[Path, AuthJwtKeySettings]]:
    for number, key in enumerate(view.settings.auth.jwt.keys):
        yield ("auth", "jwt", "keys", number), key


def _needed(view: View) -> Iterator[str]:
    auth = view.settings.auth
    if "jwt" in auth.chain and not auth.jwt.keys:
        yield (
            f"{view.say('auth', 'chain')} has jwt, but auth.jwt.keys is empty: no token could be verified; add an "
            "[[auth.jwt.keys]] table, or take jwt out of the chain."
        )


def _names(view: View) -> Iterator[str]:
    seen: set[str] = set()
    for at, key in _keys(view):
        if key.name in seen:
            yield (
                f"{view.say(*at, 'name')} is the name of another key too, and logs could not tell them apart; give "
                "each its own."
            )
        seen.add(key.name)


def _sources(view: View) -> Iterator[str]:
    for at, key in _keys(view):
        given = _given(key)
        if not given:
            yield (
                f"{view.say(*at, 'name')} has none of secret, public_key_file and jwks_url: it could verify nothing; "
                "give one of them."
            )
        elif len(given) > 1:
            yield (
                f"{view.say(*at, given[0])} and {view.say(*at, given[1])} are both given, and a key has one source; "
                "make two keys of it, or remove one."
            )


def _given(key: AuthJwtKeySettings) -> list[str]:
    return [name for name in _SOURCES if getattr(key, name) is not None]


def _algorithms(view: View) -> Iterator[str]:
    for at, key in _keys(view):
        if len(given := _given(key)) != 1:
            continue
        shared = [one for one in key.algorithms if one in SECRET_BYTES]
        kinds = {_KINDS[one[:2]] for one in key.algorithms if one not in SECRET_BYTES}
        say = view.say(*at, "algorithms")
        if shared and kinds:
            yield (
                f"{say} mixes {shared[0]}, which wants a secret, with others, which want a public key: a forger could "
                "then use the public key as the secret; make two keys of it."
            )
        elif kinds and key.secret is not None:
            yield (
                f"{say}, but {view.say(*at, 'secret')} is given: only HS256, HS384 and HS512 verify with a secret; "
                "correct the algorithms, or give public_key_file."
            )
        elif shared and key.secret is None:
            yield (
                f"{say} wants a secret, but {view.say(*at, given[0])} is given: what is public keeps no secret, and "
                "anybody could sign tokens with it; give secret, or other algorithms."
            )
        elif key.public_key_file is not None and (
            len(kinds) > 1 or len({"ES256", "ES384", "ES512"} & {*key.algorithms}) > 1
        ):
            yield (
                f"{say}, but {view.say(*at, 'public_key_file')} is one key, and no key can do all of these; give the "
                "algorithms of that key alone."
            )


def _secrets(view: View) -> Iterator[str]:
    for at, key in _keys(view):
        if key.secret is None or not all(one in SECRET_BYTES for one in key.algorithms):
            continue
        try:
            decoded_secret(key.secret.get_secret_value(), key.algorithms, base64_text=key.secret_base64)
        except ValueError as error:
            yield f"{view.say(*at, 'secret')} {error} ({view.say(*at, 'algorithms')}); let the issuer give another."


def _claims(view: View) -> Iterator[str]:
    known = ("clientid", "username") if view.settings.auth.jwt.source == "password" else ("clientid",)
    for at, key in _keys(view):
        say = view.say(*at, "claims")
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
                    f"{say} has ${{username}}, but {view.say('auth', 'jwt', 'source')}: the user name is the token "
                    "itself, and no claim can hold it; use ${clientid}."
                )
            elif unknown:
                yield (
                    f'{say}: "{name}" has ${{{unknown[0]}}}, which is unknown here; known are '
                    f"{', '.join(f'${{{one}}}' for one in known)}."
                )


def _key_tls(view: View) -> Iterator[str]:
    for at, key in _keys(view):
        for name in ("key_file", "key_password"):
            if getattr(key.tls, name) is not None and key.tls.certificate_file is None:
                yield (
                    f"{view.say(*at, 'tls', name)} is given without its certificate_file: a key alone identifies "
                    "nobody; give the certificate too, or remove the key."
                )


REFUSED = (
    Rule(("auth.chain", "auth.jwt.keys"), _needed),
    Rule(("auth.jwt.keys",), _names),
    Rule(("auth.jwt.keys",), _sources),
    Rule(("auth.jwt.keys",), _algorithms),
    Rule(("auth.jwt.keys",), _secrets),
    Rule(("auth.jwt.keys", "auth.jwt.source"), _claims),
    Rule(("auth.jwt.keys",), _key_tls),
)


def _unused(view: View) -> Iterator[str]:
    auth = view.settings.auth
    if auth.jwt.keys and "jwt" not in auth.chain:
        yield (
            f"auth.jwt.keys ({view.origin('auth', 'jwt', 'keys')}) has no effect, since {view.say('auth', 'chain')} "
            "has no jwt."
        )


def _readable(view: View) -> Iterator[str]:
    for at, key in _keys(view):
        if key.jwks_url is None:
            continue
        if is_readable_on_the_way(key.jwks_url):
            yield (
                f"{view.say(*at, 'jwks_url')} is not encrypted: anybody on the way can put keys of their own in, and "
                "sign themselves tokens; use https://."
            )
        elif not key.tls.verify:
            yield (
                f"{view.say(*at, 'tls', 'verify')}: anybody on the way can pretend to be the issuer, and sign "
                "themselves tokens; name the authority in its ca_file instead."
            )


def _anybodys(view: View) -> Iterator[str]:
    for at, key in _keys(view):
        if key.jwks_url is not None and key.audience is None and not key.claims:
            yield (
                f"{view.say(*at, 'jwks_url')} has neither audience nor claims beside it: a token that its issuer made "
                "for any other service, or for another device, would do here; set audience, or claims such as "
                'sub = "${clientid}".'
            )


WARNED = (
    Rule(("auth.chain", "auth.jwt.keys"), _unused),
    Rule(("auth.jwt.keys",), _readable),
    Rule(("auth.jwt.keys",), _anybodys),
)
