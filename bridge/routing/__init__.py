"""From an MQTT topic to a Kafka topic, key and headers. Pure: no I/O, no clock.

change.py        which routes take over messages from others, and may put their records elsewhere
filter_trie.py   a tree of topic filters by level: which filter matches a topic first, which cover a filter
filters.py       MQTT topic filters as sets of topics: validation, matching, covering
headers.py       record headers made from a message's properties, flags and identity
lint.py          what routes do that their author may not have meant, found from settings alone
router.py        from an MQTT message to a Kafka topic, key and headers: routes in order
template.py      templates that make a Kafka topic, a key or a header value from a message: ``devices-${topic[1]}``
topic_rule.py    which Kafka topics a route may write to: names made from what devices send are not trusted
"""
