"""The bridges an engineer writes first, for scale: paho's callbacks, a Kafka client, acknowledgement after delivery."""
