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
"""
