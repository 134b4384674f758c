"""The service that EMQX asks about logins and topics: its HTTP side, metrics, and process. ``auth`` decides.

dialect.py        reads the bodies of EMQX's questions
metrics.py        the metrics of ``gateway auth serve``; docs/metrics.md prints them with the gateway's own
operator.py       answers on the operator's port: ``/metrics``, ``/healthz``, ``/readyz``, ``/status``
process.py        ``gateway auth serve``: makes, starts, watches and stops the parts of the service
requirements.py   checks for missing packages and unreadable files
server.py         answers EMQX's ``POST /authn`` and ``/authz``, each with a 200 and an explicit result, within
                  ``auth.limits`` (connections, body size, time)
"""
