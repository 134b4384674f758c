"""Limits and reading of dead letters. ``bridge.produce.dead_letter`` writes them, ``gateway.cli.dead_letters`` replays
them.

limit.py          the ceiling on dead letters of a route, as a rate and as a share of its messages
reading.py        reads records of a dead-letter topic: joins dead letters from their parts
replay_marks.py   marks of replayed dead letters, in the same partition, and what several marks mean
route_stops.py    stops routes with too many dead letters, and tries them again
"""
