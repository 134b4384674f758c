"""What EMQX knows of this gateway's sessions, and what it lost before the gateway got it.

api.py        a client of EMQX 5's REST API, for looking alone: it changes nothing there
cluster.py    nodes of EMQX's cluster that are stopped
losses.py     what EMQX lost of one session's messages, counted over EMQX's own resets
model.py      what EMQX's REST API tells, as far as the gateway asks
problems.py   what is wrong between EMQX and a worker, in sentences: one for each kind of trouble
watch.py      looks at this worker's sessions in EMQX every ``emqx.interval``
"""
