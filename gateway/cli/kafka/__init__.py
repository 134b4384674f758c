"""Commands that administer Kafka: topics, consumer groups, leaders and brokers.

cluster.py    ``gateway cluster``: Kafka's brokers, its controller, and what moves between them
common.py     shared by these commands: options, the connection, asking before a change (each with its own words)
groups.py     ``gateway groups``: consumer groups, their coordinators and members
leaders.py    ``gateway leaders``: the partitions that each broker leads, and elections of preferred leaders
topics.py     ``gateway topics``: Kafka's topics as they are, and as the settings want them
"""
