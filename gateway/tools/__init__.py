"""Commands that do not run a gateway. The service imports nothing of it.

doctor/              ``gateway doctor``
migration/           imports from another bridge, and comparison with it
trial/               ``gateway trial``
verify/              compares the ledger topic with Kafka
explain.py           ``gateway explain``: the way of one message through the data path's own parts
explain_command.py   ``gateway explain --command``: the way of one command through the dispatcher
send_command.py      writes commands to their Kafka topic and follows their statuses
"""
