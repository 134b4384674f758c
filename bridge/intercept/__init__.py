"""The built-in interceptors, a module for each. ``bridge.intercept.loading`` lists their names; none is imported
before a route uses it.

    age_out.py       ``age_out``: drops messages that are too old
    expression.py    expressions over a message: topic, properties, JSON fields; compiled once
    fields.py        ``fields``: renames, removes and adds fields of a JSON value, in that order
    filter.py        ``filter``: keeps messages for which an expression is true
    headers.py       ``headers``: renames, removes and adds record headers, in that order
    json_schema.py   ``json_schema``: fails on values that a JSON Schema does not describe
    loading.py       from settings to chains: finds interceptors by name and checks their options
    mask.py          ``mask``: replaces values by a keyed digest or a fixed text
    paths.py         places in JSON documents, written with dots: ``reading.values.0``, ``users.*.name``
    sample.py        ``sample``: keeps a share of the records
    split.py         ``split``: a record for each element of a JSON array
"""
