"""``gateway trial``: marked messages through somebody's own brokers, with the real worker between, and nothing left."""
