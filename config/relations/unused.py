"""Settings that have no effect beside another one: a warning, because their author had a purpose."""

from collections.abc import Callable
from functools import partial

from config.relations.rules import Rule, changed, when
from config.settings import Settings
from config.values.addresses import parse_mqtt_address


def _lacks(name: str, settings: Settings) -> bool:
    return name not in settings.auth.chain


def _unused(paths: str, cause: str, is_unused: Callable[[Settings], object]) -> tuple[Rule, ...]:
    """A rule for each of ``paths``; ``cause`` is the reason in its sentence."""

    def rule(path: str) -> Rule:
        return when(lambda s: is_unused(s) and changed(s, path), f"<{path}> has no effect, since {cause}.")

    return tuple(map(rule, paths.split()))


WARNED = (
    *_unused(
        "mqtt.websocket_path mqtt.websocket_headers",
        "<mqtt.addresses> has no ws:// or wss:// address",
        lambda s: not any(parse_mqtt_address(text).websocket for text in s.mqtt.addresses),
    ),
    *_unused("mqtt.share_group", "<mqtt.distribution>", lambda s: s.mqtt.distribution == "partitioned"),
    *_unused("mqtt.session_expiry", "<mqtt.persistent>", lambda s: s.mqtt.session_expiry and not s.mqtt.persistent),
    *_unused(
        "mqtt.session_expiry",
        "<mqtt.protocol>: the broker alone decides how long a session lives",
        lambda s: s.mqtt.persistent and s.mqtt.protocol == "3.1.1",
    ),
    *_unused(
        "mqtt.redirect",
        "<mqtt.protocol>: the broker then names no other server",
        lambda s: s.mqtt.protocol == "3.1.1",
    ),
    *_unused("mqtt.status.topic", "<mqtt.status.enabled>", lambda s: not s.mqtt.status.enabled),
    *_unused("ledger.interval", "<ledger.topic>", lambda s: not s.ledger.topic),
    *_unused("emqx.interval emqx.timeout", "<emqx.url>", lambda s: s.emqx.url is None),
    *_unused("admin.watch_interval admin.watch_lag", "<admin.watch_groups>", lambda s: not s.admin.watch_groups),
    *_unused("canary.topic canary.interval canary.timeout", "<canary.enabled>", lambda s: not s.canary.enabled),
    *_unused(
        "spool.after spool.max_bytes spool.acknowledge spool.replay_max_bytes_per_second",
        "<spool.enabled>",
        lambda s: not s.spool.enabled,
    ),
    *_unused("auth.hand_over_max", "<auth.hand_over_rules>", lambda s: not s.auth.hand_over_rules),
    *_unused(
        "auth.protection.flapping_window auth.protection.flapping_ban",
        "<auth.protection.flapping_logins>",
        lambda s: not s.auth.protection.flapping_logins,
    ),
    *_unused(
        "auth.ldap.search_filter auth.ldap.search_username",
        "<auth.ldap.search_base>",
        lambda s: s.auth.ldap.search_base is None and "ldap" in s.auth.chain,
    ),
    *_unused(
        "auth.limits.cache_ttl auth.limits.negative_ttl",
        "<auth.limits.cache_entries>",
        lambda s: not s.auth.limits.cache_entries,
    ),
    *_unused("auth.database.identities", "<auth.chain> has no database", partial(_lacks, "database")),
    *(
        rule
        for name in ("jwt", "postgresql", "mysql", "redis", "ldap", "users_file")
        for rule in _unused(f"auth.{name}", f"<auth.chain> has no {name}", partial(_lacks, name))
    ),
)
