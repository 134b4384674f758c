"""docs/kafka.md: its list of commands is whole."""

import re
from pathlib import Path

from gateway.cli.kafka import cluster, groups, leaders, topics
from gateway.cli.parser import Parser

TEXT = (Path(__file__).parents[2] / "docs/kafka.md").read_text()
LISTED = re.findall(r"^    gateway (\w+) (.+)$", TEXT, re.MULTILINE)


def test_the_list_of_commands_is_whole() -> None:
    listed = {(group, one.split()[0]) for group, many in LISTED for one in many.split("|")}
    assert listed == {
        ("cluster", "describe"), ("groups", "list"), ("groups", "describe"), ("leaders", "show"), ("leaders", "elect"),
        ("topics", "list"), ("topics", "describe"), ("topics", "plan"), ("topics", "apply"), ("topics", "delete"),
    }  # fmt: skip
    parser = Parser()
    commands = parser.add_commands()
    for module in (cluster, groups, leaders, topics):
        module.add_parser(commands)
    named = {("topics", "describe"), ("topics", "delete"), ("groups", "describe")}
    for words in listed:
        name = ["t"] if words in named else []
        assert callable(parser.parse_args([*words, *name, "--json", "--config", "f"]).run)
