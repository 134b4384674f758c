"""Who may import whom, what a package exports, and what merely starting a part of the program loads."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("config", "bridge", "auth", "streaming", "gateway")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the contracts over the packages in ``folder``, wherever else packages of these names are installed."""
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    environment = {**os.environ, "PYTHONPATH": str(folder), "NO_COLOR": "1", "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_the_import_contracts_hold() -> None:
    ran = lint_imports(ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr


# A module to add a forbidden import to, the import, and words of the contract that must notice.
VIOLATIONS = [
    ("config/errors.py", "import bridge.wire", "Imports point down"),
    ("auth/__init__.py", "import streaming", "Imports point down"),
    ("bridge/backoff.py", "import paho.mqtt.client", "paho is known"),
    ("gateway/base/lifecycle.py", "import aiokafka", "aiokafka is known"),
    ("gateway/base/lifecycle.py", "import pyspark", "pyspark is known"),
    ("bridge/backoff.py", "import jpype", "JPype is known"),
    ("streaming/schemas.py", "import bridge.routing.router", "Spark jobs read the names on the wire"),
    ("config/values/grammar.py", "import config.kafka", "Inside config"),
    ("bridge/spool/index.py", "import bridge.produce.batch", "Inside bridge"),
    ("bridge/produce/sender.py", "import bridge.kafka.producer", "Producing does not know Kafka's client"),
    ("auth/rules/rules.py", "import auth.store.store", "Inside auth"),
    ("gateway/worker/worker.py", "import gateway.tools.explain", "Inside gateway"),
    ("gateway/tools/explain.py", "import gateway.local.demo.run", "Inside gateway"),
    ("gateway/tools/explain.py", "import gateway.tools.verify.check", "Tools do not know each other"),
    ("gateway/local/runtime/jars.py", "import gateway.local.embedded.kafka", "Inside local"),
    ("gateway/mqtt/__init__.py", "import gateway.mqtt.client", "A package itself pulls in no client library"),
]


@pytest.mark.parametrize(("module", "line", "contract"), VIOLATIONS, ids=[f"{v[0]}: {v[1]}" for v in VIOLATIONS])
def test_a_forbidden_import_breaks_its_contract(tmp_path: Path, module: str, line: str, contract: str) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    changed = tmp_path / module
    changed.write_text(changed.read_text() + f"\n{line}\n")
    ran = lint_imports(tmp_path)
    broken = [text for text in ran.stdout.splitlines() if contract in text and "BROKEN" in text]
    assert ran.returncode == 1, f"{line} in {module} passed:\n{ran.stdout}{ran.stderr}"
    assert broken, f"{line} in {module} broke something else than “{contract}”:\n{ran.stdout}"


def loaded_by(*modules: str) -> set[str]:
    """The top-level packages that a fresh interpreter has loaded after importing ``modules``."""
    code = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        "print('\\n'.join({name.partition('.')[0] for name in sys.modules}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"importing {', '.join(modules)} failed:\n{ran.stderr}"
    return set(ran.stdout.split())


def test_starting_the_command_line_loads_no_client_library() -> None:
    """`gateway --help` and completion have to be quick, and the core install has neither Spark nor JPype."""
    heavy = loaded_by("gateway.cli.main") & {"pyspark", "py4j", "jpype", "rich", "aiokafka", "paho", "streaming"}
    assert not heavy


def test_a_worker_loads_only_what_the_core_install_has() -> None:
    """rich is not asked about: structlog takes it where it happens to be installed."""
    heavy = {"pyspark", "py4j", "jpype", "pyarrow", "confluent_kafka", "psutil", "streaming"}
    assert not loaded_by("gateway.worker.worker") & heavy


def test_a_worker_without_tokens_loads_nothing_of_what_fetches_them() -> None:
    assert not loaded_by("gateway.worker.worker", "gateway.components.outward") & {
        "aiohttp",
        "auth",
        "cryptography",
        "jwt",
    }


def test_a_supervisor_loads_no_client_library_and_nothing_of_the_data_path() -> None:
    """It is there beside every fleet of workers, and stays up when they do not."""
    heavy = {"paho", "aiokafka", "cramjam", "pyspark", "py4j", "jpype", "streaming"}
    assert not loaded_by("gateway.supervisor.supervisor", "gateway.cli.run") & heavy


def test_the_spark_jobs_load_nothing_of_the_gateway() -> None:
    names = [module_name(path) for path in MODULES if path.is_relative_to(ROOT / "streaming")]
    heavy = loaded_by(*names) & {"paho", "aiokafka", "aiohttp", "jpype", "rich", "gateway", "auth"}
    assert not heavy


def test_the_settings_load_without_any_client_library() -> None:
    heavy = loaded_by("config.loading.load") & {
        "paho",
        "aiokafka",
        "aiohttp",
        "pyspark",
        "jpype",
        "rich",
        "prometheus_client",
    }
    assert not heavy


def exported(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "__all__" for to in node.targets):
            return list(ast.literal_eval(node.value))
    return None


def bound_names(body: list[ast.stmt]) -> set[str]:
    """The names a module binds at its top level, imports included, also inside ``if`` and ``try``."""
    names: set[str] = set()
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Import() | ast.ImportFrom():
                names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
            case ast.Assign():
                names.update(to.id for target in node.targets for to in ast.walk(target) if isinstance(to, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.If() | ast.Try() | ast.With():
                names |= bound_names([inner for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt)])
    return names


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_a_module_exports_on_purpose(path: Path) -> None:
    """What a module defines for others is in its ``__all__``, and nothing is there that it does not have."""
    tree = ast.parse(path.read_text())
    names = exported(tree)
    public = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_")
    }
    if path.name.startswith("_") and path.name != "__init__.py":
        return  # private as a whole
    if names is None:
        assert not public, f"{module_name(path)} defines {', '.join(sorted(public))} and has no __all__"
        return
    assert len(names) == len(set(names)), f"{module_name(path)}.__all__ has a name twice"
    missing = set(names) - bound_names(tree.body)
    assert not missing, f"{module_name(path)}.__all__ names what is not there: {', '.join(sorted(missing))}"


@pytest.mark.parametrize("path", [path for path in MODULES if path.name == "__init__.py"], ids=module_name)
def test_what_a_package_imports_from_below_it_exports(path: Path) -> None:
    """A name pulled up into a package is there for others: it belongs into ``__all__``."""
    tree = ast.parse(path.read_text())
    pulled_up = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(module_name(path).partition(".")[0])
        for alias in node.names
    }
    assert pulled_up <= set(exported(tree) or []), f"{module_name(path)} pulls up names it does not export"
