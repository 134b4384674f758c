"""What a running gateway can take of changed settings: every setting has its place, and differences are told."""

from pathlib import Path
from typing import Any

import pytest

from config.errors import ConfigError
from config.loading.live import Change, changes, only_live
from config.loading.load import Loaded, load
from config.schema import dotted, walk
from config.settings import Settings
from gateway.base.reload_plan import Wish, plan_reload

BASE = """
instance = "plant-7"
[mqtt]
username = "gateway"
password = "hunter2"
[kafka]
security = "SASL_PLAINTEXT"
[kafka.sasl]
mechanism = "PLAIN"
username = "gateway"
password = "swordfish"
[flow]
linger_max = "20ms"
[[routes]]
name = "a"
filters = ["a/#"]
topic = "a"
[[routes]]
name = "b"
filters = ["b/#"]
topic = "b"
"""


def read(tmp_path: Path, text: str) -> Loaded:
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    return load(file, environ={})


def differences(tmp_path: Path, *edits: tuple[str, str]) -> list[Change]:
    before = read(tmp_path, BASE).settings
    text = BASE
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    after = read(tmp_path, text)
    return changes(before, after.settings, after.provenance)


@pytest.mark.parametrize(("edit", "path", "before", "after", "effect"), [
    (('linger_max = "20ms"', 'linger_max = "50ms"'), "flow.linger_max", '"20ms"', '"50ms"', "live"),
    (('topic = "a"', 'topic = "a"\nkey = ""'), "routes[a].key", '"${topic}"', '""', "live"),
    (('name = "b"', 'name = "c"'), "routes[b]", "there", None, "live"),
    (('password = "hunter2"', 'password = "other"'), "mqtt.password", "********", "********", "live"),
    (('password = "hunter2"\n', ""), "mqtt.password", "********", None, "live"),
    (('password = "swordfish"', 'password = "eel"'), "kafka.sasl.password", "********", "********", "live"),
    (("[flow]", '[log]\nlevel = "debug"\n[flow]'), "log.level", '"info"', '"debug"', "live"),
    (('"plant-7"', '"plant-8"'), "instance", '"plant-7"', '"plant-8"', "restart"),
    (("[mqtt]", "[mqtt]\nsessions = 2"), "mqtt.sessions", "4", "2", "restart"),
    (("[flow]", '[spool]\nafter = "2s"\n[flow]'), "spool.after", '"1s"', '"2s"', "live"),
    (("[flow]", '[spool]\nafter = "0s"\n[flow]'), "spool.after", '"1s"', '"0s"', "restart"),
    (("[flow]", '[stream]\nmaster = "local[4]"\n[flow]'), "stream.master", '"local[2]"', '"local[4]"', "other"),
    (("[flow]", "[kafka.topics]\npartitions = 4\n[flow]"), "kafka.topics.partitions", None, "4", "live"),
])  # fmt: skip
def test_a_difference(
    tmp_path: Path, edit: tuple[str, str], path: str, before: str | None, after: str | None, effect: str
) -> None:
    found = {change.path: change for change in differences(tmp_path, edit)}
    change = found[path]
    assert change.effect == effect
    assert change.after == after
    if path != "kafka.topics.partitions":
        assert change.before == before
    for one in found.values():
        for secret in ("hunter2", "swordfish", "other", "eel"):
            assert secret not in str(one)
    if after is not None:
        assert "gateway.toml:" in str(change)


def test_a_secret_that_moves_to_another_file_is_read_from_there(tmp_path: Path) -> None:
    """Or the gateway would go on with the former file, which nobody renews."""
    for name in ("old", "new"):
        (tmp_path / name).write_text("hunter2")
    before, after = (
        read(tmp_path, BASE.replace('password = "hunter2"', f'password_file = "{tmp_path / name}"'))
        for name in ("old", "new")
    )
    (change,) = changes(before.settings, after.settings, after.provenance)
    assert (change.path, change.effect) == ("mqtt.password", "live")
    password: Any = only_live(before.settings, after.settings).mqtt.password
    assert password.file == tmp_path / "new"


def test_secrets_are_changed_and_no_more(tmp_path: Path) -> None:
    (change,) = differences(tmp_path, ('"hunter2"', '"other"'))
    assert str(change).startswith("mqtt.password: changed (")


def test_another_order_and_nothing_at_all(tmp_path: Path) -> None:
    a, b = BASE.split("[[routes]]")[1:]
    (change,) = differences(tmp_path, (f"[[routes]]{a}[[routes]]{b}", f"[[routes]]{b}[[routes]]{a}"))
    assert (change.path, change.before, change.after) == ("routes, order", "a b", "b a")
    assert differences(tmp_path) == []


