"""The spool on disk: batches that Kafka cannot take now. ``bridge.produce.spooler`` decides what goes there.

adoption.py   gives a spool to another instance, with the data directory that it takes over
files.py      the files of the spool's folder, its lock, and the small file of topics
index.py      the place of each batch in the spool's log: a SQLite database
inspect.py    reads a spool without opening it, also while a gateway uses it
opening.py    opens a spool, and rebuilds its index; a damaged one is renamed and kept
record.py     the records of the spool's log: a batch with its description
recovery.py   the start of a spool: keeps what can be read, counts and cuts the damage that ``segments`` finds
removal.py    removes the batches and segments that ``store`` or ``recovery`` finds unneeded: first from the index,
              then files
segments.py   the spool's log: files of some 16 MiB, each written once; tells whole records from damaged ones
spool.py      the event loop's side: durable when ``append`` returns; refuses beyond ``spool.max_bytes``
state.py      the open files and numbers of the spool's thread
store.py      the thread's side: append, read, remove; each blocks on the disk
tally.py      a few numbers per partition beside the index
thread.py     the thread that waits for the disk, and its jobs
"""
