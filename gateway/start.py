"""The installed command ``gateway``. Ctrl-C before its command line is loaded ends it without a traceback."""

import signal


def main() -> int:
    """As ``gateway.cli.main.main``, which ends the process in the same way from then on."""
    try:
        from gateway.cli import main as command_line
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        raise
    return command_line.main()
