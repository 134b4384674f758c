"""The comparison of the ledger topic with what Kafka holds: `gateway verify`."""
