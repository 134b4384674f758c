"""The gateway's own tokens for EMQX and Kafka, renewed in time. Their ports are ``bridge.ports.Credential`` and
``CredentialSource``, because the data path uses them.

    keeper.py       keeps a token: one task renews it in time, and readers get the present one
    oauth.py        tokens from an OAuth 2.0 token endpoint, by client credentials (RFC 6749, 4.4)
    renewal.py      the times of renewals
    token_text.py   the form of a token, and its expiry
    tokens.py       the sources of tokens for EMQX (as the password) and Kafka (OAUTHBEARER)
"""
