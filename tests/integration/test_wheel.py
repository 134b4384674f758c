"""The distribution as a production machine gets it: a wheel and the locked core packages, in an empty environment."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_BYTES = 58_000_000  # 55 before httptools (1.7 MB, for 11 MiB of each process's memory); a surprise is more


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints. Without the variable that would let it find the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{' '.join(map(str, command))}:\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    run(*build, "--wheel-dir", folder, ROOT, cwd=folder)
    [found] = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the core packages and the wheel, and nothing else; pip works from outside."""
    folder = tmp_path_factory.mktemp("production")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    pip = [sys.executable, "-m", "pip", "--python", folder / "venv" / "bin" / "python", "install", "--quiet"]
    run(*pip, "--no-deps", "--require-hashes", "--requirement", ROOT / "requirements" / "core.txt", cwd=folder)
    run(*pip, "--no-index", wheel, cwd=folder)  # with its dependencies: pip fails if the lock lacks one
    return folder / "venv"


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "auth",
        "bridge",
        "config",
        "gateway",
        "streaming",
    }
    tracked = subprocess.run(
        ["git", "ls-files", "auth", "bridge", "config", "gateway", "streaming"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    assert set(tracked) <= set(names), "a file of the packages is not in the wheel"
    assert zipfile.ZipFile(wheel).read("gateway/http/page/runbook.md") == (ROOT / "docs" / "runbook.md").read_bytes()
    assert not [name for name in names if name.endswith((".jar", ".pyc", ".so"))]
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_core_install_is_light(site: Path) -> None:
    """What a production gateway carries, compiled modules included."""
    packages = next((site / "lib").glob("python*/site-packages"))
    total = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file())
    largest = sorted(
        ((sum(p.stat().st_size for p in one.rglob("*") if p.is_file()), one.name) for one in packages.iterdir()),
        reverse=True,
    )[:5]
    assert total <= LIMIT_BYTES, f"{total / 1e6:.1f} MB, the largest are {largest}"
    assert total > 1_000_000, "nothing was measured"
    assert not list(site.rglob("*.jar"))


@pytest.mark.parametrize("module", ["pyspark", "py4j", "jpype", "rich", "pyarrow", "pytest", "pip", "setuptools"])
def test_the_core_install_has_no_heavy_package(site: Path, module: str) -> None:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is not None)"
    run(site / "bin" / "python", "-I", "-c", code, cwd=site)


def test_the_command_works_without_the_extras(site: Path) -> None:
    assert run(site / "bin" / "gateway", "--help", cwd=site).startswith("usage: gateway")
    for command in ("run", "config", "stream", "demo", "dev"):
        run(site / "bin" / "gateway", command, "--help", cwd=site)


def test_the_version_is_the_projects(site: Path, wheel: Path) -> None:
    told = run(site / "bin" / "gateway", "--version", cwd=site)
    assert told.split() == ["gateway", wheel.name.split("-")[1], "(pure)"]


@pytest.mark.parametrize("command", [["demo", "--duration", "1"], ["stream", "silver"], ["dev", "up"]], ids=" ".join)
def test_a_command_whose_extra_is_missing_says_what_to_install(site: Path, tmp_path: Path, command: list[str]) -> None:
    """With an empty cache, as on a production machine: what the tests have fetched must not help."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("GATEWAY_CACHE", None)
    ran = subprocess.run(
        [site / "bin" / "gateway", *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode > 0, f"gateway {command[0]} succeeded without its packages"
    assert "Traceback" not in ran.stderr, ran.stderr
    assert "-m pip install '.[" in ran.stderr, f"gateway {' '.join(command)} said: {ran.stderr}"
