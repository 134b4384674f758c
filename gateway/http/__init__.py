"""The operator's HTTP port, its status page, and asking another gateway's port.

page/           the status page
answers.py      a worker's answers to ``/metrics``, ``/healthz``, ``/readyz`` and ``/status``, for which
                ``gateway/worker/facts.py`` gives most members
asking.py       what a command asks the running process on this machine: a path of its HTTP port
connection.py   one connection: requests in, answers out in the order of the requests; also of the access service
guard.py        who may read what on the HTTP port
http1.py        parses HTTP/1.1 requests
listener.py     a listening port: a bounded number of connections and TLS handshakes; also of the access service
server.py       the operator's HTTP port of a worker that runs alone, of a supervisor
tls.py          the TLS of the gateway's own servers: a context made from files, and made again when they change
"""
