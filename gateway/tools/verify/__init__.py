"""`gateway verify`: compares the ledger topic with Kafka, and commands with their statuses.

before.py           losses before the gateway, by EMQX's counts
check.py            reads the ledger topic, then every partition in it, and compares
command_check.py    commands against the status topic, by the commits of their consumer group
command_log.py      reads Kafka for that
lives.py            the lives of workers: terms, missing records, end
log.py              what a verification reads in Kafka, as plain values
place.py            one partition: acknowledged offsets against those in Kafka
reader.py           reads Kafka for a verification: with aiokafka, in no consumer group, a partition at a time
"""
