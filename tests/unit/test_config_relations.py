"""Settings that contradict each other are refused, doubtful ones told: both names and values, the consequence."""

import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from bridge.kafka.batch import REQUEST_BYTES
from config.errors import ConfigError
from config.loading.load import _RELATIONS, Loaded, load
from config.relations.rules import View, check
from config.schema import dotted, walk
from config.settings import Settings
from tests import command_cases, credential_cases, operate_cases

REFUSED = tuple(rule for relations in _RELATIONS for rule in relations.REFUSED)
WARNED = tuple(rule for relations in _RELATIONS for rule in relations.WARNED)


def route(*lines: str, name: str = "r", filters: str = '["a/#"]', topic: str = "t") -> str:
    return "\n".join(["[[routes]]", f'name = "{name}"', f"filters = {filters}", f'topic = "{topic}"', *lines, ""])


@dataclass(frozen=True)
class Case:
    """A file, and what the one sentence about it must hold, in order."""

    text: str
    says: tuple[str, ...]

    def check(self, sentences: tuple[str, ...]) -> None:
        assert len(sentences) == 1, sentences
        at = 0
        for part in self.says:
            found = sentences[0].find(part, at)
            assert found >= 0, f"{part!r} is missing, or out of order, in: {sentences[0]}"
            at = found + len(part)
        assert sentences[0].endswith(".")


SASL = '[kafka.sasl]\nusername = "u"\npassword = "hunter2"\n'
OTHER = route(name="other", filters='["b/#"]')
SECRET = 'secret = "0123456789abcdef0123456789abcdef"'
REMOTE = '[mqtt]\naddresses = ["mqtt://10.0.0.1"]\n'


def jwt_key(*lines: str, name: str = "k", algorithms: str = '["HS256"]') -> str:
    """A key of the JWT authenticator, in a chain that has it."""
    return "\n".join(
        ["[auth]", 'chain = ["jwt"]', "[[auth.jwt.keys]]", f'name = "{name}"', f"algorithms = {algorithms}", *lines, ""]
    )


