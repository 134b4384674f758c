"""Values of settings: their notation, parsing and limits. Nothing here depends on a table.

addresses.py           addresses of brokers and other servers, and their parts
auth_placeholders.py   placeholders in queries, keys and distinguished names of the `[auth]` tables
files.py               reading a user's file, which may be the wrong one
grammar.py             durations and sizes: ``20ms``, ``1h30m``, ``32MiB``, or a plain number
jwt_secrets.py         the shared secret of tokens: its bytes and limits
model.py               the base of every table of settings
names.py               names that Kafka accepts, and templates of them
patterns.py            regular expressions of settings: Python's meaning, in linear time
secret_files.py        secrets in files, which may change while the gateway runs
topic_filters.py       MQTT topic filters as sets of topics: validity, covers, overlaps
window_shapes.py       windows of aggregates: ``1m tumbling``, ``15m sliding 5m``
"""
