"""Verdicts of ``gateway doctor`` over this machine, the data directory, the gateway that runs there, and settings."""

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.ports import Credential
from config.errors import ExitStatus, GatewayError
from config.loading.load import load
from gateway.data_dir.identity import Ending, Identity, judge
from gateway.data_dir.meta_properties import IdentityError
from gateway.tools.doctor import config_checks
from gateway.tools.doctor.examine import LONGEST_S
from gateway.tools.doctor.host_facts import DiskFacts, HostFacts, ProcessFacts, gather
from gateway.tools.doctor.host_verdicts import judge_host
from gateway.tools.doctor.model import Check, Findings, Severity
from gateway.tools.doctor.running import RunningFacts, find, judge_running
from gateway.tools.doctor.threads import answer, call
from tests.doctor_looks import look, settings_of
from tests.kinds import there

OK, WARN, FAIL, SKIPPED = Severity.OK, Severity.WARN, Severity.FAIL, Severity.SKIPPED
GIB = 1 << 30
DISK = DiskFacts("/data", "/data", True, False, "ext4", 100 * GIB, 200 * GIB, 1_000_000, 0, 0.002)
HOST = HostFacts(DISK, "", 20_000, 2 * GIB, None, cpu_pressure=0.1)


def host(facts: HostFacts = HOST, **tables: Any) -> dict[str, Check]:
    findings = Findings("host")
    judge_host(findings, settings_of(**tables), facts, 2)
    return {check.name: check for check in findings}


def test_a_machine_that_is_well() -> None:
    assert {check.severity for check in host().values()} == {OK}


@pytest.mark.parametrize(("changes", "name", "severity", "says"), [
    ({"writable": False}, "data_dir", FAIL, "may not be written"),
    ({"read_only": True}, "data_dir", FAIL, "read-only"),
    ({"kind": "nfs4"}, "data_dir", WARN, "network file system"),
    ({"kind": "tmpfs"}, "data_dir", WARN, "in memory"),
    ({"kind": "overlay"}, "data_dir", WARN, "container"),
    ({"free": 3 * GIB}, "disk", WARN, "before the spool is"),
    ({"free": 3 * GIB, "spooled": 2 * GIB}, "disk", OK, "2.1 GiB more"),
    ({"free": 1 << 20}, "disk", FAIL, "it is full"),
    ({"free_inodes": 3}, "disk", FAIL, "inodes"),
    ({"fsync_s": 3.1}, "fsync", WARN, "3.1 s"),
    ({"fsync_s": None}, "fsync", SKIPPED, "data_dir is not there yet"),
])  # fmt: skip
def test_disks(changes: dict[str, Any], name: str, severity: Severity, says: str) -> None:
    check = host(replace(HOST, disk=replace(DISK, **changes)))[name]
    assert check.severity is severity
    assert says in check.text


def test_without_a_place_or_a_spool() -> None:
    checks = host(replace(HOST, disk=None, disk_error="Permission denied"))
    assert checks["data_dir"].severity is FAIL
    assert checks["disk"].severity is SKIPPED
    assert host(spool={"enabled": False})["disk"].severity is WARN
    assert host(spool={"enabled": False})["fsync"].severity is SKIPPED


def test_the_disk_s_writes_are_measured_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(data_dir=str(tmp_path))
    found = there(gather(settings, 1, ()).disk)
    assert 0 < found.fsync_s < 5
    assert list(tmp_path.iterdir()) == []
    moments = iter(range(100))
    monkeypatch.setattr("gateway.tools.doctor.host_facts.time.monotonic", lambda: float(next(moments)))
    slow = there(gather(settings, 1, ()).disk)
    assert slow.fsync_s == 1.0, "one write, for a second is long enough"


@pytest.mark.parametrize(("name", "changes", "severity"), [
    ("descriptors", {"descriptor_limit": 64}, FAIL),
    ("descriptors", {"descriptor_limit": 128}, WARN),
    ("descriptors", {"processes": (ProcessFacts(7, 900, 1000),)}, WARN),
    # The limit that counts is that of the running processes.
    ("descriptors", {"processes": (ProcessFacts(7, 40, 20_000),), "descriptor_limit": 64}, OK),
    ("memory", {"memory_limit": 128 << 20}, FAIL),
    ("memory", {"memory_limit": 280 << 20}, WARN),
    ("memory", {"memory_limit": None, "memory_available": GIB}, OK),
    ("memory", {"memory_limit": None, "memory_available": None}, SKIPPED),
    ("cpu", {"cpu_pressure": 0.4}, OK),
    ("cpu", {"cpu_pressure": 0.9}, WARN),
    ("cpu", {"cpu_pressure": None}, SKIPPED),
])  # fmt: skip
def test_descriptors_memory_and_cpu(name: str, changes: dict[str, Any], severity: Severity) -> None:
    assert host(replace(HOST, **changes))[name].severity is severity


