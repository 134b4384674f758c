"""What ``gateway dlq`` and its neighbours share: reading, choosing, printing and replaying dead letters.

path.py        the data path of a replay: routes and interceptors as they are now
reader.py      reads dead-letter topics for ``gateway dlq``: everything in them, or single places
replay.py      ``gateway dlq replay``: claim, route, wait, mark; in that order, some hundred dead letters at a time
selection.py   which dead letters a ``gateway dlq`` command is about: everything read once, then filters or places
text.py        dead letters as people and programs read them: a table, one in full, JSON
"""
