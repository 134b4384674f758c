"""The authenticators that ``auth.logins.chain`` names, one module each. Imported by the one that builds the chain, and
then only those that are in it: each pulls in its client library.

    breaker.py           whether a backend is worth asking: a circuit breaker that decides from events and the time
    database.py          the built-in database in the chain
    foreign.py           what the authenticators over somebody else's table or hashes have in common
    jwt.py               logins by JSON Web Token
    ldap.py              users in an LDAP directory, which checks the password itself
    ldap_connection.py   one connection to a directory: a question at a time, and whom it is bound as
    ldap_filter.py       a search filter (RFC 4515) with placeholders, read once; values are put into its encoded form
    ldap_messages.py     the few LDAP messages that a login takes (RFC 4511), to bytes and back; no I/O
    local_users.py       the base of authenticators over users that this service itself keeps
    mysql.py             users in MariaDB or MySQL, through aiomysql
    network_causes.py    why a server could not be reached, as far as the operating system and TLS say
    postgresql.py        users in PostgreSQL, through asyncpg
    record.py            what a database says of a user: its columns or fields, checked, and what follows for a login
    redis.py             users in Redis: a hash for each, found by a key that the login's names are part of
    remote.py            what all authenticators that ask another server have in common: connections, time-outs
    templates.py         texts of settings with ``${username}`` and its like, and what a login puts there
    users_file.py        a file of users in the chain: for a few devices without a database
"""
