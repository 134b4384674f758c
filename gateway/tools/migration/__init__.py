"""Imports settings from another bridge, and compares its Kafka topic with the gateway's.

compare.py           compares the records of two topics
emqx.py              EMQX's rules, Kafka actions and connectors, as its REST API shows them
emqx_action.py       EMQX's Kafka action as a route and producer settings
emqx_connector.py    EMQX's Kafka connector as the table ``[kafka]``
emqx_sql.py          parses the SQL of EMQX's rules, as far as it has a counterpart
emqx_words.py        EMQX's conditions and templates as expressions of ``filter`` and templates
findings.py          the result of an import: settings, and findings about parts without a counterpart
identity.py          the identity and the compared parts of a record
routes.py            filters and the order of imported routes: the first that matches takes a message
telegraf.py          a Telegraf configuration with ``inputs.mqtt_consumer`` and ``outputs.kafka`` as settings of
                     this gateway
telegraf_output.py   Telegraf's ``outputs.kafka``: the table ``[kafka]``, and topic, key and headers of the routes
toml_text.py         imported settings as the text of a TOML file, and the proof that they load
"""
