"""Real brokers on this machine: Kafka and HiveMQ, started, watched and ended.

_hivemq.py          the HiveMQ process: a JVM inside this Python through JPype
access.py           how the embedded MQTT broker asks the access service
access_process.py   the access service on this machine, for the demo, development and tests
dev.py              embedded brokers that stay in the background, for each project its own
dev_server.py       the process that owns the background brokers
kafka.py            a real Apache Kafka, of one node or several, for the demo, development and tests
kafka_config.py     the server.properties of an embedded Kafka node
kafka_storage.py    Kafka's log directories: formatted as ``kafka-storage format`` does
mqtt.py             a real MQTT broker, HiveMQ Community Edition, for the demo, development and tests
"""