CONTRADICTIONS = {
    "alerts read as telemetry": Case('[stream]\ntopics = ["a", "anomalies"]',
        ("stream.anomalies.topic", "is also in stream.topics", "name another topic")),
    "alerts among a route's records": Case(route(topic="anomalies") + "[stream]",
        ('stream.anomalies.topic = "anomalies" (default)', 'routes[0].topic = "anomalies"', "name another topic")),
    "alerts among the ledger's records": Case('[stream.anomalies]\ntopic = "gateway-ledger"',
        ("stream.anomalies.topic", "ledger.topic", "name another topic")),
    "client id without session": Case('[mqtt]\nclient_id = "gw"',
        ('mqtt.client_id = "gw" (gateway.toml:2)', "mqtt.sessions = 4 (default)", "ends the older", "add ${session}")),
    "client id without worker": Case('workers = 0\nworker = 1\n[mqtt]\nclient_id = "${instance}-${session}"',
        ("mqtt.client_id", "worker = 1 (gateway.toml:2)", "each other's sessions", "add ${worker}")),
    "client id without worker, with workers": Case('workers = 2\n[mqtt]\nclient_id = "${instance}-${session}"',
        ("mqtt.client_id", "workers = 2 (gateway.toml:1)", "each other's sessions", "add ${worker}")),
    "worker under a supervisor": Case("worker = 1",
        ("worker = 1 (gateway.toml:1)", "workers (not set)", "set workers = 0 as well")),
    "worker beside workers": Case("worker = 1\nworkers = 2", ("worker = 1", "workers = 2", "set workers = 0")),
    "client ids that meet": Case('workers = 12\n[mqtt]\nsessions = 11\nclient_id = "gw${worker}${session}"',
        ("mqtt.client_id", "session 10 of worker 1 and session 0 of worker 11", 'put a "-"')),
    "client ids that meet with a digit between": Case(
        'workers = 0\nworker = 12\n[mqtt]\nsessions = 20\nclient_id = "${session}1${worker}"',
        ("mqtt.client_id", "of worker 0 and session", "put a")),
    "client id with unknown placeholder": Case('[mqtt]\nclient_id = "${instanz}-${session}"', ("mqtt.client_id",
        "${instanz} is unknown here; did you mean ${instance}?", "known are ${instance}, ${worker}")),
    "client id with open placeholder": Case('[mqtt]\nclient_id = "a${session"', ("mqtt.client_id", "closing brace")),
    "session expires at once": Case("[mqtt]\nsession_expiry = 0",
        ("mqtt.session_expiry = 0s (gateway.toml:2)", "mqtt.persistent = true (default)", "would be lost")),
    "session expires while waiting": Case('[mqtt]\nsession_expiry = "20s"',
        ("mqtt.session_expiry = 20s", "shorter than mqtt.reconnect_max = 30s (default)", "is lost")),
    "reconnect starts above its ceiling": Case('[mqtt]\nreconnect_initial = "1m"',
        ("mqtt.reconnect_initial = 1m", "longer than mqtt.reconnect_max = 30s (default)", "ceiling")),
    "mqtt tls without tls address": Case('[mqtt.tls]\nca_file = "x"', ("mqtt.tls (gateway.toml:1)",
        'mqtt.addresses = ["mqtt://127.0.0.1:1883"] (default)', "nothing would be encrypted")),
    "mqtt key without certificate": Case('[mqtt]\naddresses = ["wss://a"]\n[mqtt.tls]\nkey_file = "k"',
        ('mqtt.tls.key_file = "k" (gateway.toml:4)', "mqtt.tls.certificate_file", "identifies nobody")),
    "mqtt key password without certificate": Case(
        '[mqtt]\naddresses = ["wss://a"]\n[mqtt.tls]\nkey_password = "hunter2"',
        ("mqtt.tls.key_password (gateway.toml:4)", "mqtt.tls.certificate_file", "identifies nobody")),
    "password without user": Case('[mqtt]\npassword = "hunter2"',
        ("mqtt.password (gateway.toml:2)", "mqtt.username", "anonymous client")),
    "proxy password without user": Case('[mqtt.proxy]\nhost = "p"\nport = 1\npassword = "hunter2"',
        ("mqtt.proxy.password (gateway.toml:4)", "mqtt.proxy.username", "needs both")),
    "status topic with wildcard": Case('[mqtt.status]\ntopic = "gateways/+/status"',
        ('mqtt.status.topic = "gateways/+/status"', "without wildcards")),
    "status topic of the broker": Case('[mqtt.status]\ntopic = "$SYS/x"', ("mqtt.status.topic", "broker's own")),
    "status topic with session": Case('[mqtt.status]\ntopic = "gateways/${session}"',
        ("mqtt.status.topic", "${session} is unknown here", "${instance}")),
    "partitioned with too few filters": Case(
        '[mqtt]\ndistribution = "partitioned"\n' + route(filters='["a/#", "a/b", "+/c", "d"]'),
        ('mqtt.distribution = "partitioned" (gateway.toml:2)', "only 2", "mqtt.sessions = 4 (default)",
        "split the filters")),
    "partitioned with workers": Case(
        'workers = 0\nworker = 1\n[mqtt]\nsessions = 1\ndistribution = "partitioned"\n' + route(),
        ('mqtt.distribution = "partitioned"', "worker = 1", "every message")),
    "partitioned with a supervisor's workers": Case(
        'workers = 2\n[mqtt]\nsessions = 1\ndistribution = "partitioned"\n' + route(),
        ('mqtt.distribution = "partitioned"', "workers = 2", "every message")),
    "security wants a user": Case('[kafka]\nsecurity = "SASL_SSL"',
        ('kafka.security = "SASL_SSL" (gateway.toml:2)', "kafka.sasl", "refuse")),
    "user without security": Case(SASL, ("kafka.sasl (gateway.toml:1)", 'kafka.security = "PLAINTEXT" (default)',
        "anonymous", "SASL_PLAINTEXT or SASL_SSL")),
    "user with tls alone": Case('[kafka]\nsecurity = "SSL"\n' + SASL, ("kafka.sasl", "anonymous", "to SASL_SSL, or")),
    "kafka tls without ssl": Case('[kafka.tls]\nca_file = "x"',
        ("kafka.tls (gateway.toml:1)", "kafka.security", "nothing would be encrypted")),
    "kafka key without certificate": Case('[kafka]\nsecurity = "SSL"\n[kafka.tls]\nkey_file = "k"',
        ("kafka.tls.key_file", "kafka.tls.certificate_file")),
    "kafka client id with session": Case('[kafka]\nclient_id = "${session}"',
        ("kafka.client_id", "${session} is unknown here", "${worker}")),
    "delivery before request": Case('[kafka]\ndelivery_timeout = "4s"',
        ("kafka.delivery_timeout = 4s", "kafka.request_timeout = 5s (default)", "written twice")),
    "backoff beyond delivery": Case('[kafka]\nrequest_timeout = "1s"\ndelivery_timeout = "10s"\nretry_backoff = "10s"',
        ("kafka.retry_backoff = 10s", "kafka.delivery_timeout = 10s", "first retry")),
    "metadata beyond delivery": Case('[kafka]\nmetadata_max_age = "2m"',
        ("kafka.metadata_max_age = 2m", "kafka.delivery_timeout = 2m (default)", "moved leader")),
    "batch beyond the broker": Case('[kafka]\nbatch_bytes = "2MiB"',
        ("kafka.batch_bytes = 2MiB", "kafka.max_message_bytes = 1048588 (default)", "refuse full batches")),
    "record beyond the broker": Case('[kafka]\nmax_record_bytes = "1MiB"',
        ("kafka.max_record_bytes = 1MiB", "kafka.max_message_bytes = 1048588 (default)", "refuse records")),
    "a request beyond the broker": Case(f'[kafka]\nmax_request_bytes = "{REQUEST_BYTES}B"',
        ("kafka.max_request_bytes = 1MiB", "kafka.batch_bytes = 256KiB (default)", "close the connection")),
    "a topic declared twice": Case(2 * '[[kafka.topics.declare]]\nname = "t"\n',
        ("kafka.topics.declare", 'topic "t" 2 times', "not clear")),
    "two routes with one name": Case(route(filters='["a"]') + route(filters='["b"]'),
        ('routes[1].name = "r" (gateway.toml:6)', "routes[0] (gateway.toml:1)", "tell them apart")),
    "topic that Kafka refuses": Case(route(topic="a/b"), ('routes[0].topic = "a/b" (gateway.toml:4)', "1 to 249")),
    "topic of Kafka's own": Case(route(topic="__x"), ('routes[0].topic = "__x"', "Kafka's own")),
    "route to the dead letters": Case(route(topic="gateway-dead-letters"),
        ("routes[0].topic", 'dead_letter.topic = "gateway-dead-letters" (default)', "told apart")),
    "route to another's dead letters": Case(route('dead_letter_topic = "t"'),
        ('routes[0].dead_letter_topic = "t" (gateway.toml:5)', "told apart")),
    "route to the ledger": Case(route(topic="gateway-ledger"), ('routes[0].topic = "gateway-ledger" (gateway.toml:4)',
        'ledger.topic = "gateway-ledger" (default)', "account")),
    "dead letters to the ledger": Case('[ledger]\ntopic = "gateway-dead-letters"\n' + route(),
        ('ledger.topic = "gateway-dead-letters" (gateway.toml:2)', "dead_letter.topic", "told apart")),
    "dead letters compacted": Case(
        '[[kafka.topics.declare]]\nname = "bad"\ncleanup_policy = "compact"\n' + route('dead_letter_topic = "bad"'),
        ('kafka.topics.declare[0].cleanup_policy = "compact" (gateway.toml:3)', '"bad"', "the last record of each key"),
    ),
    "tombstone without key": Case(route('key = ""', 'empty_payload = "tombstone"'),
        ('routes[0].key = "" (gateway.toml:5)', 'routes[0].empty_payload = "tombstone" (gateway.toml:6)',
        "there is none")),
    "ledger compacted": Case('[[kafka.topics.declare]]\nname = "gateway-ledger"\ncleanup_policy = "compact,delete"\n',
        ("kafka.topics.declare[0].cleanup_policy", '"gateway-ledger"', "takes the ledger", "leave cleanup_policy out")),
    "compaction without key": Case(
        '[[kafka.topics.declare]]\nname = "t"\ncleanup_policy = "compact,delete"\n' + route('key = ""'),
        ('routes[0].key = ""', 'routes[0].topic = "t"', "compaction")),
    "windows beyond memory": Case("[mqtt]\nsessions = 32\n[flow]\nexpected_packet_bytes = 1049",
        ("mqtt.sessions = 32 (gateway.toml:2) times mqtt.receive_maximum = 1000 (default) times",
        "flow.expected_packet_bytes = 1049 (gateway.toml:4) make 33568000, more than",
        "flow.memory_bytes = 32MiB (default)", "before the windows are full")),
    "groups' windows beyond their memory": Case(
        '[[mqtt.groups]]\nname = "alarms"\nsessions = 5\n' + route('group = "alarms"') + OTHER,
        ("mqtt.groups[0].memory_bytes = 4MiB (default)", '"alarms"', "pause all the time")),
    "groups that keep most of the memory": Case(
        '[[mqtt.groups]]\nname = "alarms"\nmemory_bytes = "17MiB"\n' + route('group = "alarms"') + OTHER,
        ("17MiB", "more than half of flow.memory_bytes = 32MiB (default)")),
    "a group nobody has made": Case(
        '[[mqtt.groups]]\nname = "alarms"\n' + route('group = "alarms"') + OTHER
        + route('group = "alarm"', name="third", filters='["c/#"]'),
        ('routes[2].group = "alarm" (gateway.toml:', 'Perhaps "alarms" is meant.'),
    ),
    "a group without a route": Case('[[mqtt.groups]]\nname = "alarms"\n' + route(),
        ('mqtt.groups (gateway.toml) has "alarms"', "no route has group")),
    "two groups of one name": Case(
        '[[mqtt.groups]]\nname = "a"\n[[mqtt.groups]]\nname = "a"\n' + route('group = "a"') + OTHER,
        ('mqtt.groups[1].name = "a" (gateway.toml:4)', "mqtt.groups[0] (gateway.toml:1)", "give each its own")),
    "no route for the first sessions": Case('[[mqtt.groups]]\nname = "a"\n' + route('group = "a"'),
        ("mqtt.sessions", "without a group")),
    "partitioned groups with too few filters": Case(
        '[mqtt]\nsessions = 1\ndistribution = "partitioned"\n[[mqtt.groups]]\nname = "a"\nsessions = 2\n'
        + route('group = "a"') + OTHER,
        ('mqtt.distribution = "partitioned"', 'of group "a"', "only 1", "2 sessions"),
    ),
    "packets beyond memory": Case('[mqtt]\nmax_packet_bytes = "16MiB"', ("mqtt.sessions = 4 (default)",
        "mqtt.max_packet_bytes = 16MiB", "flow.memory_bytes = 32MiB", "all reading would stop")),
    "expected beyond the largest packet": Case(
        '[mqtt]\nmax_packet_bytes = "1KiB"\n[flow]\nexpected_packet_bytes = 1025',
        ("flow.expected_packet_bytes = 1025", "mqtt.max_packet_bytes = 1KiB", "refused")),
    "batch beyond memory": Case('[mqtt]\nsessions = 1\n[flow]\nmemory_bytes = "1MiB"\n[kafka]\nbatch_bytes = 1048577',
        ("kafka.batch_bytes = 1048577", "flow.memory_bytes = 1MiB", "ever be full")),
    "pacing beyond linger": Case('[flow]\nread_pacing_max = "30ms"',
        ("flow.read_pacing_max = 30ms", "flow.linger_max = 20ms (default)", "overdue")),
    "linger beyond request": Case('[flow]\nlinger_max = "5s"',
        ("flow.linger_max = 5s", "kafka.request_timeout = 5s (default)", "other records")),
    "batch beyond the spool": Case('[spool]\nmax_bytes = "1MiB"\n[kafka]\nbatch_bytes = "1023KiB"',
        ("kafka.batch_bytes = 1023KiB", "spool.max_bytes = 1MiB", "never be spooled")),
    "record beyond the spool": Case('[spool]\nmax_bytes = "1MiB"',
        ("kafka.max_record_bytes = 1000000 (default)", "spool.max_bytes = 1MiB", "never be spooled")),
    "replay below a batch": Case('[spool]\nreplay_max_bytes_per_second = "64KiB"',
        ("spool.replay_max_bytes_per_second = 64KiB", "kafka.batch_bytes = 256KiB (default)", "raise the first")),
    "one folder for two": Case('[stream]\ncheckpoint = "data/lake"',
        ('stream.checkpoint = "data/lake"', 'stream.lake.path = "data/lake" (default)', "folder of its own")),
    "tokens without keys": Case('[auth]\nchain = ["jwt"]',
        ('auth.chain = ["jwt"] (gateway.toml:2)', "auth.jwt.keys is empty", "[[auth.jwt.keys]]")),
    "keys of one name": Case(jwt_key(SECRET) + jwt_key(SECRET).removeprefix('[auth]\nchain = ["jwt"]\n'),
        ('auth.jwt.keys[1].name = "k"', "is also the name of auth.jwt.keys[0]", "its own")),
    "a key without source": Case(jwt_key(),
        ('auth.jwt.keys[0].name = "k"', "none of secret, public_key_file", "one of")),
    "a key with two sources": Case(jwt_key(SECRET, 'jwks_url = "https://issuer/jwks"', 'audience = "mqtt"'),
        ("auth.jwt.keys[0].secret (gateway.toml", "auth.jwt.keys[0].jwks_url", "make two keys of it")),
    "a key of two families": Case(jwt_key(SECRET, algorithms='["HS256", "RS256"]'),
        ('auth.jwt.keys[0].algorithms = ["HS256", "RS256"]', "mixes HS256", "a forger", "make two keys")),
    "a secret for a key pair": Case(jwt_key(SECRET, algorithms='["RS256"]'), ("auth.jwt.keys[0].algorithms",
        "auth.jwt.keys[0].secret (gateway.toml", "only HS256", "give public_key_file")),
    "a public secret": Case(jwt_key('public_key_file = "key.pem"'),
        ("auth.jwt.keys[0].algorithms", 'public_key_file = "key.pem"', "anybody could sign", "give secret")),
    "a published secret": Case(jwt_key('jwks_url = "https://issuer/jwks"', 'audience = "mqtt"'),
        ("auth.jwt.keys[0].algorithms", "jwks_url", "anybody could sign", "give secret")),
    "one key for curves and RSA": Case(jwt_key('public_key_file = "key.pem"', algorithms='["RS256", "ES256"]'),
        ("auth.jwt.keys[0].algorithms", "public_key_file", "no key can do all of these")),
    "one key for two curves": Case(jwt_key('public_key_file = "key.pem"', algorithms='["ES256", "ES384"]'),
        ("auth.jwt.keys[0].algorithms", "public_key_file", "no key can do all of these")),
    "a short secret": Case(jwt_key('secret = "hunter2"'),
        ("auth.jwt.keys[0].secret (gateway.toml", "has 7 bytes", "HS256 needs 32 at least", "another")),
    "a secret too short for its hash": Case(jwt_key(SECRET, algorithms='["HS256", "HS512"]'),
        ("secret", "has 32 bytes", "HS512 needs 64 at least")),
    "a secret that is no base64": Case(jwt_key('secret = "hunter2!"', "secret_base64 = true"),
        ("auth.jwt.keys[0].secret (gateway.toml", "is not base64, as secret_base64 says", "another")),
    "a public key as secret": Case(jwt_key('secret = "-----BEGIN PUBLIC KEY----- hunter2 hunter2 hunter2"'),
        ("auth.jwt.keys[0].secret (gateway.toml", "a key pair's key", "forgers", "another")),
    "a time among the claims": Case(jwt_key(SECRET, 'claims = {exp = "1"}'),
        ("auth.jwt.keys[0].claims", '"exp"', "always checked", "remove it")),
    "an unknown placeholder in a claim": Case(jwt_key(SECRET, 'claims = {sub = "${topic}"}'),
        ("auth.jwt.keys[0].claims", "${topic}", "known are ${clientid}, ${username}")),
    "an open placeholder in a claim": Case(jwt_key(SECRET, 'claims = {sub = "${clientid"}'),
        ("auth.jwt.keys[0].claims", '"sub"', "closing brace")),
    "the token as the user name": Case(jwt_key(SECRET, 'claims = {sub = "${username}"}').replace("[[",
        '[auth.jwt]\nsource = "username"\n[[', 1), ("auth.jwt.keys[0].claims", "${username}",
        'auth.jwt.source = "username"', "use ${clientid}")),
    "a key for TLS without certificate": Case(jwt_key('jwks_url = "https://i/jwks"', 'audience = "m"',
        'tls.key_file = "k.pem"', algorithms='["RS256"]'), ('auth.jwt.keys[0].tls.key_file = "k.pem"',
        "without auth.jwt.keys[0].tls.certificate_file", "remove the key")),
}  # fmt: skip

