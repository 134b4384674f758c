"""Credentials and access decisions, both ways.

Outward, ``auth.outward``: how the gateway proves itself to EMQX and Kafka. Inward, the rest: what the service that
EMQX asks decides about a device's login and its topics. HTTP, metrics and the command line of that service are the
gateway's (``gateway.auth_service``, ``gateway.cli.auth``); what is here decides.

What has bitten elsewhere and must stay true:

- EMQX takes every failure of ours, a time-out, a 403, a 500, for "ask the next one", and at the end of its list lets
  in. So each request gets a 200 with an explicit result, in time.
- An unknown user and a wrong password cost the same time and get the same answer.
- A rule whose placeholder has no value, or one that holds ``+``, ``#`` or ``/``, matches nothing.
- What was decided from data that has changed since is not served from a cache.

    backends/      the authenticators that ``auth.logins.chain`` names, one module each
    jwt/           tokens that devices show
    logins/        the decisions
    outward/       how the gateway proves itself to EMQX and Kafka
    rules/         rules about topics
    store/         the access service's own database of users, rules, bans and tenants, and the files it is filled from
    errors.py      what can go wrong here
    hashing.py     checks and makes password hashes without holding up the event loop
    members.py     members of JSON objects: no name stands twice
    model.py       what a login and an access are asked about, who a device then is, and what the answers are
    moments.py     moments as people write them: ``2027-01-31``, ``2027-01-31T12:00:00+01:00``, ``30d`` from now
    names.py       names that strangers chose: fit for logs, the longest that is looked up (``NAME_MAX``), and as
                   lock-outs and bans compare them (``lock_name``, ``ban_name``)
    networks.py    addresses and networks as the database keeps them: one spelling each
    passwords.py   how passwords are stored, and whether one matches what is stored
    ports.py       what the chain, the decisions and the outward credentials ask of their parts
    service.py     the service that EMQX asks: logins to ``auth.logins.logins``, topics to ``auth.logins.accesses``
"""
