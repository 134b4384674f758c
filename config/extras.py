"""Packages that only some commands need, and what installs them where this runs."""

import importlib.util
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from config.errors import ConfigError

_IMAGES = {"auth": "auth", "streaming": "stream"}  # the Dockerfile's stages that have an extra


def how_to_install(extra: str, source: Path | None = None) -> str:
    """The command that installs an extra's packages here. No package index has the gateway, so its name finds
    nothing."""
    source = source or Path(__file__).resolve().parents[1]
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    if (source / "pyproject.toml").is_file():
        text = f"{pip} --editable {shlex.quote(f'{source}[{extra}]')}"
    else:
        text = f"{pip} '.[{extra}]' in the folder of the gateway's sources; with a wheel, its file in place of the dot"
    image = _IMAGES.get(extra)
    return text if image is None else f"{text}; as an image: docker build --target {image} ."


def require(who: str, packages: Mapping[str, str], extra: str) -> None:
    """Check that the modules can be imported. ``packages``: module to package; ``who`` begins the sentence. Raises
    ConfigError."""
    absent = [package for module, package in packages.items() if importlib.util.find_spec(module) is None]
    if absent:
        raise ConfigError(
            f"{who} needs packages that are not installed: {', '.join(absent)}. To install them: "
            f"{how_to_install(extra)}"
        )
