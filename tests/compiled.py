"""`python -m tests.compiled [options of pytest]`: runs tests on the compiled data path, in a copy of the checkout."""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def build_wheel(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Builds the compiled wheel into a folder, without a network. It may fail."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--quiet"]
    return subprocess.run(
        [*command, "--wheel-dir", str(folder), str(ROOT)],
        env={**os.environ, "HATCH_BUILD_HOOK_ENABLE_CUSTOM": "true", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def make_tree(wheel: Path, folder: Path) -> None:
    """Copies the checkout's files, and puts the wheel's libraries beside their sources."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".so")])


def run_tests(tree: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    """Runs pytest in the copy. Processes that the tests start load the copy's modules too."""
    command = [sys.executable, "-m", "pytest", *options]
    return subprocess.run(command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, check=False)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="gateway-compiled-") as name:
        built = build_wheel(Path(name) / "wheel")
        if built.returncode:
            print(built.stdout, built.stderr, file=sys.stderr)
            return built.returncode
        [wheel] = (Path(name) / "wheel").glob("*.whl")
        make_tree(wheel, Path(name) / "tree")
        return run_tests(Path(name) / "tree", *sys.argv[1:]).returncode


if __name__ == "__main__":
    sys.exit(main())
