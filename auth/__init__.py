"""How the gateway proves who it is to EMQX and Kafka."""
