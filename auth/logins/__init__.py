"""The decisions: may this device connect, may it publish or subscribe here.

accesses.py         EMQX's question about a topic: bans and tenants first, then ``auth.rules.rules`` decides
answers.py          the answer to a login that is let in, as the bytes that EMQX is sent
cache.py            logins that were verified or refused a moment ago, so that asking again costs no hash and no query
chain.py            authenticators in their order: the first that knows the client decides
counts.py           what the service has counted since its start, as plain integers
decisions.py        decisions about topics, remembered: what a client may was decided from the same data a moment ago
events.py           what the service writes to the log about logins: one line for each refusal as long as there are few
explain.py          who decides about a login and an access, and why the others did not: ``gateway auth explain``
load_shedding.py    how many logins are verified at a time and in a second; the others are shed at once
lockouts.py         lock-outs and flapping: which names failed too often, and which clients connect too often
login_attempts.py   attempts to log in: by which names a failure counts, and what ends a lock-out early
logins.py           logins: from EMQX's question to the answer, cheapest first
reasons.py          why a login or an access was answered as it was: closed sets, for metrics, logs and ``explain``
"""
