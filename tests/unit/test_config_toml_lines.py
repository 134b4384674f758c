"""Every key of a TOML file is found on its line, whatever stands in the values around it."""

import tomllib
from textwrap import dedent
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from config.loading.toml_lines import line_numbers
from config.wording import as_toml


def test_keys_tables_and_items_stand_on_their_lines() -> None:
    text = dedent('''\
        # a comment with key = "value"
        top = 1  # and [one] behind

        text = """
        [not.a.table]
        key = 1
        """ # three "quotes"
        quotes = """a""b"""""
        literal = \'\'\'
        it's = 'x' [y]
        \'\'\'
        array = [
          "one # no comment",  # one
          { inner = "]" },
        ]
        dotted . "quoted.part" = 'a\\b'
        [mqtt.tls]
        ca_file="x"
        [[ routes ]]  # first
        name = "a"
        [routes.headers]
        x = "y"
        [[routes]]
        name = "b"
        [[routes.inner]]
        z = 1
        [[routes.inner]]
        z = 2
        ["odd \\u00e9"]
        last = true''')
    tomllib.loads(text)
    lines = text.split("\n")
    found = line_numbers(text)
    at = {path: lines[number - 1].strip() for path, number in found.items()}
    assert at == {
        ("top",): "top = 1  # and [one] behind", ("text",): 'text = """', ("quotes",): 'quotes = """a""b"""""',
        ("literal",): "literal = '''", ("array",): "array = [",
        ("dotted", "quoted.part"): "dotted . \"quoted.part\" = 'a\\b'", ("mqtt", "tls"): "[mqtt.tls]",
        ("mqtt", "tls", "ca_file"): 'ca_file="x"', ("routes", 0): "[[ routes ]]  # first",
        ("routes", 0, "name"): 'name = "a"', ("routes", 0, "headers"): "[routes.headers]",
        ("routes", 0, "headers", "x"): 'x = "y"', ("routes", 1): "[[routes]]", ("routes", 1, "name"): 'name = "b"',
        ("routes", 1, "inner", 0): "[[routes.inner]]", ("routes", 1, "inner", 0, "z"): "z = 1",
        ("routes", 1, "inner", 1): "[[routes.inner]]", ("routes", 1, "inner", 1, "z"): "z = 2",
        ("odd é",): '["odd \\u00e9"]', ("odd é", "last"): "last = true",
    }  # fmt: skip


def test_line_ends_of_windows_count_once() -> None:
    assert line_numbers("a = 1\r\n\r\nb = '''\r\nx\r\n'''\r\nc = 2\r\n") == {("a",): 1, ("b",): 3, ("c",): 6}


def test_an_empty_file_has_no_keys() -> None:
    assert line_numbers("") == {}
    assert line_numbers("# nothing\n\n") == {}


_TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=12)
_SCALARS = st.booleans() | st.integers(-(1 << 40), 1 << 40) | _TEXTS
_VALUES = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3))


@given(st.dictionaries(_TEXTS, _VALUES, max_size=5), st.dictionaries(_TEXTS, _VALUES, max_size=3))
def test_any_document_has_each_key_on_the_line_it_was_written(top: dict[str, Any], below: dict[str, Any]) -> None:
    below_name = "t" + "".join(top)
    lines = [f"{as_toml(key)} = {as_toml(value)}" for key, value in top.items()]
    lines += ["", f"[{as_toml(below_name)}]  # {below_name!a}"]
    lines += [f"{as_toml(key)} = {as_toml(value)}" for key, value in below.items()]
    text = "\n".join(lines)
    assert tomllib.loads(text) == {**top, below_name: below}
    expected = {(key,): number for number, key in enumerate(top, 1)}
    expected[(below_name,)] = len(top) + 2
    expected |= {(below_name, key): number for number, key in enumerate(below, len(top) + 3)}
    assert line_numbers(text) == expected
