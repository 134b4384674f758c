"""The report of ``gateway doctor``: its end status, its order, its text, its JSON."""

import json
import re
from pathlib import Path

import pytest

from config.errors import ExitStatus
from gateway.tools.doctor.model import GROUPS, Check, Findings, Report, Severity, exit_status
from gateway.tools.doctor.text import report_text
from tests.command_line import Cli


def findings(group: str = "kafka") -> Findings:
    found = Findings(group)
    found.of("topics").ok("Two topics.")
    return found


@pytest.mark.parametrize(("statuses", "expected"), [
    ([], ExitStatus.OK),
    ([ExitStatus.FAILED], ExitStatus.FAILED),
    ([ExitStatus.UNAVAILABLE, ExitStatus.FAILED], ExitStatus.UNAVAILABLE),
    ([ExitStatus.UNAVAILABLE, ExitStatus.REFUSED], ExitStatus.REFUSED),
    ([ExitStatus.REFUSED, ExitStatus.CONFIG, ExitStatus.UNAVAILABLE], ExitStatus.CONFIG),
    ([ExitStatus.NOT_FOUND], ExitStatus.FAILED),
])  # fmt: skip
def test_the_status_is_that_of_what_makes_the_others_moot(statuses: list[ExitStatus], expected: ExitStatus) -> None:
    found = findings()
    for status in statuses:
        found.of("x").fail("It is.", "Mend it.", status=status)
    assert exit_status(found) is expected


def test_warnings_fail_only_where_that_is_wanted() -> None:
    found = findings()
    assert exit_status(found, strict=True) is ExitStatus.OK
    found.of("y").skip("Not tried.")
    assert exit_status(found, strict=True) is ExitStatus.OK, "what is skipped is no warning"
    found.of("x").warn("Perhaps.", "Look.")
    assert exit_status(found) is ExitStatus.OK
    assert exit_status(found, strict=True) is ExitStatus.FAILED


def shown(found: Findings, width: int = 80) -> list[str]:
    return report_text(Report(tuple(found), 1.25), width, lambda severity: severity.value).splitlines()


def test_the_text_has_fixes_under_what_needs_them_and_the_worst_at_its_end() -> None:
    found = findings()
    found.of("replicas").warn("One is behind.", "Look at broker 2.")
    found.of("login", "broker 2 (b:9092)").fail("It is frozen.", "Restart it.")
    lines = shown(found)
    assert lines[0] == GROUPS["kafka"]
    at = next(number for number, line in enumerate(lines) if "It is frozen." in line)
    assert lines[at - 1].strip() == "broker 2 (b:9092)"
    assert lines[at].split()[:2] == ["FAIL", "login"]
    assert lines[at + 1].strip() == "fix:  Restart it."
    end = lines[-3:]
    assert "1 FAIL, 1 warn, 1 ok, in 1.2 s" in end[0]
    assert end[1].split()[0] == "FAIL"
    assert "broker 2 (b:9092): login. It is frozen." in end[1]
    assert end[2].split()[0] == "warn"


def test_a_quiet_report_ends_with_one_line() -> None:
    assert shown(findings())[-1] == "Nothing is wrong: 1 ok, in 1.2 s."
    skipped = Findings("emqx")
    skipped.of("api").skip("emqx.url is not set.")
    assert shown(skipped)[-1] == "Nothing was judged: 1 skipped, in 1.2 s."


def test_what_is_skipped_for_one_reason_is_one_line() -> None:
    found = findings()
    for name in ("a", "b", "c"):
        found.of(name).skip("Not tried: nobody is there (tcp).")
    (line,) = (line for line in shown(found) if "Not tried" in line)
    assert "a, b, c: Not tried" in line


def test_lines_keep_to_the_width_and_to_printable_letters() -> None:
    found = findings()
    found.of("login", "broker 1").fail("word " * 100 + "\x1b[31mred\n", "word " * 50)
    for line in shown(found, 72):
        assert len(line) <= 72
        assert line.isprintable()


def test_colour_is_an_addition() -> None:
    found = findings()
    found.of("login").fail("It is frozen.", "Restart it.")
    plain = shown(found)
    coloured = report_text(Report(tuple(found), 1.25), 80, lambda severity: f"\x1b[1m{severity.value}\x1b[0m")
    assert coloured.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines() == plain


def test_a_check_as_json_has_the_same_fields_always() -> None:
    check = Check(group="kafka", name="login", severity=Severity.OK, text="It does.")
    assert check.as_dict() == {
        "group": "kafka", "name": "login", "about": None, "severity": "ok", "text": "It does.", "fix": None,
        "facts": {},
    }  # fmt: skip


def test_settings_that_do_not_load_leave_no_ground_for_the_rest(tmp_path: Path, cli: Cli) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text('[mqtt]\naddresses = ["mqtt://x"]\nsesions = 3\n[kafka]\nbatch_bytes = -1\n')
    report = json.loads(cli("doctor", "--config", str(config), "--json", status=78).out)
    assert report["status"] == 78
    failed = [check for check in report["checks"] if check["severity"] == "FAIL"]
    assert len(failed) == 2, "every problem of the file, each with a fix"
    skipped = {check["group"] for check in report["checks"] if check["severity"] == "skipped"}
    assert skipped == set(GROUPS) - {"config"}
    assert "Not tried: the settings cannot be used (settings)." in cli("doctor", "--config", str(config), status=78).out


@pytest.mark.parametrize(
    "words",
    [["--device-user", "d"], ["--device-password-file", "p"], ["--device-user", "d", "--device-password-file", "/no"]],
)
def test_half_of_a_device_is_a_wrong_use(words: list[str], cli: Cli) -> None:
    assert "--device-password-file" in cli("doctor", *words, status=2).err


def test_the_help_says_what_it_does_not_touch(cli: Cli) -> None:
    text = " ".join(cli("doctor", "--help").out.split())
    assert "changes nothing" in text
    assert all(name in text for name in GROUPS)


def test_every_check_is_in_the_documentation() -> None:
    """By its name in the sources, under the heading of its group or of another."""
    root = Path(__file__).parents[2]
    sources = "".join(path.read_text() for path in (root / "gateway/tools/doctor").glob("*.py"))
    names = set(re.findall(r'\.of\(\s*"([a-z_-]+)"', sources))
    assert len(names) > 50, "they are found"
    documented = set(re.findall(r"`([a-z_-]+)`", (root / "docs/doctor.md").read_text()))
    assert not names - documented - {"all"}
