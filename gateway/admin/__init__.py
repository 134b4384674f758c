"""Kafka's administration: brokers, topics, groups, leaders, and the few changes that a gateway's operator makes.

``kafka.KafkaAdmin`` is the entry; ``model`` has its results. Questions to Kafka block, so they run in commands or in a
thread. ``watch`` is asynchronous; a worker loads it only for ``admin.watch_groups``.

    messages/        definitions of Kafka messages that kafka-python 3.0 lacks
    audit.py         the audit of changes: a line of JSON before each action, and one after it
    changes.py       changes: topics created, grown, configured and deleted; leaders elected
    deletion.py      reasons not to delete a topic, and what would create it again
    errors.py        the administration's branch of the error tree
    everywhere.py    waits until every broker shows a change
    groups.py        consumer groups: members, committed offsets, ends of the log
    kafka.py         ``KafkaAdmin``: the connection to a cluster, and its questions
    lag.py           the lag of a group, and whether it is slow or has stopped
    leadership.py    the balance of leaders, as Kafka's controller computes it
    link.py          one connection to one broker, with a time-out for each question
    links.py         connections to all brokers: asks many at once, and goes on without silent ones
    login.py         the login of these commands, by ``[admin]`` or ``[kafka]``
    looking.py       reads a consumer group for ``gateway.admin.lag``
    model.py         Kafka's answers as immutable plain values, for tables and JSON
    progress.py      the progress of a running reassignment, from the sizes of the replicas
    protocol.py      Kafka's messages and logins of kafka-python 3.0, and two messages that it lacks
    reading.py       turns answers of Kafka's protocol into the model's values
    topic_apply.py   changes Kafka's topics to match the settings; may be repeated after an interruption
    topic_plan.py    compares the settings' topics with Kafka's, and plans the steps
    watch.py         watches consumer groups; the problems consumer-lag and consumer-unwatched
"""
