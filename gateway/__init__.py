"""The service: MQTT side, worker, HTTP, command line, embedded brokers. Everything is wired together here."""
