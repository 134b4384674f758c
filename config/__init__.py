"""The typed settings: their tables, how they are loaded, and what is wrong with them.

loading/          from files, variables and secret files to checked settings, and back to text
relations/        checks of settings against each other
values/           values that settings hold
auth.py           settings of the service that EMQX asks who may connect, publish and subscribe
error_words.py    errors of the system and of libraries in words for people
errors.py         the root of the error tree, and the exit statuses it maps to
extras.py         packages that only some commands need, and what installs them where this runs
http.py           settings of the operator's HTTP port
interceptors.py   settings of one interceptor in a chain
kafka.py          settings of the Kafka side
ledger.py         settings of the ledger topic
mqtt.py           settings of the MQTT side
operate.py        settings for those who operate the gateway: EMQX's REST API, Kafka's administration, the canary
origins.py        where values came from, and what is wrong with them
prose.py          sentences for people, in lines that fit the terminal they are read on
routes.py         settings of the way from an MQTT filter to a Kafka topic
schema.py         what the settings tree consists of: paths, kinds, environment names, texts
service.py        settings of the worker itself: flow control, dead letters, logs
settings.py       the typed settings tree
spool.py          settings of the spool: batches on disk while Kafka cannot take them
stream.py         settings of the Spark jobs, which run in a process of their own
stream_jobs.py    settings of each Spark job beside ``[stream]``, a table each
tls.py            the TLS table that every side has which connects to something
tokens.py         settings of the tokens that the gateway shows to EMQX and Kafka
wording.py        pydantic's findings in our words
"""