def test_all_or_nothing_or_a_part(tmp_path: Path) -> None:
    now = read(tmp_path, BASE).settings
    text = BASE.replace('"20ms"', '"50ms"').replace("[mqtt]", '[mqtt]\nkeepalive = "40s"')
    loaded = read(tmp_path, text)
    with pytest.raises(ConfigError, match=r"Nothing was changed: mqtt\.keepalive cannot change"):
        plan_reload(now, loaded, Wish())
    plan = plan_reload(now, loaded, Wish(partial=True))
    assert plan.settings.flow.linger_max != now.flow.linger_max
    assert plan.settings.mqtt.keepalive == now.mqtt.keepalive
    assert [change.path for change in plan.waiting] == ["mqtt.keepalive"]
    assert plan_reload(now, read(tmp_path, BASE.replace('"20ms"', '"50ms"')), Wish()).waiting == ()


@pytest.mark.parametrize(("before", "after", "wanted"), [
    ("", "http.port = 1", "a stop and a start"), ("", 'http.tls.certificate_file = "c"', "a stop and a start"),
    ("workers = 2", "workers = 3", "`gateway restart --reload`"), ("workers = 2", "workers = 0", "a stop and a start"),
    ("workers = 0", "workers = 0\nmqtt.keepalive = 40", "a stop and a start"),
])  # fmt: skip
def test_the_restart_that_is_named_takes_the_change(tmp_path: Path, before: str, after: str, wanted: str) -> None:
    """A supervisor keeps its port and its name; without one, nobody replaces the worker."""
    with pytest.raises(ConfigError, match=f"That takes {wanted}"):
        plan_reload(read(tmp_path, before).settings, read(tmp_path, after), Wish())


def test_topics_that_commands_use_wait_for_a_restart(tmp_path: Path) -> None:
    """Running commands read answers, and bury records, where they did at their start: answers elsewhere would be
    lost."""
    text = """
[dead_letter]
topic = "bad"
[[routes]]
name = "answers"
filters = ["devices/+/res/#"]
topic = "answers"
device = "${topic[1]}"
metadata_headers = ["topic", "properties", "device"]
[[routes]]
name = "a"
filters = ["a/#"]
topic = "a"
[[commands]]
name = "switches"
topics = ["commands"]
status_topic = "statuses"
answers = "answers"
secret = "0123456789abcdef0123456789abcdef"
"""
    now = read(tmp_path, text).settings
    edits = {'topic = "bad"': 'topic = "worse"', 'topic = "answers"': 'topic = "replies"', 'topic = "a"': 'topic = "b"'}
    for old, new in edits.items():
        text = text.replace(old, new, 1)
    loaded = read(tmp_path, text)
    plan = plan_reload(now, loaded, Wish(partial=True))
    assert [change.path for change in plan.waiting] == ["routes[answers].topic", "dead_letter.topic"]
    assert [change.path for change in changes(now, plan.settings, loaded.provenance)] == ["routes[a].topic"]


def test_a_part_that_does_not_go_together_is_refused(tmp_path: Path) -> None:
    """Windows that fit the new memory only with fewer sessions, which need a restart."""
    now = read(tmp_path, BASE).settings
    text = BASE.replace("[flow]", '[flow]\nmemory_bytes = "2MiB"').replace("[mqtt]", "[mqtt]\nsessions = 1")
    with pytest.raises(ConfigError, match=r"flow\.memory_bytes"):
        plan_reload(now, read(tmp_path, text), Wish(partial=True))


def test_what_is_merged_differs_in_nothing_that_needs_a_restart(tmp_path: Path) -> None:
    now = read(tmp_path, BASE).settings
    text = BASE.replace('"plant-7"', '"plant-8"').replace('"20ms"', '"50ms"').replace('"swordfish"', '"eel"')
    loaded = read(tmp_path, text)
    merged = only_live(now, loaded.settings)
    found = {change.path: change.effect for change in changes(now, merged, loaded.provenance)}
    assert found == {"flow.linger_max": "live", "kafka.sasl.password": "live"}


def test_the_documents_name_what_is_live() -> None:
    """docs/reload.md and the command's help speak of paths that exist."""
    from config.loading.live import LIVE, OTHER

    paths = {dotted(path) for path, _ in walk(Settings)}
    assert set(LIVE) | set(OTHER) <= paths


def test_settings_of_another_kind_do_not_confuse(tmp_path: Path) -> None:
    """A table that appears or goes is one difference."""
    removed: list[Any] = [
        change.path
        for change in differences(tmp_path, (BASE[BASE.index("[kafka]") : BASE.index("[flow]")], ""))
    ]  # fmt: skip
    assert removed == ["kafka.security", "kafka.sasl"]
