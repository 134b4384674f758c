"""``gateway doctor``: finds faults between MQTT, this machine and Kafka, each with measurements and a remedy.

Modules with network access gather facts (``endpoint``, ``mqtt_facts``, ``kafka_facts``, …). Verdicts are pure functions
over facts (``*_verdicts``), so they are tested without a broker.

    admin_facts.py         facts from Kafka's administration, each question by itself
    broker_verdicts.py     verdicts over each Kafka broker: reachable, login accepted, batches accepted
    cluster_verdicts.py    verdicts over the Kafka cluster as a whole: controller, quorum, disks, limits, clock
    command_checks.py      facts and verdicts about commands: their topics and groups, and EMQX's other subscribers
    config_checks.py       the settings' own warnings, the data directory's owner, the gateway's certificates and tokens
    emqx_checks.py         facts and verdicts from EMQX's REST API: versions, limits, drops
    endpoint.py            tests one address step by step: name, port, TLS, certificate
    endpoint_verdicts.py   verdicts over one address: name, port, certificate
    examine.py             the whole examination: all groups at once, each with a time limit
    host_facts.py          facts about this machine: disk, descriptors, memory
    host_verdicts.py       verdicts over this machine: data_dir, room for the spool, fsync, descriptors, memory, CPU
    kafka_facts.py         facts from each Kafka broker by itself
    model.py               a check, and the report of all checks
    mqtt_facts.py          facts from each MQTT address, and whom the first working one admits
    mqtt_verdicts.py       verdicts over the MQTT brokers' answers
    running.py             facts and verdicts from the running gateway, if there is one
    text.py                the report for people: groups with their checks and remedies
    threads.py             questions with a time-out, and the reasons without an answer
    topic_verdicts.py      verdicts over the gateway's topics: existence, leaders, replicas
    wording.py             numbers in sentences
"""
