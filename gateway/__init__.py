"""Processes: workers and their supervisor, the access service, the command line, tools, brokers for laptop and tests.

Imports point down this list; folders on one line do not import each other (``pyproject.toml`` has the contracts):

    cli                                     a module for each command
    tools | local                           what only commands and developers need
    worker                                  one worker process
    health                                  what is wrong, and the watches that find it
    supervisor | auth_service               the processes above and beside the workers
    components | devices | http | admin     parts that processes are made of
    mqtt                                    MQTT connections and sessions
    data_dir                                the files of a gateway
    base                                    logs, metrics, life cycle

    admin/          Kafka as its administrator sees it
    auth_service/   the service that EMQX asks about logins and topics
    base/           what every process of ours stands on
    cli/            the command line
    components/     the parts of a worker: its Kafka side, its MQTT side, the spool
    data_dir/       the data directory
    devices/        simulated devices, for the demo, ``gateway simulate``, ``gateway trial`` and tests
    health/         what is wrong with a gateway
    http/           the operator's HTTP port, its status page, and asking another gateway's port
    local/          real brokers on this machine, and the demo on them
    mqtt/           MQTT connections and sessions
    supervisor/     several workers under one process, which starts, watches, replaces and stops them
    tools/          what commands do beside running a gateway
    worker/         one worker process
    start.py        the installed command ``gateway``
"""
