"""The compiled wheel, built for real: its modules do what the pure ones do. tests/integration/test_image.py runs it
between real brokers."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.compiled import build_wheel, make_tree, run_tests
from tests.programs import missing

pytestmark = pytest.mark.slow

# Of each part a share: `make test-compiled` runs all of them.
TESTS = (
    "tests/unit/test_accumulator.py",
    "tests/unit/test_mqtt_connection.py",
    "tests/unit/test_mqtt_ingest.py",
    "tests/unit/test_partitioner.py",
    "tests/unit/test_record_writer.py",
    "tests/unit/test_fake_kafka.py::test_a_batch_that_raises_for_a_wrong_type_has_taken_nothing",
    *(
        "tests/unit/test_data_path_simulation.py::"
        f"test_whatever_goes_wrong_nothing_acknowledged_is_lost_and_the_account_balances[{seed}]"
        for seed in range(1, 6)
    ),
)
LONG = "every_prefix or TestHistories"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = os.environ.get("CC") or str(sysconfig.get_config_var("CC"))
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if shutil.which(compiler.split()[0]) is None or not headers.exists():
        missing(f"compiling needs {compiler} and {headers} (Debian: apt-get install gcc python3-dev)")
    folder = tmp_path_factory.mktemp("compiled")
    built = build_wheel(folder / "wheel")
    assert built.returncode == 0, built.stdout + built.stderr
    [wheel] = (folder / "wheel").glob("*.whl")
    assert not wheel.name.endswith("-any.whl")
    make_tree(wheel, folder / "tree")
    return folder / "tree"


def test_the_compiled_modules_pass_the_tests_of_the_data_path(tree: Path) -> None:
    ran = run_tests(tree, "-q", "-n0", "-k", f"not ({LONG})", *TESTS)
    assert ran.returncode == 0


def test_every_process_says_that_it_runs_the_compiled_build(tree: Path) -> None:
    shown = "print(versions()['build'], ProcessMetrics.build_info.fixed[0][-1])"
    code = f"from gateway.base.metrics import ProcessMetrics, versions; {shown}"
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    for command, expected in (
        (["-c", code], "compiled compiled"),
        (["-m", "gateway.cli.main", "--version"], "(compiled)"),
    ):
        ran = subprocess.run(
            [sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True, check=False
        )
        assert ran.stdout.strip().endswith(expected), ran.stderr


def test_a_compiler_that_fails_leaves_a_sentence_and_no_wheel(tmp_path: Path) -> None:
    built = build_wheel(tmp_path, CC="/nowhere/cc")
    assert built.returncode > 0
    assert "The data path was not compiled" in built.stderr + built.stdout
    assert "Without HATCH_BUILD_HOOK_ENABLE_CUSTOM the wheel is pure Python" in built.stderr + built.stdout
    assert not list(tmp_path.iterdir())
