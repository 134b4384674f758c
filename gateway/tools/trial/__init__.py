"""``gateway trial``: marked messages through the user's own brokers and the real worker; everything is removed after.

account.py     the account of a trial's messages and commands: counts, order, latencies
cleanup.py     runs the steps that undo a trial, the last first, however it ends; ``run`` names each step
commands.py    tries one ``[[commands]]``: writes commands, plays their devices, follows their statuses
plan.py        the plan of a trial: messages, sizes, names
process.py     the parent's side of the trial's gateway
publisher.py   the trial's devices: marked messages, each sent until it is acknowledged
run.py         one trial: create the topic, publish, run the gateway, read back, try commands, account, remove all
subject.py     the trial's gateway: the real worker, in a process of its own
"""
