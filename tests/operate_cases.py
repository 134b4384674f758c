"""Files whose settings for operating the gateway contradict each other, or deserve a look, and what is said of them."""


def _route(filters: str, name: str = "r", topic: str = "t") -> str:
    return f'[[routes]]\nname = "{name}"\nfilters = {filters}\ntopic = "{topic}"\n'


_OTHER = _route('["b/#"]', name="other")
_EMQX = '[emqx]\nurl = "https://emqx.example:18084"\napi_key = "k"\napi_secret = "hunter2"\n'
_CANARY = "[canary]\nenabled = true\n"

REFUSED: dict[str, tuple[str, tuple[str, ...]]] = {
    "emqx key without url": ('[emqx]\napi_key = "k"',
        ('emqx.api_key = "k" (gateway.toml:2)', "without emqx.url", "no EMQX would be asked")),
    "emqx url without secret": ('[emqx]\nurl = "http://127.0.0.1:18083"\napi_key = "k"',
        ('emqx.url = "http://127.0.0.1:18083" (gateway.toml:2)', "without emqx.api_secret", "api_key.bootstrap_file")),
    "emqx tls without https": (
        '[emqx]\nurl = "http://127.0.0.1:18083"\napi_key = "k"\napi_secret = "s"\n[emqx.tls]\nca_file = "x"',
        ("emqx.tls (gateway.toml:5)", "emqx.url", "no https://", "nothing would be encrypted"),
    ),
    "emqx key file without certificate": (_EMQX + '[emqx.tls]\nkey_file = "k"',
        ('emqx.tls.key_file = "k" (gateway.toml:6)', "emqx.tls.certificate_file", "identifies nobody")),
    "emqx is asked again before it has answered": ('[emqx]\ninterval = "2s"',
        ("emqx.timeout = 5s (default)", "longer than emqx.interval = 2s", "next question")),
    "canary without a route": (_CANARY + _OTHER, ("canary.enabled = true (gateway.toml:2)",
        "no route takes 'canary/gateway'", 'canary.topic = "canary/${instance}" (default)',
        'filters = ["canary/gateway"]')),
    "canary beside a wildcard that leaves $ topics alone": (_CANARY + 'topic = "$canary"\n' + _route('["#"]'),
        ('canary.topic = "$canary"', "the broker's own")),
    "canary with a wildcard": (_CANARY + 'topic = "canary/+"\n' + _OTHER, ("canary.topic", "without wildcards")),
    "canary where the status is": (_CANARY + 'topic = "gateways/canary"\n' + _route('["#"]'),
        ("canary.topic", "no route takes that")),
    "canary with unknown placeholder": (_CANARY + 'topic = "canary/${worker}"\n' + _OTHER,
        ("canary.topic", "${worker} is unknown here")),
    "canary under the sessions' client id": (
        '[mqtt]\nclient_id = "${instance}-canary"\nsessions = 1\n' + _CANARY + _route('["canary/+"]'),
        ("mqtt.client_id", "client id of the canary (canary.enabled = true", "end one's connection"),
    ),
}  # fmt: skip

WARNED: dict[str, tuple[str, tuple[str, ...]]] = {
    "emqx key on an open link": (_EMQX.replace("https", "http"),
        ("emqx.api_secret (gateway.toml:4)", "readable", 'emqx.url = "http://emqx.example:18084" (gateway.toml:2)')),
    "unverified emqx": (_EMQX + "[emqx.tls]\nverify = false", ("emqx.tls.verify = false", "pretend", "ca_file")),
    "canary among telemetry": (_CANARY + _route('["devices/#", "canary/#"]', name="all"),
        ('route "all"', 'canary.topic = "canary/${instance}" (default)', "Kafka topic t", "all", "whole topic")),
    "canary in another route's topic": (_CANARY + _route('["canary/+"]', name="canary") + _OTHER,
        ('route "canary"', "Kafka topic t", "messages of other go too", "a topic of its own")),
}  # fmt: skip

SOUND: dict[str, str] = {
    "emqx over https": _EMQX,
    "emqx on this machine": _EMQX.replace("https://emqx.example", "http://127.0.0.1"),
    "canary with a route of its own": _CANARY + _route('["canary/+"]', topic="gateway-canary") + _OTHER,
    "canary with everybody's route": _CANARY + _route('["canary/#"]', topic="gateway-canary") + _OTHER,
    "canary with its one topic": _CANARY + _route('["canary/gateway"]', topic="gateway-canary") + _OTHER,
    "canary to a topic from a template": _CANARY + _route('["#"]', topic="x-${topic[0]}"),
    "canary that is off needs no route": _OTHER,
}
