"""The comparison of the ledger topic with what Kafka holds: `gateway verify`.

before.py   what was lost before the gateway got it, as EMQX tells: for a verification
check.py    verifies an account: reads the ledger topic, then every partition it names, and says what it found
lives.py    the workers' side of the account: each life's terms, whether its records are all there
log.py      what a verification asks of Kafka
place.py    one partition's side of the account: which offsets we were told, and which of them Kafka has
reader.py   reads Kafka for a verification: with aiokafka, in no consumer group, a partition at a time
report.py   a verdict for people, as a table, and for programs, as JSON
"""
