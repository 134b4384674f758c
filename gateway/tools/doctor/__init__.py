"""``gateway doctor``: what is wrong between MQTT, this machine and Kafka, each with what was measured and what to do.

Facts are gathered by what talks to a network (``endpoint``, ``mqtt_facts``, ``kafka_facts``, …); verdicts are pure
functions over facts (``*_verdicts``), so that each is tested without a broker.

    admin_facts.py         what Kafka tells its administrator, each question by itself
    broker_verdicts.py     verdicts over each Kafka broker: can it be reached, does it let us in, does it take records
    cluster_verdicts.py    verdicts over the Kafka cluster as a whole: controller, quorum, disks, limits, clock
    config_checks.py       the settings' own warnings, whose the data directory is
    emqx_checks.py         what EMQX itself says: its versions, its limits against our flow
    endpoint.py            one address, a step at a time: its name, its port, TLS and its certificate
    endpoint_verdicts.py   verdicts over one address: its name, its port, its certificate
    examine.py             the whole examination: every group at once, each within its time
    host_facts.py          what this machine has for the gateway: disk, descriptors, memory
    host_verdicts.py       verdicts over this machine
    kafka_facts.py         what the Kafka brokers answer, each asked by itself
    model.py               what a check says, and what a whole examination comes to
    mqtt_facts.py          what the MQTT brokers answer: each address by itself
    mqtt_verdicts.py       verdicts over what the MQTT brokers answered
    running.py             the gateway that runs with these settings, if one does
    text.py                the report for people: groups with their checks, a fix under what needs one
    threads.py             blocking calls with an end to the waiting
    topic_verdicts.py      verdicts over the gateway's topics: are they there
    wording.py             how numbers are said in sentences
"""
