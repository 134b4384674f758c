"""This process, as the operating system sees it. Each module stands alone.

build.py           which build runs: compiled or pure
child.py           Python processes of ours that are spoken to in JSON lines
daemon_thread.py   blocking work in a thread that the end of the process does not wait for
held_signals.py    signals that wait until there is a handler for them
machine_facts.py   the operating system on this process: sockets by state, descriptors, memory, CPU
memory.py          keeps a long-running worker small: one malloc arena, few garbage collections
running_user.py    the user of a command, for audits
"""
