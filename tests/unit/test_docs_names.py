"""What the pages name exists: metrics, settings, events and other words of the code, commands given in a sentence.

The pages that are made from the code (configuration, metrics) and that of the log's lines have tests of their own."""

import re
import shlex
from pathlib import Path

import pytest

from config.schema import find
from config.settings import Settings
from tests.monitoring import known_series
from tests.unit.test_docs_blocks import parser

ROOT = Path(__file__).parents[2]
MADE = {"configuration.md", "metrics.md", "logs.md"}
PAGES = [
    *(ROOT / name for name in ("README.md", "README.zh-CN.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in MADE),
]
TABLES = set(Settings.model_fields)
EMQX = {
    "mqtt.max_inflight", "mqtt.max_mqueue_len", "mqtt.max_packet_size", "mqtt.retry_interval",
    "mqtt.session_expiry_interval", "mqtt.shared_subscription_strategy",
    "emqx_authentication_failure", "password_hash_algorithm", "proxy_protocol", "verify_claims",
}  # fmt: skip
EVENTS = {"gateway_after", "gateway_back", "gateway_lost", "gateway_stalled"}  # of the job devices, and a setting
KAFKA = {"producer_byte_rate", "request_percentage"}
HEADERS = re.compile(
    r"mqtt\.(topic|qos|retain|dup|payload_format|content_type|response_topic|correlation_data|message_expiry|user\..*)"
)
FILE = re.compile(r".*\.(brokers|conf|log|md|py|sqlite3|toml|yaml|yml)")  # and one key of /status


@pytest.fixture(params=PAGES, ids=lambda page: page.name)
def text(request: pytest.FixtureRequest) -> str:
    page: Path = request.param
    return page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def words() -> set[str]:
    """Identifiers, also those in a list of words, of everything that runs or is deployed."""
    return {
        word
        for folder in ("auth", "bridge", "config", "deploy", "gateway", "requirements", "streaming", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".yml", ".yaml", ".conf", ".toml", ".txt"} and path != Path(__file__)
        for word in re.findall(r"[a-z]+(?:_[a-z0-9]+)+", path.read_text(encoding="utf-8"))
    }


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def is_setting(name: str) -> bool:
    """A table is one as well; a secret may stand in a file."""
    path = tuple(re.sub(r"\[[^]]*\]", "", name).split("."))
    return any(find(Settings, (*path[:-1], last)) for last in (path[-1], path[-1].removesuffix("_file")))


def test_metrics_exist(text: str) -> None:
    named = set(re.findall(r"\bgateway_[a-z0-9_]*[a-z0-9]\b", text)) - EVENTS
    assert named - known_series().keys() == set()


def test_settings_exist(text: str) -> None:
    named = {re.split(r"[ =]", word)[0] for word in quoted(text) if re.match(r"[a-z_]+(\[\])?(\.[a-z_]+)+", word)}
    named = {word for word in named if re.split(r"[.\[]", word)[0] in TABLES}
    assert {one for one in named - EMQX if not (is_setting(one) or HEADERS.match(one) or FILE.match(one))} == set()


def test_words_of_the_code_exist(text: str, words: set[str]) -> None:
    """Log lines, fields, check names, options: each is somewhere in the sources."""
    assert {one for one in quoted(text) if re.fullmatch(r"[a-z]+(?:_[a-z0-9]+)+", one)} - words - EMQX - KAFKA == set()


# What a sentence may leave out of a command.
_SHORTENED = re.compile("arguments are required|name one of|expected one argument|invalid choice: '[A-Z]+'")


def test_commands_in_a_sentence_are_taken(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused = []
    for command in re.findall(r"`(gateway [^`]+)`", re.sub(r"\s+", " ", text)):
        if re.search("[|…>]", command):
            continue
        try:
            parser().parse_args(["1" if word == "N" else word for word in shlex.split(command)[1:]])
        except SystemExit as end:
            said = capsys.readouterr().err
            if end.code and not _SHORTENED.search(said):
                refused.append(f"{command}: {said}")
    assert not refused
