"""Interceptors are found by name, told their options, and put in order; what cannot be had ends the start."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tomllib
import types
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from bridge.intercept.loading import BUILT_IN, GROUP, load_chains
from bridge.interceptors import Chains, Context, Drop, Interceptor
from bridge.message import MessageView
from bridge.record import Record
from config.errors import ConfigError
from config.extras import how_to_install
from config.loading.load import load
from config.loading.show import as_data, as_text
from config.loading.transfer import from_json, to_json
from config.settings import Settings
from config.values.model import Table
from tests.command_line import Cli

ROOT = Path(__file__).parents[2]
HERE = __name__


class Noted(Interceptor):
    """Remembers what it was told. Without Options it gets a mapping."""

    made: list[Noted] = []  # noqa: RUF012 - tests look here for what settings made

    def __init__(self) -> None:
        self.made.append(self)
        self.closed = False

    def configure(self, options: Any, context: Context) -> None:
        self.options = options
        self.context = context

    def on_send(self, record: Record) -> Record:
        return record

    def close(self) -> None:
        self.closed = True


class Bare:
    """The least there is: no base class, nothing but on_send."""

    def on_send(self, record: Record) -> Record:
        return record


class Picky(Noted):
    class Options(Table):
        level: int
        texts: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it

    def configure(self, options: Options, context: Context) -> None:
        super().configure(options, context)
        if options.level == 13:
            raise ValueError("level: 13 brings bad luck")
        if options.level == 14:
            raise RuntimeError("broken inside")


class Unmodelled(Noted):
    Options = dict


class Unmade:
    def __init__(self) -> None:
        raise OSError("no such device")

    def on_send(self, record: Record) -> Record:
        raise NotImplementedError


NOT_CALLABLE = 7


@pytest.fixture(autouse=True)
def _forget() -> None:
    Noted.made.clear()


def chains(*own: dict[str, Any], everywhere: tuple[dict[str, Any], ...] = (), **route: Any) -> Chains:
    routes = [{"name": "r", "filters": ["d/#"], "topic": "t", "interceptors": own, **route}]
    return load_chains(Settings.model_validate({"instance": "gw", "interceptors": everywhere, "routes": routes}))


def refused(*own: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        chains(*own)
    assert caught.value.exit_status == 78
    return str(caught.value)


def test_those_for_all_routes_come_first_and_each_route_has_its_own() -> None:
    one = {"use": "headers", "remove": ["a"]}
    routes = [
        {"name": "x", "filters": ["x/#"], "topic": "t", "interceptors": [{**one, "name": "own"}]},
        {"name": "y", "filters": ["y/#"], "topic": "t"},
    ]
    everywhere = [{**one, "name": "first"}, {"use": f"{HERE}:Noted", "name": "second"}]
    made = load_chains(Settings.model_validate({"interceptors": everywhere, "routes": routes}))
    assert {chain.route: [stage.label for stage in chain.stages] for chain in made} == {
        "x": ["first", "second", "own"],
        "y": ["first", "second"],
    }
    assert [noted.context.route for noted in Noted.made] == ["x", "y"]


def test_routes_without_interceptors_have_no_chain() -> None:
    assert list(chains()) == []
    assert chains().get("r") is None


def test_a_plug_in_gets_its_options_and_knows_its_place() -> None:
    made = chains(
        {"use": f"{HERE}:Noted", "name": "mine", "answer": 42, "deep": {"er": [1]}, "secret": "s"}, device="${topic[1]}"
    )
    (noted,) = Noted.made
    assert noted.options["answer"] == 42
    assert noted.options["deep"] == {"er": [1]}
    assert noted.options["secret"].get_secret_value() == "s"
    assert (noted.context.route, noted.context.instance, noted.context.name) == ("r", "gw", "mine")
    assert noted.context.template("${device}@${instance}").render(MessageView("d/7/x")) == b"7@gw"
    made.close()
    assert noted.closed


def test_the_shape_counts_not_the_ancestry() -> None:
    (chain,) = chains({"use": f"{HERE}:Bare"})
    assert chain.acknowledging == ()
    chains({"use": f"{HERE}:Bare"}).close()


def test_a_model_of_options_is_filled_and_checked() -> None:
    chains({"use": f"{HERE}:Picky", "level": "3"})
    assert Noted.made[0].options.level == 3
    assert "Options are no pydantic model" in refused({"use": f"{HERE}:Unmodelled"})
    assert "level: is required and not given" in refused({"use": f"{HERE}:Picky"})
    assert "did you mean 'level'?" in refused({"use": f"{HERE}:Picky", "level": 1, "lavel": 2})
    assert "did you mean 'on_error'?" in refused({"use": f"{HERE}:Picky", "level": 1, "on_eror": "drop"})
    assert "it knows level, texts, use, name, on_error, secret" in refused(
        {"use": f"{HERE}:Picky", "level": 1, "zzz": 2}
    )
    assert "interceptors[0] (" in refused({"use": f"{HERE}:Picky", "level": "x"})
    assert "level: 13 brings bad luck" in refused({"use": f"{HERE}:Picky", "level": 13})
    assert "RuntimeError: broken inside" in refused({"use": f"{HERE}:Picky", "level": 14})


@pytest.mark.parametrize(("use", "says"), [
    ("filtre", "use = 'filtre' is unknown: no built-in interceptor, and no installed package offers it"),
    ("filtre", "did you mean 'filter'?"),
    ("no_such_package.module:Thing", "there is no module 'no_such_package': is its package installed here"),
    (f"{HERE}:Nothing", f"the module {HERE} has no 'Nothing'"),
    (f"{HERE}:NOT_CALLABLE", "is int; a class (or a function) is wanted"),
    ("json:JSONDecoder", "it has no method on_send"),
    (f"{HERE}:Unmade", "cannot be created: OSError: no such device"),
])  # fmt: skip
def test_what_cannot_be_had_is_told_with_its_place(use: str, says: str) -> None:
    text = refused({"use": "headers", "remove": ["a"]}, {"use": use})
    assert says in text
    assert "route 'r', routes[0].interceptors[1]" in text


def test_all_problems_are_told_at_once_and_what_was_made_is_closed() -> None:
    text = refused({"use": f"{HERE}:Noted"}, {"use": "nope"}, {"use": "filter", "expression": "("})
    assert "interceptors[1]" in text
    assert "interceptors[2]" in text
    assert Noted.made[0].closed


def test_a_module_that_lacks_something_itself_names_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "halfway.py").write_text("import a_package_nobody_has\n")
    (tmp_path / "cracked.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "no module 'a_package_nobody_has': it is needed by that module" in refused({"use": "halfway:X"})
    assert "importing cracked failed: ZeroDivisionError" in refused({"use": "cracked:X"})


def test_a_missing_optional_package_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    text = refused({"use": "json_schema", "definition": {}})
    assert how_to_install("json-schema") in text
    assert "route 'r', routes[0].interceptors[0] (json_schema)" in text


# --- entry points -----------------------------------------------------------------------------------------------------
def offer(monkeypatch: pytest.MonkeyPatch, *points: tuple[str, str]) -> None:
    offered = EntryPoints(EntryPoint(name, value, GROUP) for name, value in points)
    monkeypatch.setattr(importlib.metadata, "entry_points", offered.select)


def test_another_distribution_offers_its_own_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, ("noted", f"{HERE}:Noted"), ("other", "nowhere:X"))
    chains({"use": "noted"})
    assert len(Noted.made) == 1
    assert "known are age_out" in (text := refused({"use": "note"}))
    assert "did you mean 'noted'?" in text
    assert "there is no module 'nowhere'" in refused({"use": "other"})


def test_a_name_that_two_offer_is_refused_and_built_in_ones_stay_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, ("twice", f"{HERE}:Noted"), ("twice", f"{HERE}:Bare"), ("headers", f"{HERE}:Noted"))
    assert "is offered by several packages" in refused({"use": "twice"})
    chains({"use": "headers", "remove": ["a"]})
    assert not Noted.made


def test_the_built_in_ones_are_registered_like_anybody_elses() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][GROUP] == dict(BUILT_IN)


# --- from files -------------------------------------------------------------------------------------------------------
FILE = """
[[interceptors]]
use = "mask"
method = "hmac"
fields = ["device"]
secret_file = "{secret}"

