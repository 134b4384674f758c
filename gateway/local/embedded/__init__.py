"""Real brokers on this machine: Kafka and HiveMQ, started, watched and ended.

_hivemq.py              the HiveMQ process: a JVM inside this Python through JPype
_make_certificates.py   makes the files of ``certificates.py`` inside a JVM
access.py               how the embedded MQTT broker asks the access service
access_process.py       the access service on this machine, for the demo, development and tests
certificates.py         a certificate authority of our own for the embedded brokers' TLS listeners
dev.py                  embedded brokers that keep running in the background, for each project its own: start them
dev_server.py           the process that owns the background brokers
kafka.py                a real Apache Kafka, of one node or several, on this machine: for the demo
kafka_config.py         the server.properties of an embedded Kafka node
kafka_storage.py        Kafka's log directories: formatted as ``kafka-storage format`` does
mqtt.py                 a real MQTT broker, HiveMQ Community Edition, on this machine: for the demo
"""
