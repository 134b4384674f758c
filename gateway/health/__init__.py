"""Problems of a gateway: verdicts over facts, and the watches that gather the facts.

canary/            a synthetic device whose messages are read back from Kafka
emqx/              EMQX's view of this gateway's sessions, and its losses
counts.py          problems from counts of the last minutes
diagnosis.py       the health of a worker, on request: its parts as plain values, and its problems
kafka.py           problems between the gateway and Kafka: which broker, which partitions, which is the cause
lookouts.py        the watches of a worker: EMQX's counts of its sessions, the canary, the consumers
measured.py        verdicts over one measured value, for a worker's health and for ``gateway doctor``
model.py           the facts that health is judged from
observation.py     facts that only time shows, observed once a second: durations, rates, counts
pace.py            the speed of messages, over seconds to days, and how long this process waits for a CPU
pace_verdicts.py   problems of speed: slow ways, a budget that burns, too little CPU
verdicts.py        the problems that follow from a worker's snapshot, worst first
"""
