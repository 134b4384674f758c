"""Dead letters beside their making (``bridge.produce.dead_letter``): their limits, reading them, replaying them.

limit.py          how many dead letters a route may make before it is stopped: a ceiling on rate and on share
reading.py        a dead-letter topic's records read back: dead letters put together from their parts
replay_marks.py   which dead letters have been replayed: marks beside them, in the same partition
route_stops.py    which routes are stopped because too many of their messages had to become dead letters
"""
