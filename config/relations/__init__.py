"""Checks of settings against each other: the machinery, and the rules of each side.

auth.py            relations between the settings of the service that EMQX asks
auth_backends.py   relations within the tables of the servers that the access service asks about users
credentials.py     relations between the settings with which the gateway, or its operator
flow.py            relations of memory, times and folders across the whole worker
http.py            relations between the settings of the HTTP port
jwt.py             relations between the settings of logins by token (``auth.jwt``)
kafka.py           relations between the settings of the Kafka side, and of routes and topics
mqtt.py            relations between the settings of the MQTT side
operate.py         relations between the settings of those who operate the gateway: EMQX's REST API, the canary
rules.py           checks of settings against each other, before anything starts
spool.py           relations of the spool's settings with Kafka's and the gateway's own
tokens.py          relations within a token's table, wherever it stands: ``mqtt.token``, ``kafka.sasl.token``
"""
