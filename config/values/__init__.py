"""Values that settings hold: how each is written, parsed and limited. Nothing here knows a table.

addresses.py           addresses of brokers and other servers: what may be written, and its parts
auth_placeholders.py   what a query, a key or a distinguished name of the `[auth]` tables may ask of a login
grammar.py             how a person writes a duration and a size: ``20ms``, ``1h30m``, ``32MiB``, or a plain number
jwt_secrets.py         the shared secret of tokens: its bytes, and what it may not be
model.py               the base of every table of settings
names.py               names that MQTT and Kafka accept: filters, topics, and templates of them
patterns.py            regular expressions that settings bring: Python's syntax and meaning, matched in linear time
secret_files.py        secrets that live in files of their own, and may change there while the gateway runs
window_shapes.py       how a person writes the windows of an aggregate: ``1m tumbling``, ``15m sliding 5m``
"""
