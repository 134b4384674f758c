"""Files whose settings of commands contradict each other, or deserve a look, and what is said of them."""

_SECRET = f'secret = "{"s" * 32}"\n'


def _route(*lines: str, name: str = "answers", filters: str = '["devices/+/res/#"]', topic: str = "answers") -> str:
    table = ["[[routes]]", f'name = "{name}"', f"filters = {filters}", f'topic = "{topic}"']
    return "\n".join([*table, *lines, ""])


def _commands(*lines: str, name: str = "switches", status_topic: str = "command-status") -> str:
    table = ["[[commands]]", f'name = "{name}"', 'topics = ["commands"]', f'status_topic = "{status_topic}"']
    return "\n".join([*table, *lines, ""])


_DEVICE = 'device = "${topic[1]}"'
_HEADERS = 'metadata_headers = ["topic", "properties", "device"]'
_ANSWERS = _route(_DEVICE, _HEADERS)
_ASKED = _commands('answers = "answers"') + _SECRET

REFUSED: dict[str, tuple[str, tuple[str, ...]]] = {
    "two commands of a name": (_ANSWERS + _commands() + _commands(status_topic="other-status"),
        ("commands[1].name", "commands[0]", "give each its own")),
    "two commands of a group": (
        _ANSWERS + _commands('group = "g"') + _commands('group = "g"', name="other", status_topic="other-status"),
        ("commands[1].group", "commands[0].group", "give each its own group")),
    "statuses among commands": (_ANSWERS + _commands(status_topic="commands"),
        ("commands[0].status_topic", "commands.0.topics", "name another topic")),
    "statuses among the ledger": (_ANSWERS + _commands(status_topic="gateway-ledger"),
        ("commands[0].status_topic", "ledger.topic", "name another topic")),
    "statuses among answers": (_ANSWERS + _commands(status_topic="answers"),
        ("commands[0].status_topic", "routes[0].topic", "name another topic")),
    "dead letters among commands": ('[dead_letter]\ntopic = "commands"\n' + _ANSWERS + _commands(),
        ("commands[0].topics", "dead_letter.topic", "without end")),
    "answers of no route": (_route(name="x") + _ASKED, ("commands[0].answers", "names no route")),
    "answers of anybody": (_route(_HEADERS) + _ASKED,
        ("commands[0].answers", "routes[0].device", "answer for a device")),
    "answers in many topics": (_route(_DEVICE, _HEADERS, topic="answers-${topic[1]}") + _ASKED,
        ("commands[0].answers", "routes[0].topic", "one Kafka topic")),
    "answers without headers": (_route(_DEVICE, 'metadata_headers = ["topic"]') + _ASKED,
        ("routes[0].metadata_headers", "'properties', 'device'")),
    "answers that are not subscribed": (_route(_DEVICE, _HEADERS, filters='["plants/#"]') + _ASKED,
        ("commands[0].answers", "routes[0].filters", "answers would be lost")),
    "answers without a signature": (_ANSWERS + _commands('answers = "answers"'),
        ("commands[0].secret", "openssl rand -hex 32")),
    "a signature that can be guessed": (_ANSWERS + _commands('answers = "answers"', 'secret = "hunter2"'),
        ("commands[0].secret", "shorter than 32")),
    "an answer that nothing brings": (_ANSWERS + _commands("response_required = true"),
        ("commands[0].response_required", "name one")),
    "a delivery that nothing reports": (_ANSWERS + _commands('confirm = "delivered"'),
        ("commands[0].confirm", "nothing reports a delivery")),
    "an answer to QoS 0": (_ANSWERS + _ASKED + "qos = 0\nresponse_required = true\n",
        ("commands[0].qos", "use 1")),
    "answers over 3.1.1 without an id": ('[mqtt]\nprotocol = "3.1.1"\n' + _ANSWERS + _ASKED,
        ("commands[0].mqtt_topic", "${id}", "topic alone")),
    "commands that come back": (_route(filters='["devices/#"]') + _commands(),
        ("commands[0].mqtt_topic", "routes[0].filters", "narrow the filters")),
    "commands without a subject that come back": (_route(filters='["devices/+/req"]') + _commands(),
        ("commands[0].mqtt_topic", "routes[0].filters", "narrow the filters")),
}  # fmt: skip

WARNED: dict[str, tuple[str, tuple[str, ...]]] = {
    "several commands under way": (_ANSWERS + _commands("in_flight = 3"),
        ("commands[0].in_flight", "another order")),
    "commands that cannot fail": ('[mqtt]\nprotocol = "3.1.1"\n' + _commands('when_offline = "fail"'),
        ("commands[0].when_offline", "no effect", "mqtt.protocol", "counts as sent")),
}  # fmt: skip

SOUND: dict[str, str] = {"commands without answers": _ANSWERS + _commands(), "commands with answers": _ANSWERS + _ASKED}
