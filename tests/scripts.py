"""Scripts that run on their own, as modules; and code that runs in an interpreter of its own."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType


def load_script(path: Path) -> ModuleType:
    """A module of its own each time; nothing else can import it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def loaded_after(code: str) -> set[str]:
    """The names of all modules that a fresh interpreter has loaded when it has run ``code``."""
    command = [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"]
    ran = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{code}\nfailed:\n{ran.stderr}"
    return set(ran.stdout.splitlines()[-1].split())
