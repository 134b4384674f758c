"""Servers that the tests start, which are neither MQTT nor Kafka brokers."""