def test_facts_of_a_machine_s_files(tmp_path: Path) -> None:
    """As /proc and /sys of a container have them."""
    root, data = tmp_path / "root", tmp_path / "data"
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/7/fd").mkdir(parents=True)
    (root / "sys/fs/cgroup/pod/inner").mkdir(parents=True)
    data.mkdir()
    mounts = ["1 0 8:1 / / rw - ext4 /dev/sda rw", f"2 1 0:9 / {data} rw,relatime shared:3 - nfs4 server:/x rw"]
    (root / "proc/self/mountinfo").write_text("\n".join(mounts) + "\n")
    (root / "proc/self/cgroup").write_text("0::/pod/inner\n")
    (root / "sys/fs/cgroup/pod/inner/memory.max").write_text("max\n")
    (root / "sys/fs/cgroup/pod/memory.max").write_text("1073741824\n")  # the lowest counts
    (root / "sys/fs/cgroup/memory.max").write_text("536870912\n")
    (root / "sys/fs/cgroup/memory.current").write_text("1000\n")
    (root / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:       2048 kB\n")
    (root / "proc/7/limits").write_text("Max cpu time  unlimited\nMax open files            1024    4096    files\n")
    for name in ("0", "1", "2"):
        (root / "proc/7/fd" / name).touch()
    settings = settings_of(data_dir=str(data / "not" / "yet"))
    found = gather(settings, 1, [7, 8], root)
    assert (found.disk.kind, found.disk.looked_at) == ("nfs4", str(data))
    assert found.disk.writable
    assert (found.memory_limit, found.memory_available) == (536_870_912, 2 << 20)
    assert found.processes == (ProcessFacts(7, 3, 1024), ProcessFacts(8, None, None))
    assert not (data / "not").exists(), "it was looked at, not made"


# --- the gateway that runs --------------------------------------------------------------------------


def running(status: dict[str, Any] | None, tmp_path: Path, **changes: Any) -> dict[str, Check]:
    findings = Findings("running")
    facts = RunningFacts(**{"supervisor": 10, "workers": {0: 11}, "status": status, **changes})
    judge_running(findings, facts, tmp_path)
    return {check.name: check for check in findings}


def problem(name: str, severity: str) -> dict[str, str]:
    return {"id": name, "severity": severity, "text": f"{name} it is.", "check": "Look at it."}


def test_its_own_problems_are_told_with_their_place_in_the_runbook(tmp_path: Path) -> None:
    listed = [problem("broker-silent", "critical"), problem("certificate-expires", "warning")]
    checks = running({"state": "RUNNING", "ready": True, "problems": listed, "workers": [{"up": True}]}, tmp_path)
    silent = checks["broker-silent"]
    assert (silent.severity, silent.status) == (FAIL, ExitStatus.UNAVAILABLE)
    assert "docs/runbook.md#broker-silent" in silent.fix
    assert "Look at it." in silent.fix
    assert checks["certificate-expires"].severity is WARN
    refused = running({"ready": True, "problems": [problem("acl-refused", "critical")]}, tmp_path)
    assert refused["acl-refused"].status is ExitStatus.REFUSED


def test_a_gateway_that_is_well_or_not_ready_or_without_a_worker(tmp_path: Path) -> None:
    well = running({"state": "RUNNING", "ready": True, "problems": [], "workers": [{"up": True}]}, tmp_path)
    assert {check.severity for check in well.values()} == {OK}
    not_ready = {"state": "STARTING", "ready": False, "reasons": ["No session is connected."]}
    assert "No session is connected." in running(not_ready, tmp_path)["ready"].text
    not_ready = {**not_ready, "problems": [problem("certificate-expires", "warning")]}
    assert running(not_ready, tmp_path)["ready"].severity is FAIL, "a warning does not say so"
    not_ready = {**not_ready, "problems": [problem("kafka-unreachable", "critical")]}
    assert "ready" not in running(not_ready, tmp_path), "the problem says it"
    down = {"ready": False, "problems": [], "workers": [{"worker": 1, "up": False, "problem": "It ended."}]}
    assert "Worker 1 does not answer (It ended.)" in running(down, tmp_path)["worker-down"].text
    down["problems"] = [{**problem("worker-down", "critical"), "subject": "worker 1", "text": "Worker 1 is ill."}]
    assert running(down, tmp_path)["worker-down"].text == "Worker 1 is ill.", "said once"
    orphans = {"ready": True, "orphan_sessions": [{"client_id": "gateway-3-0"}]}
    assert "gateway-3-0" in running(orphans, tmp_path)["orphan-sessions"].text


def test_a_gateway_that_does_not_answer_is_told_from_one_that_may_not_be_asked(tmp_path: Path) -> None:
    assert running(None, tmp_path, problem="Nobody listens.")["status"].severity is FAIL
    assert running(None, tmp_path, problem="Another token.", refused=True)["status"].severity is SKIPPED
    assert running(None, tmp_path, supervisor=None, workers={})["process"].severity is SKIPPED


def test_a_worker_that_is_started_again_just_now_is_one_of_them() -> None:
    """Else its sessions in EMQX would be orphans."""
    status = {"workers": [{"worker": 0, "up": False}, {"worker": 1, "up": True}]}
    assert RunningFacts(10, {1: 12}, status).worker_count(settings_of(workers=4)) == 2
    assert RunningFacts(10, {0: 11, 1: 12}).worker_count(settings_of(workers=4)) == 2
    assert RunningFacts().worker_count(settings_of(workers=4)) == 4
    assert RunningFacts(None, {0: 11}, {"ready": True}).worker_count(settings_of(workers=0)) == 1


def test_rates_of_all_workers() -> None:
    documents = [{"rates": {"received_per_second": 100.0}}, {"rates": {"received_per_second": 50}}, {"up": False}]
    assert RunningFacts(status={"workers": documents}).rate == 150
    assert RunningFacts(status={"workers": [{}]}).rate is None
    assert RunningFacts(status={"rates": {"received_per_second": 7.0}}).rate == 7


@pytest.fixture
def identity(tmp_path: Path) -> Iterator[Identity]:
    made = Identity(tmp_path / "data", "plant", 0, lambda: Ending.CLEAN)
    asyncio.run(made.start())
    yield made
    asyncio.run(made.stop(0))


def test_a_data_directory_in_use_is_found_without_taking_anything(identity: Identity, tmp_path: Path) -> None:
    found = find(tmp_path / "data")
    assert found.runs
    assert set(found.workers or {}) == {0}
    assert not find(tmp_path / "nowhere").runs


def directory_check(directory: Path, instance: str) -> Check:
    findings = Findings("config")
    config_checks.judge_identity(findings, directory, instance)
    return findings[0]


def test_whose_the_data_directory_is(identity: Identity, tmp_path: Path) -> None:
    identity.confirm_cluster("abc")
    mine = directory_check(tmp_path / "data", "plant")
    assert mine.severity is OK
    recorded = config_checks.judge_identity(Findings("config"), tmp_path / "data", "plant")
    assert mine.facts["cluster_id"] == "abc" == recorded
    other = directory_check(tmp_path / "data", "another")
    assert (other.severity, other.status) == (FAIL, ExitStatus.CONFIG)
    with pytest.raises(IdentityError) as refused:
        judge(tmp_path / "data", "another")
    assert other.text == str(refused.value)
    assert directory_check(tmp_path / "empty", "plant").severity is OK
    assert not (tmp_path / "empty").exists()
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("meta.properties", "meta.lock"):
        (copy / name).write_bytes((tmp_path / "data" / name).read_bytes())
    assert "copy" in directory_check(copy, "plant").text


# --- settings ---------------------------------------------------------------------------------------


def test_warnings_of_the_settings_and_of_the_routes(tmp_path: Path) -> None:
    findings = Findings("config")
    routes = [
        {"name": "wide", "filters": ["a/#"], "topic": "t"},
        {"name": "narrow", "filters": ["a/b", "c"], "topic": "u"},
    ]
    mqtt = {"tls": {"verify": False}, "addresses": ["mqtts://b"]}
    loaded = load(None, environ={}, overrides={"routes": routes, "mqtt": mqtt})
    config_checks.judge_settings(findings, loaded)
    assert any(check.severity is WARN and "verify" in check.text for check in findings)
    assert config_checks.judge_router(findings, loaded) is not None
    assert any(check.name == "routes" and check.severity is WARN and "narrow" in check.text for check in findings)
    assert config_checks.judge_router(findings, load(None, environ={})) is None
    assert findings[-1].status is ExitStatus.CONFIG
    assert "There is no settings file" in findings[-1].fix
    hidden = replace(loaded, settings=settings_of(routes=[routes[0], {**routes[1], "filters": ["a/b"]}]))
    assert config_checks.judge_router(findings, hidden) is None


class Source:
    """A source of tokens that has one, or a reason."""

    failures = 0

    def __init__(self, left_s: float | None, error: GatewayError | None = None) -> None:
        ends = None if left_s is None else time.monotonic_ns() + int(left_s * 1e9)
        self._credential, self._error = Credential("secret-token", ends), error

    async def current(self) -> Credential:
        if self._error is not None:
            raise self._error
        return self._credential


@pytest.mark.parametrize(("left_s", "error", "severity"), [
    (3600, None, OK), (None, None, OK), (20, None, WARN), (-5, None, FAIL),
    (1, GatewayError("The issuer is away."), FAIL),
])  # fmt: skip
async def test_tokens(left_s: float | None, error: GatewayError | None, severity: Severity) -> None:
    findings = Findings("config")
    source: Any = Source(left_s, error)  # made here: its time runs
    await config_checks.look_at_tokens(findings, {"mqtt.token": source}, 1)
    assert findings[0].severity is severity
    assert "secret-token" not in f"{findings[0]}"


# --- time -------------------------------------------------------------------------------------------


async def test_what_hangs_in_a_thread_is_left_behind() -> None:
    held = threading.Event()
    with pytest.raises(TimeoutError):
        await call(lambda: held.wait(60), 0.05)
    held.set()
    assert await call(lambda: 7, 5) == 7
    with pytest.raises(ZeroDivisionError):
        await call(lambda: 1 // 0, 5)


def test_a_resolver_that_hangs_costs_its_time_out_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads too: asyncio would wait for them at its end."""
    held = threading.Event()
    monkeypatch.setattr("socket.getaddrinfo", lambda *_arguments, **_options: held.wait(60))
    began = time.monotonic()
    try:
        looked = look(
            tmp_path, "mqtt", "kafka", timeout_s=0.2,
            mqtt={"addresses": ["mqtt://broker.example"]}, kafka={"bootstrap_servers": ["kafka.example:9092"]},
        )  # fmt: skip
    finally:
        held.set()
    assert time.monotonic() - began < 50
    assert [check.severity for check in looked.all("dns")] == [FAIL, FAIL]
    assert all("the resolver did not answer" in check.text for check in looked.all("dns"))
    assert looked.status == 69


def test_a_defect_in_one_group_leaves_others_their_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: Any) -> HostFacts:
        raise KeyError("surprise")

    monkeypatch.setattr("gateway.tools.doctor.host_facts.gather", broken)
    looked = look(tmp_path, "host", "config", "running")
    assert looked.one("defect").severity is FAIL
    assert "KeyError: 'surprise'" in looked.one("defect").text
    assert looked.one("routes").severity is OK
    assert looked.status == 1


def test_a_group_that_is_not_done_in_time_keeps_what_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The addresses were judged; the door hangs longer than everything may take, which is over at once."""
    limits: list[asyncio.Timeout] = []
    begin = asyncio.timeout

    def noted(seconds: float) -> asyncio.Timeout:
        limits.append(begin(seconds))
        return limits[-1]

    async def hang(*_arguments: Any) -> None:
        limits[0].reschedule(there(limits[0].when()) - LONGEST_S)
        await asyncio.sleep(60)

    monkeypatch.setattr(asyncio, "timeout", noted)
    monkeypatch.setattr("gateway.tools.doctor.mqtt_facts.Asking.door", hang)
    looked = look(tmp_path, "mqtt", mqtt={"addresses": ["mqtt://127.0.0.1:1"]})
    assert looked.one("tcp").severity is FAIL
    assert looked.one("time").severity is FAIL
    assert "--only mqtt" in looked.one("time").fix


async def test_an_answer_that_is_late_for_want_of_cpu_is_waited_for() -> None:
    """A starved process: the event loop has a turn every 0.5 s, and the thread is as slow."""
    answered = asyncio.create_task(call(lambda: time.sleep(0.6) or "answered", 0.3))
    while not answered.done():
        time.sleep(0.5)  # noqa: ASYNC251 - the starvation
        await asyncio.sleep(0)
    assert await answered == "answered"


async def test_a_question_without_an_answer_names_who_was_asked() -> None:
    async def late() -> None:
        raise TimeoutError

    problems: dict[str, GatewayError] = {}
    assert await answer("zone", late(), problems, 7, who="EMQX") == 7
    assert str(problems["zone"]) == "EMQX did not answer in time."
