"""How the gateway proves itself to EMQX and Kafka: tokens, kept fresh. The ports are ``bridge.ports.Credential`` and
``CredentialSource``, since the data path shows what is kept here.

    keeper.py       keeps a token: one task looks for the next in time, and whoever shows the token takes what there is
    oauth.py        tokens from an OAuth 2.0 token endpoint, by client credentials (RFC 6749, 4.4)
    renewal.py      when to look for the next token
    token_text.py   what a token may look like, and what it says of its own end
    tokens.py       where the tokens come from that the gateway shows to EMQX (as the password) and to Kafka
"""
