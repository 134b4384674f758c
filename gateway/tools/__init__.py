"""What commands do beside running a gateway. The service imports nothing of it.

doctor/      ``gateway doctor``
migration/   from another bridge to this one
trial/       ``gateway trial``
verify/      the comparison of the ledger topic with what Kafka holds
explain.py   what would become of one message: sent through the data path's own parts
"""
