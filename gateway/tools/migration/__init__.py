"""From another bridge to this one: its settings translated, and its Kafka topic compared with ours.

compare.py           two topics side by side: what one bridge has written and the other has not
emqx.py              EMQX's rules, Kafka actions and connectors, as its REST API shows them
emqx_action.py       EMQX's Kafka action as a route, and what its producer is set to
emqx_connector.py    EMQX's Kafka connector as the table ``[kafka]``
emqx_sql.py          the SQL of EMQX's rules, as much of it as has a counterpart here
emqx_words.py        conditions and templates of EMQX in the words of this gateway: expressions of ``filter``
findings.py          what an import makes: settings of ours
identity.py          by what a record is found again in another topic, and what of it is compared
routes.py            the order of imported routes: the first that matches takes a message
telegraf.py          a Telegraf configuration with ``inputs.mqtt_consumer`` and ``outputs.kafka`` as settings of
                     this gateway
telegraf_output.py   Telegraf's ``outputs.kafka``: the table ``[kafka]``, and topic, key and headers of the routes
toml_text.py         imported settings as the text of a TOML file, and the proof that they load
"""
