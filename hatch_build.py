"""Compiles the hot modules of the data path with mypyc, where a build asks for it (``HATCH_BUILD_HOOK_ENABLE_CUSTOM``).

Without that variable the hook is off, and the wheel is pure Python. With it, a build that cannot compile fails: a wheel
that says it is compiled must be. Both wheels hold the same Python files; Python takes a compiled module that lies
beside its source first.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# What runs for each message, read or new topic: the modules that a profile shows, and no others. Each one more is code
# that behaves a little differently (see CONTRIBUTING.md).
MODULES = (
    "bridge/kafka/record_writer.py",
    "bridge/produce/accumulator.py",
    "bridge/produce/batch.py",
    "bridge/produce/partitioner.py",
    "gateway/mqtt/ingest.py",
)
# Only what is compiled is checked here; `make check` has the strict settings, and packages that this build may lack.
_OPTIONS = ("--config-file=", "--follow-imports=silent", "--ignore-missing-imports", "--no-site-packages")


class CompilingHook(BuildHookInterface[Any]):
    """Adds an extension module for each of ``MODULES``, and the library they share, to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="compiled-")
        if version == "editable":
            return
        try:
            built = _compile(Path(self.root), Path(self._folder.name))
        except (Exception, SystemExit) as error:
            message = (
                f"The data path was not compiled: {error}. The lines above say why. Compiling needs a C compiler, "
                "Python's headers (Debian: gcc, python3-dev), mypy and setuptools. Without "
                "HATCH_BUILD_HOOK_ENABLE_CUSTOM the wheel is pure Python and needs none of them."
            )
            raise RuntimeError(message) from error
        build_data["force_include"] |= built
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, _version: str, _build_data: dict[str, Any], _artifact_path: str) -> None:
        self._folder.cleanup()


def _compile(root: Path, folder: Path) -> dict[str, str]:
    """Compile ``MODULES``. Returns the path of each library, with its path in the wheel."""
    # Imported here: the pure wheel needs neither.
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    extensions = mypycify(
        [*_OPTIONS, *(str(root / module) for module in MODULES)],
        target_dir=str(folder / "c"), group_name="gateway_data_path", opt_level="3", debug_level="0",
    )  # fmt: skip
    command = build_ext(Distribution({"ext_modules": extensions}))
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "objects")
    command.ensure_finalized()
    command.run()
    libraries = sorted((folder / "lib").rglob("*.so"))
    return {str(path): path.relative_to(folder / "lib").as_posix() for path in libraries}
