"""Rewrites ``gateway/local/runtime/jars.lock``: ``python requirements/lock_jars.py``.

Run it after a change of a version below."""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gateway.local.runtime.ivy import ARTIFACT_PATTERN, find_ivy, ivy_command, module_xml
from gateway.local.runtime.jars import BUNDLES, LOCK_FILE, Bundle
from gateway.local.runtime.java import ensure_java, jvm_environment
from gateway.local.runtime.mirror import find_mirror


@dataclass(frozen=True)
class _Root:
    """What a bundle is resolved from, and modules forced to another version than their dependents ask for."""

    modules: tuple[str, ...]
    overrides: tuple[str, ...] = ()


_ROOTS: dict[Bundle, _Root] = {
    # 4.4.0 does not resolve: its kafka-tools-api is not in the public repository. slf4j-simple is the log output.
    "kafka": _Root(("org.apache.kafka:kafka_2.13:4.3.1", "org.slf4j:slf4j-simple:1.7.36")),
    "hivemq": _Root(("com.hivemq:hivemq-community-edition-embedded:2025.5",)),
    # The token provider's own 4.1.3 to 4.2.x are not in the public repository; 4.0.0 has the classes 4.2.0 calls.
    "spark": _Root(
        (
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
            "io.delta:delta-spark_4.2_2.13:4.4.0",  # the release that goes with Spark 4.2
        ),
        ("org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",),
    ),
}
_HEADER = """\
# The jars of the embedded brokers, of Spark's Kafka source and of Delta Lake: bundle, module, bytes, SHA-256.
# Written by requirements/lock_jars.py; the modules it starts from, and why those versions, are in that file.
# Of Spark's bundle only what pyspark itself does not carry is listed.
"""


def main() -> int:
    """Resolve every bundle anew and write the lock file. Needs the network; takes minutes."""
    lines = [_HEADER]
    with tempfile.TemporaryDirectory(prefix="gateway-lock-") as scratch:
        for bundle in BUNDLES:
            lines += _resolve(bundle, Path(scratch) / bundle)
    LOCK_FILE.write_text("".join(lines))
    return 0


def _resolve(bundle: Bundle, scratch: Path) -> list[str]:
    scratch.mkdir()
    root, cache = _ROOTS[bundle], scratch / "cache"
    module = module_xml(_split(root.modules), transitive=True, overrides=_split(root.overrides))
    with ivy_command(ensure_java(), scratch, module, find_mirror(()), poms=True) as command:
        subprocess.run([*command, "-cachepath", scratch / "paths"], check=True, env=jvm_environment())
    # In whatever version: two of one library on the class path would be a lottery, and Spark is built against its own.
    carried = {_unversioned(path) for path in find_ivy().parent.glob("*.jar")} if bundle == "spark" else set()
    lines = []
    for path in sorted(Path(text) for text in (scratch / "paths").read_text().strip().split(os.pathsep)):
        if _unversioned(path) in carried:
            continue
        organisation = path.parent.name  # ARTIFACT_PATTERN
        name, version = _name_and_version(organisation, path, cache)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        lines.append(f"{bundle} {organisation}:{name}:{version} {path.stat().st_size} {sha256}\n")
    return lines


def _unversioned(jar: Path) -> str:
    """The name without what begins with a hyphen and a digit: ``log4j-api`` of ``log4j-api-2.25.3.jar``."""
    return re.split(r"-(?=\d)", jar.stem, maxsplit=1)[0]


def _name_and_version(organisation: str, path: Path, cache: Path) -> tuple[str, str]:
    """Split ``name-version.jar`` by the record Ivy keeps per module: a name may hold hyphens and digits."""
    for record in (cache / organisation).glob("*/ivydata-*.properties"):
        version = record.stem.removeprefix("ivydata-")
        if path.name == f"{record.parent.name}-{version}.jar":
            return record.parent.name, version
    raise SystemExit(f"{path.name} of {organisation} is no plain {ARTIFACT_PATTERN} jar; the lock file cannot name it.")


def _split(coordinates: Iterable[str]) -> list[list[str]]:
    return [coordinate.split(":") for coordinate in coordinates]


if __name__ == "__main__":
    sys.exit(main())
