"""MQTT connections and sessions: reading, acknowledging, reconnecting.

client.py       paho's client with our stream in place of its socket: CONNECT and SUBSCRIBE
connection.py   one MQTT connection on the bulk path: reading, the window of unacknowledged packet ids
errors.py       the MQTT side's branch of the error tree
flow.py         when to read, when to flush, when to pause: one rhythm for all sessions of a worker
ingest.py       the hot path: one pass over what a read brought, PUBLISH packets straight into Kafka batches
keepalive.py    when a connection is pinged, and when the other side is gone
login.py        what a session shows to the broker when it connects: user name, password or token
orphans.py      MQTT sessions that exist at the broker, and in the settings no more: they are resumed
packets.py      the names of MQTT's control packets, for messages
probe.py        a visit to an MQTT broker that leaves nothing behind: connect, look at what it grants
properties.py   the properties of a PUBLISH, read from their bytes (MQTT 5.0 sections 2.2.2 and 3.3.2.3)
publisher.py    one MQTT connection that publishes at QoS 1, made as the gateway's sessions are: any transport
reasons.py      what brokers and networks answer instead of yes: in words for people, and as the metrics' labels
renewal.py      sessions connect again before what they have shown to the broker expires: one at a time
retry.py        when a session tries to connect again: soon while the broker is away
servers.py      which server a session connects to next: the configured addresses in turn
session.py      one MQTT session: a client id that is kept connected and subscribed, from start to stop
stream.py       the seam between paho and the bulk path: a socket that shows paho everything but PUBLISH
"""
