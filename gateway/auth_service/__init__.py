"""The service that EMQX asks about logins and topics: its HTTP side, metrics, and process. ``auth`` decides.

- ``http1``: requests out of bytes, no I/O; ``connection``: one connection of EMQX's, answers in order.
- ``dialect``: EMQX's words to ours and back; ``server``: listening, TLS, who is answered what, and when at last.
- ``operator``, ``metrics``: what the people who run it see; ``process``: ``gateway auth serve``.

    connection.py     one connection of EMQX's: requests in, answers out in the order of the requests
    dialect.py        EMQX's questions to ours: the bodies of its HTTP authentication and authorisation
    http1.py          HTTP/1.1 requests out of the bytes of a connection
    listener.py       the port that EMQX asks at: opened, its connections counted and bounded, TLS that can be renewed
    metrics.py        the metrics of ``gateway auth serve``; docs/metrics.md prints them with the gateway's own
    operator.py       what the service answers on the operator's port: ``/metrics``, ``/healthz``, ``/readyz``
    process.py        ``gateway auth serve``: the parts of the service put together, started, watched and stopped
    requirements.py   what the service needs beyond settings that are right: packages, and files that can be read
    server.py         answers EMQX: ``POST /authn`` and ``POST /authz``, each with a 200 and an explicit result
"""
