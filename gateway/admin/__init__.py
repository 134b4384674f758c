"""Kafka as its administrator sees it: brokers, topics, groups, leaders, and the few changes a gateway's operator makes.

``kafka.KafkaAdmin`` is the face; ``model`` holds what it tells. Everything here blocks, and belongs into the command
line or a thread; nothing of it is loaded by a worker that runs.

    messages/        messages of Kafka's protocol that kafka-python 3.0 lacks, in the form in which it reads its own
    audit.py         the account of what was changed: a line of JSON before each action, and one after it
    changes.py       the few changes that a gateway's operator makes: topics made, grown, configured and deleted
    deletion.py      what speaks against deleting a topic, and what would bring it back
    errors.py        the administration's branch of the error tree
    everywhere.py    waiting until every broker knows of a change
    groups.py        consumer groups: who is in them, what they have committed, and how far they are behind
    kafka.py         ``KafkaAdmin``: what Kafka tells its administrator
    lag.py           how far a group is behind, and whether it moves
    leadership.py    how evenly partitions are led, as Kafka's controller computes it
    link.py          one connection to one broker: a question, its answer, and an end to the waiting
    links.py         the brokers of a cluster: whom to ask, many at once, and what to do about one that does not answer
    login.py         how the administrating commands prove themselves to Kafka: as ``[admin]`` says
    looking.py       a look at a consumer group: what Kafka tells of it now, as ``gateway.admin.lag`` judges it
    model.py         what Kafka tells its administrator: immutable, with plain values, ready for a table or JSON
    progress.py      how far a running reassignment is, from the sizes of the replicas
    protocol.py      Kafka's messages and logins as kafka-python 3.0 has them, and two messages that it lacks
    reading.py       answers of Kafka's protocol as the model's plain values
    topic_apply.py   makes Kafka's topics what the settings say, and goes on where something was interrupted
    topic_plan.py    what the settings' topics should be, what they are, and the steps from one to the other
    watch.py         watches the consumer groups that settings name
"""