DOUBTS = {
    "password on an open link": Case(REMOTE + 'username = "u"\npassword = "hunter2"',
        ("mqtt.password (gateway.toml:4)", "readable", "mqtt://10.0.0.1:1883",
        'mqtt.addresses = ["mqtt://10.0.0.1"] (gateway.toml:2)', "mqtts://")),
    "unverified mqtt": Case('[mqtt]\naddresses = ["mqtts://a"]\n[mqtt.tls]\nverify = false',
        ("mqtt.tls.verify = false", "pretend", "mqtt.tls.ca_file")),
    "short keepalive": Case("[mqtt]\nkeepalive = 4",
        ("mqtt.keepalive = 4s", "kafka.request_timeout = 5s (default)", "after 6s", "again")),
    "client ids that meet with many CPUs": Case('[mqtt]\nsessions = 11\nclient_id = "gw${worker}${session}"',
        ("mqtt.client_id", "session 10 of worker 1 and session 0 of worker 11")),
    "qos 0 in a persistent session": Case(route("qos = 0"),
        ("routes[0].qos = 0 (gateway.toml:5)", "mqtt.persistent = true (default)", 'route "r"', "lost")),
    "websocket path without websocket": Case('[mqtt]\nwebsocket_path = "/x"',
        ('mqtt.websocket_path = "/x"', "no effect", "mqtt.addresses")),
    "websocket headers without websocket": Case('[mqtt.websocket_headers]\nAuthorization = "hunter2"',
        ("mqtt.websocket_headers (gateway.toml:1)", "no effect")),
    "expiry of a session that is not kept": Case('[mqtt]\npersistent = false\nsession_expiry = "2h"',
        ("mqtt.session_expiry = 2h", "no effect", "mqtt.persistent = false")),
    "expiry in 3.1.1": Case('[mqtt]\nprotocol = "3.1.1"\nsession_expiry = "2h"',
        ("mqtt.session_expiry = 2h", "no effect", "mqtt.protocol")),
    "a share group that nothing is subscribed with": Case('[mqtt]\ndistribution = "partitioned"\nshare_group = "b"',
        ('mqtt.share_group = "b"', "no effect", 'mqtt.distribution = "partitioned"')),
    "own status is routed": Case('[mqtt.status]\ntopic = "fleet/${instance}"\n' + route(filters='["x", "fleet/+"]'),
        ("mqtt.status.topic", "routes[0].filters", "own birth and death", "below gateways/")),
    "properties in 3.1.1": Case('[mqtt]\nprotocol = "3.1.1"\n' + route('device = "${property.id}"'),
        ("routes[0].name", "mqtt.protocol", "always missing")),
    "readable sasl password": Case(
        '[kafka]\nsecurity = "SASL_PLAINTEXT"\nbootstrap_servers = ["k:1"]\n' + SASL + 'mechanism = "PLAIN"',
        ('kafka.sasl.mechanism = "PLAIN"', 'kafka.security = "SASL_PLAINTEXT"', "readable", "k:1", "SCRAM")),
    "unverified kafka": Case('[kafka]\nsecurity = "SSL"\n[kafka.tls]\nverify = false',
        ("kafka.tls.verify = false", "pretend", "kafka.tls.ca_file")),
    "spool after the producer is given up": Case('[spool]\nafter = "2m"\n[http]\noverdue_after = "3m"',
        ("spool.after = 2m", "kafka.delivery_timeout = 2m (default)", "replaced")),
    "spool after readiness": Case('[spool]\nafter = "30s"',
        ("spool.after = 30s", "http.overdue_after = 30s (default)", "/readyz turns red")),
    "a spool that is off": Case('[spool]\nenabled = false\nmax_bytes = "2GiB"',
        ("spool.max_bytes = 2GiB", "no effect", "spool.enabled = false")),
    "store and forward that forwards nothing": Case('[spool]\nafter = 0\nacknowledge = "never"',
        ("spool.after = 0", 'spool.acknowledge = "never"', "bridges nothing")),
    "audit before the ledger": Case('[ledger]\ninterval = "6m"\n[stream.devices]\ngateway_after = "12m"',
        ("stream.audit.settle = 5m (default)", "ledger.interval = 6m", "as unaccounted")),
    "gateways lost between two intervals": Case('[ledger]\ninterval = "3m"',
        ("stream.devices.gateway_after = 5m (default)", "ledger.interval = 3m", "does not start")),
    "short stop": Case("shutdown_timeout = 4", ("shutdown_timeout = 4s", "kafka.request_timeout = 5s", "again")),
    "short readiness": Case("[http]\noverdue_after = 4",
        ("http.overdue_after = 4s", "kafka.request_timeout = 5s", "/readyz turns red")),
    "keys that are not asked": Case(f'[[auth.jwt.keys]]\nname = "k"\nalgorithms = ["HS256"]\n{SECRET}',
        ("auth.jwt (gateway.toml", "has no effect", 'auth.chain = ["database"] (default)', "has no jwt")),
    "keys from a readable place": Case(jwt_key('jwks_url = "http://issuer/jwks"', 'audience = "mqtt"',
        algorithms='["RS256"]'), ('auth.jwt.keys[0].jwks_url = "http://issuer/jwks"', "sign themselves tokens",
        "use https://")),
    "keys from an unchecked place": Case(jwt_key('jwks_url = "https://issuer/jwks"', 'audience = "mqtt"',
        "tls.verify = false", algorithms='["RS256"]'), ("auth.jwt.keys[0].tls.verify = false",
        "pretend to be the issuer", "ca_file")),
    "tokens for anybody": Case(jwt_key('jwks_url = "https://issuer/jwks"', algorithms='["RS256"]'),
        ("auth.jwt.keys[0].jwks_url", "neither audience nor claims", "any other service", "set audience")),
}  # fmt: skip

