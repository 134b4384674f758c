"""Checks of settings against each other: the rules of each side, and the code that runs them.

auth.py            relations between the settings of the access service
auth_backends.py   relations within the tables of the access service's user servers
client_tls.py      relations within any table of TLS settings: ``mqtt.tls``, ``auth.redis.tls``
commands.py        relations between the settings of commands, and with routes and the MQTT side
credentials.py     relations between the gateway's and operator's logins at EMQX and Kafka
flow.py            relations of memory, times and folders across the whole worker
http.py            relations between the settings of the HTTP port, and of secrets that open a port
jwt.py             relations between the settings of logins by token (``auth.jwt``)
kafka.py           relations between the settings of the Kafka side, and of routes and topics
mqtt.py            relations between the settings of the MQTT side
operate.py         relations between settings of operation: EMQX's REST API, the canary
rules.py           checks of settings against each other, before anything starts
spool.py           relations of the spool's settings with Kafka's and the gateway's own
tokens.py          relations within any token's table: ``mqtt.token``, ``kafka.sasl.token``
unused.py          settings that have no effect beside another one
"""
