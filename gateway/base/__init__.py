"""What every process of ours stands on: logs, metrics, life cycle, memory. Nothing here knows MQTT or Kafka.

group_plan.py        which groups of MQTT sessions a worker has, by its settings
instruments.py       counters, gauges and histograms that cost the data path next to nothing
lean.py              import this before anything that imports structlog, to have that without rich
lifecycle.py         the life of a service: its state, the order in which its parts start
log_limits.py        what keeps a flood of log lines from filling a disk, without hiding that there was one
logs.py              structured logs: an event name that never changes, plus fields
lookout_metrics.py   metrics of what looks at the gateway from outside: EMQX's account of our sessions, the canary
machine_facts.py     what the operating system says of this process: its sockets by state, its descriptors
memory.py            keeps a long-running worker small: one malloc arena, what the start left behind given back
metrics.py           every metric of a worker, defined once: name, kind, unit, labels, meaning
moments.py           moments as all that the gateway says has them (UTC, to the second), and as people write them
problem.py           one thing that is wrong, as the page, /status and the log tell of it
readiness.py         the decision behind ``/readyz``: would a message that arrives now reach Kafka in time? Pure
reload_metrics.py    what a reload of the settings leaves behind: the supervisor's where there is one
reload_plan.py       what is to be done about settings that were read again
reload_state.py      the settings in force, as /status tells of them
reports.py           what commands and a running gateway leave for each other in the data directory
running_user.py      who runs a command, for the accounts of what was changed
signals.py           SIGTERM, SIGINT and SIGHUP stop, SIGUSR1 retires: the first asks for an orderly stop
vitals.py            what a worker notices about itself once a second: waits and rates
"""