SOUND = {
    "a request as large as the broker takes": f'[kafka]\nmax_request_bytes = "{REQUEST_BYTES + (64 << 10)}B"',
    "memory beyond a request": '[flow]\nmemory_bytes = "256MiB"\n' + route(topic="${topic[1]}"),
    "store and forward": "[spool]\nafter = 0",
    "a small spool that is off": "[spool]\nenabled = false",
    "one session needs no ${session}": '[mqtt]\nsessions = 1\nclient_id = "gw"',
    "a session that is not kept may end at once": "[mqtt]\npersistent = false\nsession_expiry = 0",
    "as many disjoint filters as sessions": '[mqtt]\ndistribution = "partitioned"\n' + route(filters=str([*"abcd"])),
    "password to this machine": '[mqtt]\naddresses = ["ws://[::1]", "mqtt://localhost"]\nusername = "u"\npassword="x"',
    "a tls table of defaults says nothing": '[mqtt.tls]\nverify = true\n[kafka.tls]\nminimum_version = "1.2"',
    "password over tls": ('[mqtt]\naddresses = ["mqtts://broker", "wss://broker"]\nusername = "u"\npassword = "x"'),
    "scram in the open": '[kafka]\nsecurity = "SASL_PLAINTEXT"\nbootstrap_servers = ["k:1"]\n' + SASL,
    "websocket settings with a websocket": '[mqtt]\naddresses = ["mqtt://a", "ws://a"]\nwebsocket_path = "/x"',
    "many templated topics": route(topic="${topic[1]}"),
    "qos 0 without a session": "[mqtt]\npersistent = false\n" + route("qos = 0"),
    "a status topic that begins with a placeholder": '[mqtt.status]\ntopic = "${instance}/status"',
    "folders side by side": '[stream]\nlake.path = "a"\ncheckpoint = "a/b"',
    "the route to # does not take gateways/": route(filters='["#"]'),
    "windows that just fit": '[mqtt]\nsessions = 32\nreceive_maximum = 1024\n[flow]\nmemory_bytes = "32MiB"',
    "tokens with the audience, over a checked connection": jwt_key(
        'jwks_url = "https://issuer/jwks"', 'audience = "mqtt"', algorithms='["RS256", "ES256"]'
    ),
    "a secret in base64": jwt_key('secret = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="', "secret_base64 = true"),
}
for cases in (credential_cases, operate_cases, command_cases):
    CONTRADICTIONS |= {name: Case(*case) for name, case in cases.REFUSED.items()}
    DOUBTS |= {name: Case(*case) for name, case in cases.WARNED.items()}
    SOUND |= cases.SOUND
