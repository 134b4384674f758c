"""The access service's own database of users, rules, bans and tenants, and the files it is filled from.

edit.py           changing the built-in database: one transaction, by one person or process, all of it or nothing
file.py           the file of the built-in database: opening, its schema and migrations
first_start.py    what the service and EMQX need before they can run: a database with first users and rules
forget.py         erasing a device from the built-in database: whatever was kept under its name
records.py        what the built-in database holds, as values
rules.py          rules in the database: the list's order, and finding a subject's own without looking at others'
session.py        a transaction of the built-in database, which its edits share
store.py          the built-in database as the service reads it: users, rules, tenants, bans
tenants.py        tenants and bans in the database: edits within a transaction of ``Editor``
user_entries.py   one user of an import file: its fields, whatever file they came out of
user_formats.py   files of users: EMQX's bootstrap files, CSV and JSON, and this service's own export
user_hashing.py   hashing the readable passwords of a file of users, on all cores, and saying how far that is
users.py          users in the database: edits within a transaction of ``Editor``
values.py         what may be stored: names, groups, attributes
writer.py         what the service itself writes into the built-in database: hashes renewed at a login
"""
