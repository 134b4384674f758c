"""EMQX's view of this gateway's sessions, and EMQX's losses of messages for them.

api.py        a client of EMQX 5's REST API that only reads
cluster.py    stopped nodes of EMQX's cluster, and their sessions that still get messages
losses.py     EMQX's losses of one session's messages, counted over EMQX's own resets
model.py      the answers of EMQX's REST API, as far as the gateway uses them
problems.py   problems between EMQX and a worker, in sentences
watch.py      the watch of this worker's sessions in EMQX, every ``emqx.interval``
"""
