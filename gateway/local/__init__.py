"""Real brokers on this machine, and the demo on them. The service imports nothing of it.

demo/       the demo
embedded/   real brokers on this machine
runtime/    Java, jars and processes for the embedded brokers
"""