CONTRADICTIONS |= {
    "auth for all machines without a secret": Case('[auth]\nhost = "0.0.0.0"',
        ('auth.host = "0.0.0.0" (gateway.toml:2)', "auth.shared_secret", "auth.tls.client_ca_file", "try passwords")),
    "auth for all machines with TLS that asks for no certificate": Case(
        '[auth]\nhost = "10.0.0.1"\n[auth.tls]\ncertificate_file = "c"',
        ('auth.host = "10.0.0.1"', "neither auth.shared_secret nor auth.tls.client_ca_file")),
    "auth for all machines with a secret that can be guessed": Case(
        '[auth]\nhost = "auth.plant"\nshared_secret = "hunter2"',
        ("auth.shared_secret (gateway.toml:3)", "fewer than 16", "auth.host", "guessed")),
    "a shared secret that no header can carry": Case('[auth]\nshared_secret = "hunter2 with spaces and more"',
        ("auth.shared_secret (gateway.toml:2)", "header")),
    "an empty shared secret": Case('[auth]\nshared_secret = ""', ("auth.shared_secret (gateway.toml:2)", "empty")),
    "one port for two": Case("[auth]\nport = 9465",
        ("auth.port = 9465 (gateway.toml:2)", "auth.operator_port = 9465 (default)", "give the second another")),
    "a backend twice": Case('[auth]\nchain = ["database", "database"]',
        ("auth.chain", "has database twice", "name it once")),
    "a users file that is not named": Case('[auth]\nchain = ["users_file"]',
        ("auth.chain", "[auth.users_file]", "take users_file out")),
    "an identity twice": Case('[auth.database]\nidentities = ["username", "username"]',
        ("auth.database.identities", "twice")),
    "a backend that may take longer than the answer": Case('[auth]\nchain = ["ldap"]\nanswer_timeout = "1s"',
        ("auth.ldap.timeout = 1s (default)", "auth.answer_timeout = 1s (gateway.toml:3)", "lower the first")),
    "a lock-out above its ceiling": Case('[auth.protection]\nlockout = "2h"',
        ("auth.protection.lockout = 2h", "auth.protection.lockout_max = 1h (default)", "ceiling")),
}  # fmt: skip
DOUBTS |= {
    "auth for all machines without TLS": Case(f'[auth]\nhost = "0.0.0.0"\nshared_{SECRET}',
        ('auth.host = "0.0.0.0"', "without TLS", "[auth.tls]")),
    "a short shared secret": Case('[auth]\nshared_secret = "hunter2"', ("auth.shared_secret", "fewer than 16")),
    "a server of users on another machine without TLS": Case(
        '[auth]\nchain = ["postgresql"]\n[auth.postgresql]\nhost = "db"',
        ('auth.postgresql.host = "db" (gateway.toml:4)', "no auth.postgresql.tls", "add the table")),
    "a directory on another machine without TLS": Case(
        '[auth]\nchain = ["ldap"]\n[auth.ldap]\naddress = "ldap://ldap.plant:389"',
        ('auth.ldap.address = "ldap://ldap.plant:389"', "no auth.ldap.tls", "StartTLS")),
    "anonymous clients": Case("[auth]\nanonymous = true", ("auth.anonymous = true", "rights of rules for")),
    "left to EMQX while a backend is down": Case('[auth]\nbackend_down = "ignore"',
        ('auth.backend_down = "ignore"', "no_match is deny")),
    "nobody is ever locked out": Case("[auth.protection]\nfailures = 0\naddress_failures = 0",
        ("auth.protection.failures = 0", "auth.protection.address_failures = 0", "without limit")),
    "an address is locked out before a user": Case("[auth.protection]\naddress_failures = 5",
        ("auth.protection.address_failures = 5", "less than auth.protection.failures = 10 (default)")),
    "hashes that are quickly tried": Case('[auth.hashing]\nmemory = "8MiB"',
        ("auth.hashing.memory = 8MiB", "auth.hashing.passes = 2 (default)", "OWASP")),
    "a server of users that is not asked": Case("[auth.redis]\ndatabase = 3",
        ("auth.redis (gateway.toml:1)", "auth.chain", "has no redis")),
    "a users file that is not asked": Case('[auth.users_file]\nfile = "u"',
        ("auth.users_file (gateway.toml:1)", "has no users_file")),
    "rules that are not handed over": Case("[auth]\nhand_over_rules = false\nhand_over_max = 7",
        ("auth.hand_over_max = 7", "no effect", "auth.hand_over_rules = false")),
    "a ban for flapping that never comes": Case('[auth.protection]\nflapping_ban = "1m"',
        ("auth.protection.flapping_ban = 1m", "no effect", "auth.protection.flapping_logins = 0 (default)")),
}  # fmt: skip
SOUND |= {
    "auth with a certificate of EMQX's": (
        '[auth]\nhost = "0.0.0.0"\n[auth.tls]\ncertificate_file = "c"\nclient_ca_file = "d"'
    ),
    "auth with a secret over TLS": (f'[auth]\nhost = "0.0.0.0"\nshared_{SECRET}\n[auth.tls]\ncertificate_file = "c"'),
    "auth's ports on different addresses": '[auth]\nport = 9465\noperator_host = "127.0.0.2"',
    "auth's ports are both chosen by the system": "[auth]\nport = 0\noperator_port = 0",
    "a directory over TLS": '[auth]\nchain = ["ldap"]\n[auth.ldap]\naddress = "ldaps://ldap.plant"',
    "servers of users on this machine": '[auth]\nchain = ["database", "postgresql", "mysql", "redis", "ldap"]',
}

