"""``gateway dlq``: reading, choosing, printing and replaying dead letters.

dlq.py         ``gateway dlq``: shows dead letters, and replays them through the present routes
path.py        the data path of a replay, with the present routes and interceptors
reader.py      reads dead-letter topics: all records, or single places
replay.py      ``gateway dlq replay``: claim, route, wait, mark; in that order, some hundred dead letters at a time
selection.py   the dead letters that a command is about, by filters or places
text.py        dead letters as text and JSON
"""
