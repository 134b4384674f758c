"""A tool's process: ``python -m streaming.upkeep.tool NAME``, which ``gateway stream NAME`` becomes."""

import importlib
import signal
import sys
from pathlib import Path

from config.errors import GatewayError
from config.prose import fitted
from streaming import options
from streaming.errors import StreamError
from streaming.runtime.session import RECORD_CLASSES, start_spark


def main(argv: list[str] | None = None) -> int:
    tool, *words = sys.argv[1:] if argv is None else argv
    arguments = options.process_arguments(tool, words)
    try:
        settings = options.load_settings(arguments)
        conf = dict(arguments.conf) | ({RECORD_CLASSES: "true"} if tool == "prepare" else {})
        interrupted = signal.getsignal(signal.SIGINT)
        spark = start_spark(settings, arguments.jars, conf)
        try:
            if interrupted is not signal.SIG_IGN:
                # As SIGTERM does: this process ends, and the JVM with it. pyspark's own handler raises in the middle
                # of py4j, which then prints pages about it.
                signal.signal(signal.SIGINT, signal.SIG_DFL)
            module = "report.lake" if tool == "report" else f"upkeep.{tool}"
            status = int(importlib.import_module(f"streaming.{module}").run(spark.session, settings, arguments))
        finally:
            spark.end()
        if tool == "prepare":
            print(_prepared(spark.archive))  # noqa: T201 (what the user reads)
    except GatewayError as error:
        print(fitted(f"error: {error}", sys.stderr), file=sys.stderr)  # noqa: T201 (what the user reads)
        return error.exit_status
    return status


def _prepared(archive: Path | None) -> str:
    """What ``prepare`` says at its end. Raises StreamError when there are no class data."""
    if archive is None:
        raise StreamError(
            "Spark's class data were not written: check that the folder of the jars can be written and has 300 MB free,"
            " and that neither --conf nor the environment has JVM flags about them"
        )
    return f"Spark maps {archive} from now on ({archive.stat().st_size / 1e6:.0f} MB)."


if __name__ == "__main__":
    sys.exit(main())
