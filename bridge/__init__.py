"""The data path: from a received MQTT message to a Kafka record, a spool entry or a dead letter.

What has bitten and must stay true:

- A QoS 1 or 2 message is acknowledged when Kafka (``acks=all``) or the fsynced spool has it, never earlier.
- Acknowledgements leave in the order the messages came.
- A partition has one batch under way. While the spool holds records of a partition, newer ones go behind them.
- Every message is in exactly one term of the ledger, at any moment.
- What is held in memory is counted in bytes and bounded.

    commands/         the way down: from records of command topics to MQTT messages, and their statuses
    dead_letters/     limits and reading of dead letters, marks of replays
    intercept/        the built-in interceptors, a module for each
    kafka/            the Kafka adapter
    ledger_topic/     the ledger topic
    produce/          from a message to an acknowledged batch
    routing/          from an MQTT topic to a Kafka topic, key and headers
    spool/            the spool on disk
    backoff.py        pauses before the next attempt (exponential, capped, spread), and time-outs that brokers get
    certificate.py    when a client certificate ends, read from its file
    errors.py         the data path's branch of the error tree
    fresh_secret.py   a secret as its file has it now
    interceptors.py   interceptors: what looks at, changes, multiplies or drops records between MQTT and Kafka
    ledger.py         the loss ledger: every MQTT message taken in is, at any moment, in exactly one place
    message.py        a received message as templates and slow routes see it
    ports.py          Protocols: a Kafka producer, a store on disk, a source of tokens
    record.py         a record on its way through the interceptors
    tls.py            TLS contexts from settings, for both sides; they follow the files that the settings name
    topic_writer.py   writes an internal topic through the producer of the routes
    waiting.py        waits that have an end: for what is asked for, an event, a moment, a beat, tasks no longer wanted
    wire.py           names and encodings of what is written into Kafka records; of statuses: commands/model.py
"""
