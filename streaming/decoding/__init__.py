"""A schema folder, and Kafka's records as readings of its types.

avro_schemas.py       Avro payloads: the fields of a schema, and the decoding of one payload
binary.py             Avro and Protobuf payloads become columns: a Python function over Arrow's arrays
decode.py             finds each Kafka record's type in the schema folder; its reading, or what is wrong with it
device_schemas.py     the schema folder: what each type of devices sends, and in which units silver keeps it
faults.py             what can be wrong with a record, and what is wrong with a bad one, in words
fields.py             what is known of the devices' payloads once the schema folder is read: fields, signals, types
json_schemas.py       fields of a JSON payload, from a file of JSON Schema
protobuf_schemas.py   Protobuf payloads: the fields of a message, and the decoding of one payload
registry.py           the device registry: which type each device is of, and where it stands
schema_index.py       ``schemas.toml``, the index of a schema folder: types, where their records come from, units
shapes.py             where the types of a schema folder have what is asked of a payload, as Spark expressions
units.py              units of signals: how a number in one unit becomes one in another
"""
