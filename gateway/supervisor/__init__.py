"""One process that starts, watches, replaces and stops several workers.

    supervisor.py     the process: its lock, signals, HTTP port, reload, stop
    fleet.py          all slots together: rolling (SIGUSR2), scaling, ending; kills workers that do not answer
    slot.py           one slot and the worker processes that hold it, one after another; kills one that does not end
    process.py        the supervisor's view of one worker process
    channel.py        the messages between the two, a JSON object per line
    member.py         the worker's end of the channel: get warm, then take the slot
    answers.py        the HTTP port's answers, collected from the workers: builds /status
    fleet_status.py   rows and problems of the workers, merged for /status; the problems worker-down, worker-restarting
    exposition.py     metrics as text: those of all workers together, and the supervisor's
    metrics.py        the supervisor's own metrics
    prefork.py        the first workers, forked from a process with loaded code
    reload.py         changed settings for all running workers or for none: a two-phase commit over their channels;
                      each worker's part is ``gateway/worker/reload.py``
    running.py        the running gateway of a data directory, for commands on the same machine
    cpu.py            the number of workers for this machine
    place.py          the supervisor's lock and report in the data directory

The supervisor carries no message, so nothing here imports a client library of MQTT or Kafka.
"""
