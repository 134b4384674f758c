"""Several workers under one process, which starts, watches, replaces and stops them.

    supervisor.py   the process: its lock, signals, HTTP port, reload, stop
    fleet.py        all slots together: rolling, scaling, ending them
    slot.py         one slot and the worker processes that hold it, one after another
    process.py      a worker process as its supervisor sees it
    channel.py      what the two say to each other, a JSON object per line
    member.py       the worker's end of it: warm first, take over at the word
    answers.py      the HTTP port's answers, gathered from the workers
    exposition.py   several workers' metrics as one
    cpu.py          how many workers this machine is for
    place.py        the supervisor's lock and report in the data directory

The supervisor carries no message, so nothing here imports a client library of MQTT or Kafka.

    fleet_status.py   the workers' views of health as one: what /status says of a whole gateway
    metrics.py        what the supervisor itself counts
    prefork.py        the first workers as forks of a process that has loaded what they need
    reload.py         changed settings for all running workers, or for none: a commit in two phases over their channels
    running.py        the running gateway of a data directory, as a command on the same machine sees it: found, asked
"""
