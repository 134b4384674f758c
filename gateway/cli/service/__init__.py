"""Commands that run or control a gateway.

acknowledge.py    ``gateway acknowledge``: ends the problem of lost sessions
identity.py       ``gateway identity``: the owner of a data directory, and its adoption
reload.py         ``gateway reload``: gives changed settings to the running gateway, without a disconnect
restart.py        ``gateway restart``: replace the running workers one after the other
retire.py         ``gateway retire``: stop a running gateway for good
run.py            ``gateway run``: the bridge itself
"""
