"""Parts that every process uses: logs, metrics, life cycle, memory. Nothing here talks to MQTT or Kafka.

process/             this process: its build, memory, user, threads and children, and what the system tells of it
command_metrics.py   metrics of commands to devices
group_plan.py        which groups of MQTT sessions a worker has, by its settings, and their client ids
instruments.py       counters, gauges and histograms that cost the data path next to nothing
lean.py              imports structlog without rich; import it first
lifecycle.py         the life of a service: its state, the order in which its parts start, and the stop in reverse
log_limits.py        limits a flood of log lines and reports how many were omitted
logs.py              structured logs: an event name that never changes, plus fields
lookout_metrics.py   metrics of EMQX's counts, the canary and watched consumer groups
metrics.py           every metric of a worker, defined once: name, kind, unit, labels, meaning
moments.py           moments as text: written in UTC to the second, read as people write them
problem.py           one problem, as the page, /status and the log show it
readiness.py         the decision behind ``/readyz``: would a message that arrives now reach Kafka in time? Pure
reload_plan.py       which changed settings a reload applies, and which need a restart
reload_state.py      the settings in use, as /status and metrics show them; the problem config-reload-failed
reports.py           files between commands and a running gateway in the data directory
signals.py           signals as stop requests (SIGTERM, SIGUSR1): the first is orderly, the second immediate
vitals.py            measurements of a worker once a second: stalls and rates
"""
