"""The data path from MQTT message to acknowledged Kafka record."""
