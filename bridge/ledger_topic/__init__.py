"""bridge/ledger_topic."""