OPEN_PORT = '[http]\nhost = "0.0.0.0"\n'
LONG_TOKEN = 'token = "0123456789abcdef"\n'
CONTRADICTIONS |= {
    "a token that no header can carry": Case('[http]\ntoken = "ümlaut"', ("http.token (gateway.toml:2)", "visible")),
    "an empty token": Case('[http]\ntoken = ""', ("http.token", "is empty", "stay closed")),
    "a short token for all machines": Case(
        f'{OPEN_PORT}token = "hunter2"\ntls = {{ certificate_file = "c" }}',
        ("http.token (gateway.toml:3)", "fewer than 16", 'http.host = "0.0.0.0" (gateway.toml:2)', "guessed"),
    ),
    "a short token for all machines of the access service": Case(
        '[auth]\noperator_host = "0.0.0.0"\n[http]\ntoken = "hunter2"',
        ("http.token (gateway.toml:4)", "fewer than 16", "auth.operator_host", "guessed"),
    ),
}
DOUBTS |= {
    "a token that travels readable": Case(
        f"{OPEN_PORT}{LONG_TOKEN}", ("http.token (gateway.toml:3)", "readable", 'http.host = "0.0.0.0"', "[http.tls]")
    ),
    "a short token": Case('[http]\ntoken = "hunter2"', ("http.token (gateway.toml:2)", "fewer than 16")),
}
SOUND |= {
    "a token on this machine": f"[http]\n{LONG_TOKEN}",
    "a token over TLS": f'{OPEN_PORT}{LONG_TOKEN}[http.tls]\ncertificate_file = "c"',
    "a port for all machines that shows metrics alone": OPEN_PORT,
}


