"""Kafka's log directories: formatted as ``kafka-storage format`` does, mostly without running it."""

import base64
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from gateway.local.embedded.kafka_config import Listeners, node_properties, properties_text
from gateway.local.runtime.cache import cache_directory, locked
from gateway.local.runtime.errors import StartError
from gateway.local.runtime.jars import bundle_digest, resolve
from gateway.local.runtime.java import argument_file_line, ensure_java, jvm_environment

_FORMAT_SECONDS = 60


def format_storage(data: Path, node: int, cluster_id: str, options: Sequence[str]) -> None:
    """Make ``data`` a Kafka log directory of node ``node``.

    What the tool writes besides the node's identity (``bootstrap.checkpoint``: the feature levels) is the same for
    every cluster, so it is made once and kept in the cache: a start is a second shorter. With ``options`` of the tool
    it may not be, so the tool runs, once for all nodes beside each other. Raises StartError when the tool fails.
    """
    data.mkdir(parents=True, exist_ok=True)
    if options:
        checkpoint = data.parent / "bootstrap.checkpoint"
        if not checkpoint.exists():
            _run_format(checkpoint, options)
    else:
        cache = cache_directory() / "kafka"
        checkpoint = cache / f"bootstrap-{bundle_digest('kafka')}.checkpoint"
        with locked(cache / "bootstrap.lock"):
            if not checkpoint.exists():
                _run_format(checkpoint, ())
    shutil.copyfile(checkpoint, data / "bootstrap.checkpoint")
    identity = {"version": "1", "cluster.id": cluster_id, "node.id": str(node), "directory.id": kafka_uuid()}
    (data / "meta.properties").write_text(properties_text(identity))


def kafka_uuid() -> str:
    """A random UUID as Kafka writes them; one never starts with a hyphen, which its tools would take for an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


def _run_format(checkpoint: Path, options: Sequence[str]) -> None:
    """Run Kafka's storage tool in a scratch folder, and copy its bootstrap.checkpoint to ``checkpoint``."""
    with tempfile.TemporaryDirectory(prefix="gateway-format-") as scratch_name:
        scratch = Path(scratch_name)  # mode 0700: options may hold passwords, in a file nobody else reads
        listeners = [Listeners({"PLAINTEXT": 1, "CONTROLLER": 2})]  # the tool checks them; nothing listens
        properties = node_properties(1, listeners, scratch / "data", {})
        (scratch / "server.properties").write_text(properties_text(properties))
        arguments = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        arguments += ["-cp", os.pathsep.join(map(str, resolve("kafka"))), "kafka.tools.StorageTool"]
        arguments += ["format", "--cluster-id", kafka_uuid(), "--config", str(scratch / "server.properties"), *options]
        (scratch / "arguments").write_text("\n".join(argument_file_line(argument) for argument in arguments))
        answer = subprocess.run(
            [ensure_java().executable, f"@{scratch / 'arguments'}"],
            capture_output=True,
            text=True,
            check=False,
            env=jvm_environment(),
            stdin=subprocess.DEVNULL,
            timeout=_FORMAT_SECONDS,
        )
        made = scratch / "data" / "bootstrap.checkpoint"
        if answer.returncode != 0 or not made.exists():
            raise StartError(
                f"Kafka's storage could not be formatted: {(answer.stdout + answer.stderr).strip()[-800:]}"
            )
        draft = checkpoint.with_name(f".{checkpoint.name}.{os.getpid()}")
        shutil.copyfile(made, draft)
        draft.replace(checkpoint)
