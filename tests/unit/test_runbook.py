"""docs/runbook.md has an entry for each alert and each problem, no other, and speaks of what exists."""

import ast
import functools
import re

from tests.monitoring import ROOT, RULE_FILES, read_yaml, rules

TEXT = (ROOT / "docs" / "runbook.md").read_text()
ENTRIES: dict[str, str] = {
    part.partition("\n")[0]: part.partition("\n")[2].partition("\n## ")[0] for part in TEXT.split("\n### ")[1:]
}
SOURCES = [
    path for folder in ("bridge", "gateway", "auth", "streaming") for path in sorted((ROOT / folder).rglob("*.py"))
]


@functools.cache
def problems_of_sources() -> set[tuple[str, str]]:
    """Of every ``Problem(…)`` in the sources the id, and the severity where it is written out, else none."""
    found = set()
    for path in SOURCES:
        text = path.read_text()
        if "Problem(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Problem":
                assert node.args, f"{path.name}:{node.lineno}: a problem's id stands first"
                assert isinstance(node.args[0], ast.Constant), (
                    f"{path.name}:{node.lineno}: a problem's id is written out"
                )
                severity = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
                found.add((str(node.args[0].value), str(severity)))
    return found


def problem_ids() -> set[str]:
    return {name for name, _ in problems_of_sources()}


def test_every_alert_and_every_problem_has_an_entry_and_nothing_else_has() -> None:
    assert len(problem_ids()) > 20
    anchors = {rule["annotations"]["runbook_url"].partition("#")[2] for rule in rules("alert")}
    assert problem_ids() | anchors == ENTRIES.keys()


# Alerts on the gateway's own series that are no problem of the status page, and why.
_NOT_ON_THE_PAGE = {
    "watchdog": "fires always",
    "down": "who does not answer shows no page",
    "missing": "as down",
    "not-running": "the page and doctor say not ready, with the reason",
    "slots-retiring": "the page has the slots, and the problems of their workers",
    "unclean-shutdown": "information",
    "partitions-unused": "information",
    "traffic-stopped": "needs what was a day and a week ago",
    "availability-budget-burns": "canary-failing says it while it is so",
    "commands-undeliverable": "outcomes of single commands, which their statuses tell",
    "commands-overdue": "how long a command may take is the sender's business",
}


def test_every_problem_has_an_alert_of_its_name_and_severity() -> None:
    """On the gateway's own series: whoever does not scrape EMQX or Kafka is told as well. A problem that shall have
    none is left out here, with the reason."""
    alerts = {
        (rule["annotations"]["runbook_url"].partition("#")[2], rule["labels"]["severity"])
        for rule in rules("alert")
        if rule["alert"].startswith("Gateway")
    }
    names = {name for name, _ in alerts}
    missing = {one for one in problems_of_sources() if one not in alerts and (one[1] or one[0] not in names)}
    assert missing == {("mqtt-disconnected", "warning")}, "the page shows it earlier than anybody is to be woken for it"


def test_rules_ask_for_problems_that_exist() -> None:
    for rule in rules("alert"):
        for selector in re.findall(r"gateway_problems\{[^}]*}", rule["expr"]):
            asked = dict(re.findall(r'(\w+)="([^"]*)"', selector))
            severities = {severity for name, severity in problems_of_sources() if name == asked["problem"]}
            assert severities, f"{rule['alert']}: no problem {asked['problem']}"
            assert asked.get("severity", "") in severities | {""} or "" in severities, rule["alert"]


def test_page_and_doctor_have_a_name_for_each_alert_on_a_worker() -> None:
    """ "All is well" is never said while one fires: what they have no problem for is listed here, with the reason."""
    files = ("gateway", "gateway-mqtt", "gateway-kafka", "gateway-account", "gateway-slo", "gateway-commands")
    own = {
        rule["annotations"]["runbook_url"].partition("#")[2]
        for file in RULE_FILES
        if file.stem in files
        for group in read_yaml(file)["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    assert own - problem_ids() - _NOT_ON_THE_PAGE.keys() == set()
    assert _NOT_ON_THE_PAGE.keys() <= own - problem_ids()


def test_an_entry_says_what_it_means_what_to_look_at_and_what_to_do() -> None:
    """What must not be done is said at the top of the page for all entries; an entry adds its own."""
    for entry, body in ENTRIES.items():
        assert re.match(r"\n[A-Z`]", body), f"{entry}: what it means comes first"
        for heading in ("- **Causes:** ", "- **Look:** ", "- **Do:** "):
            assert body.count(heading) == 1, f"{entry} has no {heading}"
        assert body.count("- **Do not** ") <= 1, entry
