"""The built-in interceptors, a module for each. ``bridge.intercept.loading`` lists their names; none is imported
before a route uses it.

    age_out.py       ``age_out``: drops what has come too late to be of use
    expression.py    expressions over a message: topic, properties, JSON fields; compiled once
    fields.py        ``fields``: renames, removes and adds fields of a JSON value, in that order
    filter.py        ``filter``: lets through what an expression is true for
    headers.py       ``headers``: renames, removes and adds record headers, in that order
    json_schema.py   ``json_schema``: fails on values that a JSON Schema does not describe
    loading.py       from settings to chains: interceptors found by name, their options checked, their places in order
    mask.py          ``mask``: hides what must not reach Kafka, behind a keyed digest or a fixed text
    paths.py         places in JSON documents, written with dots: ``reading.values.0``, ``users.*.name``
    sample.py        ``sample``: lets a share of the records through
    split.py         ``split``: a record for each element of a JSON array
"""
