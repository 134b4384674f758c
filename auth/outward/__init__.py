"""How the gateway proves itself to EMQX and Kafka: tokens, kept fresh. The ports are ``bridge.ports.Credential`` and
``CredentialSource``, since the data path shows what is kept here."""
