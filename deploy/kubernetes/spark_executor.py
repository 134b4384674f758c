"""The command of a Spark executor's pod: becomes the JVM that Kubernetes' driver asked for.

Spark tells a pod what to be by variables and leaves the command line to the image's entry point. Ours is `gateway`; the
pod template in spark.yaml names this file instead. Standard library only. Ends with 64 if a variable is missing.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

_MAIN = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_TOLD = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_OPTION = "SPARK_JAVA_OPT_"


def command(environ: Mapping[str, str], spark_home: Path) -> list[str]:
    """The words to run. Raises KeyError with the name of a variable that Spark should have set."""
    java = Path(environ["JAVA_HOME"], "bin", "java") if environ.get("JAVA_HOME") else Path("java")
    numbered = [name for name in environ if name.startswith(_OPTION) and name[len(_OPTION) :].isdigit()]
    options = [environ[name] for name in sorted(numbered, key=lambda name: int(name[len(_OPTION) :]))]
    memory = environ["SPARK_EXECUTOR_MEMORY"]
    path = [f"{spark_home}/jars/*", *filter(None, [environ.get("SPARK_CLASSPATH")])]
    words = [str(java), *options, f"-Xms{memory}", f"-Xmx{memory}", "-cp", os.pathsep.join(path), _MAIN]
    return words + [word for option, name in _TOLD.items() for word in (option, environ[name])]


def main() -> int:
    """Becomes the JVM; returns a status only where it cannot."""
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        print("there is no pyspark in this image: is it the one of `docker build --target stream`?", file=sys.stderr)
        return 69
    try:
        words = command(os.environ, Path(spark.origin).parent)
    except KeyError as missing:
        print(f"{missing} is not set: only Spark's driver on Kubernetes starts this", file=sys.stderr)
        return 64
    # No shell is wanted: the JVM takes this process's place, and its signals.
    return os.execvp(words[0], words)  # noqa: S606


if __name__ == "__main__":
    sys.exit(main())
