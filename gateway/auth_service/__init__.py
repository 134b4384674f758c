"""The service that EMQX asks about logins and topics: its HTTP side, metrics, and process. ``auth`` decides.

- ``http1``: requests out of bytes, no I/O; ``connection``: one connection of EMQX's, answers in order.
- ``dialect``: EMQX's words to ours and back; ``server``: listening, TLS, who is answered what, and when at last.
- ``operator``, ``metrics``: what the people who run it see; ``process``: ``gateway auth serve``.
"""
