"""Tables, and the files they are made of, on any file system Spark writes to.

columns.py        a table's columns from a line of text
delta_files.py    Delta tables without Spark: what a table's log says of it, and its rows
delta_upkeep.py   upkeep of Delta tables: small files joined or sorted, unneeded files removed
forgotten.py      devices that were forgotten, and when
lake.py           the lake: one table per layer, by folder or by a catalog's name; how each is written and read
ranges.py         stretches of time and of names, few enough to be written into a query
storage.py        folders, of this machine or on whatever file system Spark writes to
"""
