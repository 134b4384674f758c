"""Commands about records: on their way, on disk, and in Kafka.

commands_text.py     the verdict of ``gateway verify --commands``, as a table for people and as data
compare.py           ``gateway compare``: two Kafka topics side by side, the old bridge's and ours
explain.py           ``gateway explain``: what would become of a message, step by step
explain_text.py      an explanation for people: one section for each station of the way
spool.py             ``gateway spool``: what waits on this machine's disk for Kafka, and how to take it elsewhere
spool_file.py        the file of ``gateway spool export``: JSON lines, one batch each
tail.py              ``gateway tail``: the records that reach Kafka, as they arrive
tail_text.py         records as ``gateway tail`` shows them: a line each
verify.py            ``gateway verify``: does Kafka have everything that it acknowledged to this gateway?
verify_text.py       its verdict, as a table for people and as data
"""
