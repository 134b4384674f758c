"""``gateway doctor``: what is wrong between MQTT, this machine and Kafka, each with what was measured and what to do.

Facts are gathered by what talks to a network (``endpoint``, ``mqtt_facts``, ``kafka_facts``, …); verdicts are pure
functions over facts (``*_verdicts``), so that each is tested without a broker.
"""
