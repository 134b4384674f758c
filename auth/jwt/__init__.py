"""Tokens that devices show: reading, checking, and the keys they are checked with.

claims.py     what a verified token says of its bearer, judged by the settings of the key that verified it
fetching.py   one request to a server of keys or tokens, with an answer that is bounded in time and size
jwks.py       JSON web key sets: an issuer's public keys, fetched now and then, so that it can change them
keys.py       keys that verify tokens: what each is good for, a shared secret, and a public key in a file
parsing.py    the parts of a JSON Web Token, read as a stranger's text: strictly, in bounds
"""
