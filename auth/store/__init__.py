"""The access service's own database of users, rules, bans and tenants, and the files it is filled from.

edit.py           edits of the built-in database, each in one transaction
file.py           the file of the built-in database: opening, schema, migrations, the meaning of SQLite's errors
first_start.py    makes what service and EMQX need to start: database, first users and rules, secrets
forget.py         erases a device from the built-in database
records.py        users, tenants, bans, rules and audit entries as values
rules.py          rules in the database, in their order; a subject's rules are found by index
session.py        one transaction of the built-in database, shared by its edits
store.py          reads users, rules, tenants and bans for the service
tenants.py        tenants and bans in the database: edits within a transaction of ``Editor``
user_entries.py   one user of an import file, from its fields
user_formats.py   files of users: EMQX's bootstrap files, CSV and JSON, and this service's own export
user_hashing.py   hashes readable passwords of an import on all cores, with progress
users.py          users in the database: edits within a transaction of ``Editor``
values.py         checks of stored names, groups and attributes
writer.py         writes the service's own changes: renewed hashes and automatic bans
"""
