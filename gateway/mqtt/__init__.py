"""MQTT connections and sessions: reading, acknowledging, reconnecting.

client.py          paho's client on the gateway's stream: CONNECT, SUBSCRIBE, and the answers
connection.py      one MQTT connection on the bulk path: reading, acknowledging, the window of unacknowledged packet ids
errors.py          the MQTT side's branch of the error tree
flow.py            decides when the sessions of a group are read, flushed and paused
ingest.py          the hot path: the PUBLISH packets of a read straight into Kafka batches; finds QoS 2 copies
keepalive.py       decides when to ping a connection, and when the broker is dead
login.py           the credentials of a session: password, token, client certificate
orphans.py         drains and ends MQTT sessions of earlier settings
probe.py           a connection that examines an MQTT broker and leaves nothing behind
properties.py      the properties of a PUBLISH, read from their bytes (MQTT 5.0 sections 2.2.2 and 3.3.2.3)
publish_link.py    an MQTT connection that only publishes: for commands, and for the canary
reasons.py         failures of brokers and networks, and packets, in words; and as labels of metrics
renewal.py         reconnects sessions one at a time before their credentials expire
retry.py           the pause before a reconnect: short for a broker that is down, growing after refusals
servers.py         the next server of a session: configured addresses in turn, or a redirection
session.py         one MQTT session: keeps a client id connected and subscribed, from start to stop
session_state.py   the states of an MQTT session, and the table of its transitions
stream.py          a socket for paho with everything except PUBLISH
watched.py         a small connection in the event loop: its socket is read and written, and paho keeps it alive
websocket.py       the frames of a WebSocket, after paho's handshake
"""
