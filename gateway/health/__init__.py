"""What is wrong with a gateway: verdicts over facts, and the watches that gather them.

canary/            a synthetic device whose messages go the whole way, and are looked for at its end
emqx/              what EMQX knows of this gateway's sessions, and what it lost before the gateway got it
counts.py          what is wrong by what has been counted within the last minutes
diagnosis.py       a worker's health, judged when somebody asks: its parts as plain values, what is wrong with them
kafka.py           what is wrong between us and Kafka: which broker, which partitions, and who of them is to blame
lookouts.py        what a worker looks at from outside, where settings ask for it: EMQX's account of its sessions
model.py           what the health of a gateway is judged from, and what a judgement looks like
observation.py     what only time shows of a worker, looked at once a second: since when something is so, how fast
pace.py            how fast messages go through, over seconds to days
pace_verdicts.py   what is wrong with the speed of messages: slow ways, a budget that burns, too little CPU
verdicts.py        what is wrong, said so that somebody who has never seen the code knows what to do
"""
