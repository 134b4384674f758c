"""The spool on disk: batches that Kafka cannot take now. ``bridge.produce.spooler`` decides what goes there.

adoption.py   giving a spool to another instance: for a data directory that is taken over with all that waits in it
files.py      the spool's folder: which file is what, the lock, and the small file of topics
index.py      where each batch of the spool's log stands: a SQLite database
inspect.py    looking at a spool without opening it: read-only, also while a gateway uses it
opening.py    opening a spool, and making its index anew: a damaged one is put aside, never written over
record.py     what the spool's log holds: batches that describe themselves
recovery.py   what a spool holds, when it is opened or its index made anew: all that can be read is kept
removal.py    removing batches and segments from a spool: index first, then files
segments.py   the spool's log: files of some 16 MiB, written once from front to end
spool.py      batches that Kafka cannot take now, on disk until it can: durable when ``append`` returns
state.py      what the spool's thread knows while it works
store.py      the spool as its thread sees it: append, read, remove, one after the other, each blocking on the disk
tally.py      a few numbers per partition beside the index
thread.py     the thread in which the spool waits for its disk, and how the event loop talks with it
"""
