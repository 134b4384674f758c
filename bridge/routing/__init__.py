"""From an MQTT topic to a Kafka topic, key and headers. Pure: no I/O, no clock.

change.py        finds routes that take over messages from others when settings change
filter_trie.py   a tree of topic filters by level: finds the first that matches a topic, and those that cover a filter
filters.py       sets of MQTT topic filters: ``$share/…`` parsed and written, and what covers what
headers.py       record headers made from a message's properties, flags and identity
lint.py          finds likely mistakes in routes, from settings alone
router.py        routes in order: renders a message's Kafka topic, key and headers; the subscriptions they need
template.py      parses and compiles a route's templates, such as ``devices-${topic[1]}``
topic_rule.py    the Kafka topics that a route may write to; names made from device data are checked
"""
