"""The typed settings: their tables, loading and checks.

loading/          from files, variables and secret files to checked settings, and back to text
relations/        checks of settings against each other
values/           values that settings hold
auth.py           settings of the access service
commands.py       settings of commands: from Kafka topics to devices, with a status of each
error_words.py    errors of the system and of libraries in words for people
errors.py         the root of the error tree, and the exit statuses it maps to
extras.py         packages that only some commands need, and the command that installs them
http.py           settings of the operator's HTTP port
interceptors.py   settings of one interceptor in a chain
kafka.py          settings of the Kafka side
ledger.py         settings of the ledger topic
mqtt.py           settings of the MQTT side
operate.py        settings of operation: EMQX's REST API, Kafka's administration, the canary
origins.py        origins of values, and problems with them
prose.py          wraps sentences to the terminal's width
removed.py        settings of earlier versions, each with its replacement
routes.py         settings of the way from an MQTT filter to a Kafka topic
schema.py         the parts of the settings tree: paths, kinds, environment names, texts
service.py        settings of the worker itself: flow control, dead letters, logs
settings.py       the typed settings tree
spool.py          settings of the spool: batches on disk while Kafka cannot take them
stream.py         settings of the Spark jobs, which run in a process of their own
stream_jobs.py    settings of each Spark job beside ``[stream]``, a table each
tls.py            the TLS table of every outgoing connection
tokens.py         settings of the gateway's own tokens for EMQX and Kafka
wording.py        pydantic's errors in our words
"""
