"""The installed command ``gateway``, and what signals do before its command line is loaded."""

import _signal  # type: ignore[import-not-found]  # `signal` takes 8 ms to load: Ctrl-C there ended in a traceback
import sys


def main() -> int:
    """As ``gateway.cli.main.main``, which takes Ctrl-C from then on. Before, it ends the process at once.

    ``gateway run`` begins to hold back the signals that it handles later, see gateway.base.process.held_signals."""
    may_interrupt = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler  # not in a background job
    if may_interrupt:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    if sys.argv[1:2] == ["run"]:
        from gateway.base.process.held_signals import hold_back

        hold_back()
    from gateway.cli import main as command_line

    if may_interrupt:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    return command_line.main()
