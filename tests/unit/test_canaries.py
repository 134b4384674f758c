"""No secret setting, however given and whatever is wrong with it, is found in anything that people or logs get."""

import json
import logging
import pickle
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from config.errors import ConfigError
from config.loading.load import Loaded, load
from config.loading.show import as_data, as_text
from config.loading.transfer import from_json, to_json
from config.schema import environment_name
from config.settings import Settings
from gateway.base.logs import configure, redact
from tests.canaries import MARK, Canary, canaries, environment_of
from tests.toml_text import to_toml

pytestmark = pytest.mark.usefixtures("elsewhere")

ALL = canaries()
KNOWN = {
    "mqtt.password", "mqtt.token.value", "mqtt.token.oauth.client_secret", "mqtt.tls.key_password",
    "mqtt.proxy.password", "mqtt.websocket_headers", "kafka.sasl.password", "kafka.sasl.token.oauth.parameters",
    "interceptors[0].secret", "auth.shared_secret", "auth.jwt.keys[0].secret",
}  # fmt: skip


def assert_silent(*told: object) -> None:
    for text in map(str, told):
        assert MARK not in text


def assert_error_silent(error: BaseException) -> None:
    """Neither the error nor what it is chained to tells, as a traceback, a repr or fields of a log."""
    assert_silent("".join(traceback.format_exception(error)), repr(error), error.args, error.__dict__)


def value_at(settings: object, path: Any) -> Any:
    for step in path:
        settings = settings[step] if isinstance(step, int) else getattr(settings, step)  # type: ignore[index]
    return settings


def test_the_walk_finds_secrets_of_every_kind() -> None:
    assert {str(canary) for canary in ALL} >= KNOWN


def given(canary: Canary, way: str, folder: Path) -> tuple[Path | None, Mapping[str, str]]:
    """A configuration file and an environment that give the secret in one of the ways there are."""
    secret = canary.field.kind == "secret"
    if way == "file":
        (folder / "canary.toml").write_text(to_toml(canary.tables()))
        return folder / "canary.toml", {}
    environ = environment_of(canary)
    if way == "environment" or any(isinstance(step, int) for step in canary.path) or not secret:
        return None, environ
    del environ[environment_name(canary.path)]
    file = folder / "__".join(map(str, canary.path))
    file.write_text(f"{canary.text}\n")
    if way == "secret file":
        return None, environ | {f"{environment_name(canary.path)}_FILE": str(file)}
    return None, environ | {"GATEWAY_SECRETS_DIR": str(folder)}


@pytest.mark.parametrize("way", ["file", "environment", "secret file", "secrets directory"])
@pytest.mark.parametrize("canary", ALL, ids=str)
def test_nothing_tells_a_secret(canary: Canary, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, environ = given(canary, way, tmp_path)
    try:
        loaded = load(path, environ=environ)
    except ConfigError as error:  # alone, a secret may lack what belongs to it: that is said, and nothing more
        assert_error_silent(error)
        settings = Settings(**canary.tables())
        loaded = Loaded(settings, {}, (), None)
    found = value_at(loaded.settings, canary.path)
    shown = found["x-canary"] if canary.field.kind == "map" else found.get_secret_value()
    assert shown == canary.text, "the secret did not arrive, so that nothing is shown by this test"
    settings = loaded.settings
    parent = value_at(settings, canary.path[:-1])
    assert_silent(loaded, repr(loaded), settings, repr(settings), repr(parent), f"{parent}", [parent], {"k": parent})
    assert_silent(as_text(loaded), json.dumps(as_data(loaded)), loaded.warnings, loaded.provenance)
    assert_silent(redact(settings), redact({"settings": settings, "secret": shown}))
    if canary.field.kind == "secret":
        assert_silent(redact([found]), repr([found]), str(found))
    undo = configure(settings.log.model_copy(update={"level": "debug", "format": "json"}))
    try:
        logging.getLogger("test").debug("%s %r", settings, parent)
        logging.getLogger("aiokafka").error("%s", loaded)
    finally:
        undo()
    assert_silent(*capsys.readouterr())
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert value_at(from_json(to_json(settings)), canary.path) == found


@pytest.mark.parametrize("wrong", ["list", "table", "number and text", "list in a list"])
@pytest.mark.parametrize("canary", ALL, ids=str)
def test_a_secret_of_the_wrong_kind_is_not_quoted(canary: Canary, wrong: str, tmp_path: Path) -> None:
    value: Any = {
        "list": [canary.text],
        "table": {"value": [canary.text]},
        "number and text": [1, canary.text],
        "list in a list": [[canary.text]],
    }[wrong]
    (tmp_path / "canary.toml").write_text(to_toml(canary.tables(value)))
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "canary.toml", environ={})
    assert_error_silent(caught.value)


@pytest.mark.parametrize("canary", [one for one in ALL if one.field.kind == "secret"], ids=str)
def test_a_secret_given_twice_or_under_a_wrong_name_is_not_quoted(canary: Canary, tmp_path: Path) -> None:
    name = str(canary.path[-1])
    tables = canary.tables()
    parent: Any = tables
    for step in canary.path[:-1]:
        parent = parent[step]
    for extra in ({f"{name}_file": canary.text}, {f"{name[:-1]}": canary.text}, {f"{name}x": [canary.text]}):
        for keep in (True, False):
            parent.clear()
            parent.update({name: canary.text} if keep else {}, **extra)
            (tmp_path / "canary.toml").write_text(to_toml(tables))
            with pytest.raises(ConfigError) as caught:
                load(tmp_path / "canary.toml", environ={})
            assert_error_silent(caught.value)
