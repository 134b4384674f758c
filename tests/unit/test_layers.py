"""Who may import whom, what a package exports, and what merely starting a part of the program loads."""

import ast
import graphlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from tests.scripts import loaded_after

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
    ("streaming/silver/rows.py", "import bridge.routing.router", "Spark jobs read the names on the wire"),
    ("config/values/grammar.py", "import config.tables.kafka", "Inside config"),
    ("bridge/spool/index.py", "import bridge.produce.batch", "Inside bridge"),
    ("bridge/produce/sender.py", "import bridge.kafka.producer", "Producing does not know Kafka's client"),
    ("auth/rules/rules.py", "import auth.store.store", "Inside auth"),
    ("gateway/worker/worker.py", "import gateway.tools.explain", "Inside gateway"),
    ("gateway/tools/explain.py", "import gateway.local.demo.run", "Inside gateway"),
    ("gateway/base/process/memory.py", "import gateway.base.lifecycle", "Inside base"),
    ("gateway/tools/explain.py", "import gateway.tools.verify.check", "Tools do not know each other"),
    ("gateway/local/runtime/jars.py", "import gateway.local.embedded.kafka", "Inside local"),
    ("gateway/local/demo/show/state.py", "import gateway.local.demo.result", "Inside the demo"),
    ("gateway/mqtt/__init__.py", "import gateway.mqtt.client", "A package itself pulls in no client library"),
]


def test_a_forbidden_import_breaks_its_contract(tmp_path: Path) -> None:
    """All of them in one tree: the linter says of each contract which imports break it."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for module, line, _ in VIOLATIONS:
        with (tmp_path / module).open("a") as changed:
            changed.write(f"\n{line}\n")
    ran = lint_imports(tmp_path)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    # One paragraph a broken contract: its name, a line under it, and the imports as "one -> other".
    told = {part.partition("\n")[0]: part for part in re.split(r"\n(?=[^\n]+\n-{3,}\n)", ran.stdout)}
    for module, line, contract in VIOLATIONS:
        importer, imported = module_name(ROOT / module), line.removeprefix("import ")
        if not imported.startswith(PACKAGES):
            imported = imported.partition(".")[0]  # of others' packages it knows the names alone
        [text] = [text for name, text in told.items() if contract in name]
        assert re.search(rf"{importer} -> {imported}\b", text), (
            f"{line} in {module} does not break “{contract}”:\n{text}"
        )


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for types included."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle


def loaded_by(*modules: str) -> set[str]:
    """The names of all modules that a fresh interpreter has loaded after importing ``modules``."""
    return loaded_after("\n".join(f"import {name}" for name in modules))


JOBS = [module_name(path) for path in MODULES if path.is_relative_to(ROOT / "streaming")]


@pytest.mark.parametrize(
    ("modules", "left_out"),
    [
        # `gateway --help` and completion have to be quick, and the core install has neither Spark nor JPype.
        (["gateway.cli.main"], "pyspark py4j jpype rich aiokafka paho streaming"),
        # What the core install has. rich is not asked about: structlog takes it where it happens to be installed.
        (["gateway.worker.worker"], "pyspark py4j jpype pyarrow confluent_kafka psutil streaming"),
        (["gateway.worker.worker", "gateway.components.outward"], "aiohttp auth cryptography jwt"),  # without tokens
        # A supervisor is there beside every fleet of workers, and stays up when they do not.
        (["gateway.supervisor.supervisor", "gateway.cli.service.run"],
            "paho aiokafka cramjam pyspark py4j jpype streaming"),
        (JOBS, "paho aiokafka aiohttp jpype rich gateway auth"),
        (["config.loading.load"], "paho aiokafka aiohttp pyspark jpype rich prometheus_client"),
        # The main parser imports every command's module at each start, `gateway run` included.
        (["gateway.cli.local.demo"], "rich aiokafka paho jpype pyarrow aiohttp asyncio"),
        (["bridge.produce.dispatch", "bridge.intercept.loading"],
            "RestrictedPython jsonschema_rs bridge.intercept.filter"),  # without interceptors
        # What the Spark jobs read of the bridge.
        (["bridge.wire"], "pydantic paho aiokafka aiohttp structlog prometheus_client config gateway asyncio"),
        # What starts a job or reads its lines.
        ([f"streaming.{name}" for name in ("progress", "options", "kafka", "errors")], "pyspark py4j paho aiokafka"),
    ],
    ids=["command line", "worker", "worker without tokens", "supervisor", "Spark jobs", "settings", "demo",
         "no interceptors", "wire", "starts of jobs"],
)  # fmt: skip
def test_a_part_loads_only_what_it_needs(modules: list[str], left_out: str) -> None:
    assert not loaded_by(*modules) & set(left_out.split())


def test_a_worker_without_commands_loads_nothing_of_them() -> None:
    found = {name for name in loaded_by("gateway.worker.worker") if "command" in name}
    assert found == {"config.tables.commands", "gateway.base.command_metrics"}


def exported(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "__all__" for to in node.targets):
            return list(ast.literal_eval(node.value))
    return None


# Modules that others import from without knowing where a name is defined.
FACES = {"bridge.interceptors", "config.settings", "gateway.admin.protocol"}


def test_only_packages_and_faces_export_by_a_list() -> None:
    lists = {
        module_name(path) for path in MODULES if path.name != "__init__.py" and exported(ast.parse(path.read_text()))
    }
    assert lists == FACES


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


def names_cancellation(node: ast.AST | None) -> bool:
    """Whether an expression names what a cancelled task is told: ``CancelledError``, or the base of all."""
    if node is None:
        return True
    found = {getattr(one, "attr", getattr(one, "id", "")) for one in ast.walk(node)}
    return bool(found & {"CancelledError", "BaseException"})


def swallowed_cancellations(tree: ast.AST, *, in_coroutine: bool = False) -> list[int]:
    """The lines where a coroutine catches its own cancellation, and does not raise it again."""
    lines = []
    for node in ast.iter_child_nodes(tree):
        inside = isinstance(node, ast.AsyncFunctionDef) or (
            in_coroutine and not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef)
        )
        if isinstance(node, ast.ExceptHandler) and in_coroutine and names_cancellation(node.type):
            if not any(isinstance(one, ast.Raise) for one in ast.walk(node)):
                lines.append(node.lineno)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "suppress":
            lines += [node.lineno for argument in node.args if in_coroutine and names_cancellation(argument)]
        lines += swallowed_cancellations(node, in_coroutine=inside)
    return lines


def test_no_coroutine_swallows_its_cancellation() -> None:
    """It would go on after the stop that cancels it. To end a task of its own it has ``bridge.waiting.end_tasks``."""
    code = "async def stop(t):\n try: await t\n except CancelledError: pass\n with suppress(BaseException): await t"
    assert swallowed_cancellations(ast.parse(code)) == [3, 4]
    found = [f"{path}:{line}" for path in MODULES for line in swallowed_cancellations(ast.parse(path.read_text()))]
    assert not found
