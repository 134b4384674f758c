"""``gateway command``: commands to devices, and what became of them.

command.py    ``gateway command``: its arguments
statuses.py   reads the status topics without a group, for ``list`` and ``show``
text.py       commands and their statuses as text and JSON
"""
