"""Java, jars and processes for the embedded brokers: fetched once, checked, and ended with us.

_guard.py       a process between us and a broker, which ends the broker when we are gone
cache.py        where downloaded files live between runs
download.py     running a download tool as a child, drawing its progress from the bytes that land on disk
errors.py       what can go wrong while real brokers are fetched and started
ivy.py          running the Ivy inside pyspark: its settings, its proxy and trust, and what its failures mean
jar.py          a jar as the lock file names it
jars.py         the jars of the embedded brokers, Spark's Kafka source and Delta Lake: fetched once
java.py         a Java 17 or newer: the one on this machine, else a runtime installed as a wheel into the cache
mirror.py       the Maven mirror of ``GATEWAY_MAVEN_MIRROR``, and what it takes to be let in there
ports.py        free loopback ports that stay free until their server binds them
process.py      processes that cannot outlive us, and waiting for what they log
progress.py     the progress of a download, for the demo's view or a plain line on stderr
server.py       what servers on this machine have in common: the ``with`` block, other ports, signals
trust.py        a trust store for Java from this machine's PEM certificates
"""
