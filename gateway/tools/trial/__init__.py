"""``gateway trial``: marked messages through somebody's own brokers, with the real worker between, and nothing left.

account.py     what became of a trial's messages: counts, order, latencies
cleanup.py     what a trial has made and has to take away again, whatever ends it
plan.py        what one trial does: how many messages of which size
process.py     the parent's side of the trial's gateway
publisher.py   the trial's devices: marked messages, as fast as they come back, each until it is acknowledged
run.py         one trial from beginning to end: topic, publisher, gateway, reading back, account
subject.py     the trial's gateway: the real worker, in a process of its own
"""