def asked(server: str, *lines: str) -> str:
    """The table of a server in a chain that has it."""
    return "\n".join(["[auth]", f'chain = ["{server}"]', f"[auth.{server}]", *lines, ""])


CONTRADICTIONS |= {
    "a query for everybody": Case(asked("postgresql", 'query = "SELECT 1"'),
        ('auth.postgresql.query = "SELECT 1"', "no placeholder", "same user")),
    "a placeholder in quotes": Case(asked("mysql", "query = \"SELECT * FROM u WHERE n = '${clientid}'\""),
        ("auth.mysql.query", "${clientid} within quotes", "remove the quotes")),
    "a key with an unknown placeholder": Case(asked("redis", 'key = "u:${user}"'),
        ('auth.redis.key = "u:${user}"', "${user} is unknown", "${username}")),
    "a key of two names that run together": Case(asked("redis", 'key = "u:${username}${clientid}"'),
        ('auth.redis.key = "u:${username}${clientid}"', "side by side", "put a character between")),
    "a name with half a placeholder": Case(asked("ldap", 'bind_dn = "uid=${username"'),
        ("auth.ldap.bind_dn", "closing brace is missing")),
    "a filter for everybody": Case(asked("ldap", 'search_base = "dc=x"', 'search_filter = "(uid=lamp)"'),
        ("auth.ldap.search_filter", "no placeholder")),
    "a password to search with and no name": Case(asked("ldap", 'search_password = "hunter2"'),
        ("auth.ldap.search_password (gateway.toml:4)", "without auth.ldap.search_username", "give the name")),
    "a name to search as and no password": Case(asked("ldap", 'search_username = "cn=s"'),
        ('auth.ldap.search_username = "cn=s"', "without auth.ldap.search_password", "anonymous")),
    "a name to search as and an empty password": Case(asked("ldap", 'search_username = "cn=s"',
        'search_password = ""'), ('auth.ldap.search_username = "cn=s"', "without auth.ldap.search_password")),
    "superusers by a group that is not read": Case(asked("ldap", 'superuser_group = "admins"'),
        ('auth.ldap.superuser_group = "admins"', "without auth.ldap.group_attribute", "memberOf")),
    "a key without certificate for a server of users": Case(asked("redis", "[auth.redis.tls]", 'key_file = "k.pem"'),
        ('auth.redis.tls.key_file = "k.pem"', "without auth.redis.tls.certificate_file", "identifies nobody")),
}  # fmt: skip
DOUBTS |= {
    "a server of users that anybody can play": Case(
        asked("mysql", "[auth.mysql.tls]", "verify = false"),
        ("auth.mysql.tls.verify = false", "pretend to be the server", "auth.mysql.tls.ca_file"),
    ),
    "a filter of entries that are not searched": Case(asked("ldap", 'search_filter = "(uid=${clientid})"'),
        ('auth.ldap.search_filter = "(uid=${clientid})"', "no effect", "auth.ldap.search_base (not set)")),
    "a name to search as without a search": Case(asked("ldap", 'search_username = "cn=s"', 'search_password = "p"'),
        ('auth.ldap.search_username = "cn=s"', "no effect", "auth.ldap.search_base (not set)")),
    "passwords in the open in a table": Case(
        asked("redis", 'algorithm = "plain"'), ('auth.redis.algorithm = "plain"', "has all passwords")
    ),
}  # fmt: skip
DOUBTS["a pace of no questions"] = Case(
    "emqx.interval = 30", ("emqx.interval = 30s", "no effect", "emqx.url (not set)")
)
DOUBTS |= {
    f"{setting} beside {cause}": Case(f"{cause}\n{setting} = {text}", (f"{setting} =", "no effect", cause.split()[0]))
    for cause, setting, text in (
        ('mqtt.protocol = "3.1.1"', "mqtt.redirect", '"never"'),
        ("mqtt.status.enabled = false", "mqtt.status.topic", '"gateways/x"'),
        ('ledger.topic = ""', "ledger.interval", '"30s"'),
        ("admin.watch_groups = []", "admin.watch_lag", '"1h"'),
        ("canary.enabled = false", "canary.interval", '"30s"'),
        ("auth.limits.cache_entries = 0", "auth.limits.cache_ttl", '"1h"'),
        ('auth.chain = ["redis"]', "auth.database.identities", '["username"]'),
    )
}
SOUND |= {
    "quotes beside a placeholder": asked(
        "postgresql", "query = \"SELECT password_hash, 'x' AS tenant FROM u WHERE n = ${username} AND k = 'it''s'\""
    ),
    "a filter beside an unused name": asked(
        "ldap", 'search_base = "dc=x"', 'bind_dn = "uid=lamp"', 'search_filter = "(&(a=b)(uid=${clientid}))"'
    ),
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "gateway.toml"


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_refused_with_both_settings_and_the_consequence(name: str, file: Path) -> None:
    file.write_text(CONTRADICTIONS[name].text)
    with pytest.raises(ConfigError) as caught:
        load(environ={})
    CONTRADICTIONS[name].check(caught.value.problems)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", DOUBTS)
def test_what_is_doubtful_is_told_but_not_refused(name: str, file: Path) -> None:
    file.write_text(DOUBTS[name].text)
    loaded = load(environ={})
    DOUBTS[name].check(loaded.warnings)
    assert "hunter2" not in str(loaded.warnings)


@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound_passes_in_silence(name: str, file: Path) -> None:
    file.write_text(SOUND[name])
    assert load(environ={}).warnings == ()


def view_of(text: str, file: Path) -> View:
    """The view that a load of ``text`` checks, found by loading it with the rules turned off."""
    file.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("config.loading.load.check", lambda *_: [])
        loaded: Loaded = load(environ={})
    return View(loaded.settings, loaded.provenance)


def test_each_rule_has_a_case_and_names_all_settings_that_it_looks_at(file: Path) -> None:
    """Without the name in its rule a mistake in that setting would be told twice, once by its consequence."""
    names = [dotted(path) for path, field in walk(Settings) if field.kind != "table"]
    fired: set[int] = set()
    for case in (*CONTRADICTIONS.values(), *DOUBTS.values()):
        view = view_of(case.text, file)
        for number, rule in enumerate(REFUSED + WARNED):
            sentences = check([rule], view, ())
            if not sentences:
                continue
            fired.add(number)
            for sentence, name in product(sentences, names):
                told = re.search(rf"(?<![\w.]){name}(?:\[\d+\])?(?:\.\w+)? (?:= \S.* )?\(", sentence)
                known = any(name == path or name.startswith(f"{path}.") for path in rule.paths)
                assert known or not told, f"{name} is told but not in the paths {rule.paths}: {sentence}"
    silent = [rule.paths for number, rule in enumerate(REFUSED + WARNED) if number not in fired]
    assert not silent


def test_a_rule_is_skipped_while_one_of_its_settings_is_in_doubt(file: Path) -> None:
    view = view_of('[mqtt]\nreconnect_initial = "1m"', file)
    assert len(check(REFUSED, view, ())) == 1
    assert len(check(REFUSED, view, [("mqtt", "sessions")])) == 1
    assert check(REFUSED, view, [("mqtt", "reconnect_max")]) == []
    assert check(REFUSED, view, [("mqtt",)]) == []
    assert check(REFUSED, view, [()]) == []