[[routes]]
name = "r"
filters = ["d/#"]
topic = "t"

[[routes.interceptors]]
use = "fields"
on_error = "pass"
add = {{ site = "north", "version.major" = 2 }}

[[routes.interceptors]]
use = "json_schema"
[routes.interceptors.definition]
type = "object"
"""


def test_a_file_says_it_all_and_hides_the_secret(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("hunter2 hunter2 hunter2\n")
    file = tmp_path / "gateway.toml"
    file.write_text(FILE.format(secret=secret))
    loaded = load(file, environ={})
    (chain,) = load_chains(loaded.settings)
    assert [stage.label for stage in chain.stages] == ["mask", "fields", "json_schema"]
    assert [stage.policy for stage in chain.stages] == ["dead_letter", "pass", "dead_letter"]
    shown = as_text(loaded)
    assert "hunter2" not in shown
    assert "hunter2" not in repr(as_data(loaded))
    assert "hunter2" not in repr(loaded.settings)
    (line,) = [line for line in shown.splitlines() if "# secret = ***" in line]
    assert line.endswith(f"# secret file {secret}, named by {file}:6")
    again = tmp_path / "again.toml"
    again.write_text(shown.replace("# secret = ********", 'secret = "hunter2 hunter2 hunter2"'))
    assert load(again, environ={}).settings == loaded.settings
    there = from_json(to_json(loaded.settings))
    assert there == loaded.settings, "they reach a worker"
    assert there.routes[0].interceptors[0].options == {"add": {"site": "north", "version.major": 2}}
    assert there.interceptors[0].options["secret"].get_secret_value() == "hunter2 hunter2 hunter2"


def test_an_option_with_the_name_of_a_method_reaches_a_worker() -> None:
    options = {"copy": ["a"], "json": True, "keys": 1, "label": "x", "options": {"a": 1}, "schema": "s"}
    settings = Settings.model_validate({"interceptors": [{"use": "a:b", **options}]})
    assert from_json(to_json(settings)).interceptors[0].options == options


def test_the_environment_gives_the_whole_list_secrets_included(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("0123456789abcdef")
    text = f'[{{"use": "mask", "method": "hmac", "key": true, "secret_file": "{secret}"}}]'
    settings = load(environ={"GATEWAY_INTERCEPTORS": text}).settings
    assert settings.interceptors[0].options["secret"].get_secret_value() == "0123456789abcdef"
    with pytest.raises(ConfigError, match=r"interceptors\[0\].on_error"):
        load(environ={"GATEWAY_INTERCEPTORS": '[{"use": "mask", "on_error": "panic"}]'})
    with pytest.raises(ConfigError, match="use"):
        load(environ={"GATEWAY_INTERCEPTORS": '[{"name": "x"}]'})


def test_config_check_finds_what_only_the_interceptors_know(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        '[[routes]]\nname = "r"\nfilters = ["d/#"]\ntopic = "t"\n'
        '[[routes.interceptors]]\nuse = "filter"\nexpression = "("\n'
    )
    said = cli("config", "check", "--config", file, status=78).err
    assert "routes[0].interceptors[0] (filter), expression: '('" in said


def test_an_option_that_json_does_not_know_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('[[interceptors]]\nuse = "filter"\nsince = 2026-01-01\n')
    with pytest.raises(ConfigError, match=r"interceptors\[0\].*since: an option is text"):
        load(file, environ={})


# --- the page ---------------------------------------------------------------------------------------------------------
PAGE = (ROOT / "docs" / "interceptors.md").read_text()
EXAMPLES = [block for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if block.startswith("use =")]


def test_the_page_has_an_example_of_each_built_in_one() -> None:
    assert {tomllib.loads(example)["use"] for example in EXAMPLES} == set(BUILT_IN)


def test_the_pages_own_interceptor_works(monkeypatch: pytest.MonkeyPatch) -> None:
    source, _signatures = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    module = types.ModuleType("celsius_of_the_page")
    exec(source, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    (chain,) = chains({"use": "celsius_of_the_page:ToCelsius", "field": "t"})
    view = MessageView("d/1")
    warm = chain.run(Record(view, "t", b"k", b'{"t": 212, "u": 1}', [], 0))
    assert warm.value == b'{"t":100.0,"u":1}'
    assert isinstance(chain.run(Record(view, "t", b"k", b'{"t": -1000}', [], 0)), Drop)
