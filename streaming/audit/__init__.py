"""The job ``audit``: what is in Kafka against what the gateways' ledger says was acknowledged.

job.py          the job ``audit``: what is in Kafka against what the gateways' ledger says was acknowledged
transforms.py   what an audit makes of Kafka's records and of the gateways' ledger
"""
