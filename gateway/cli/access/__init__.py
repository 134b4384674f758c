"""The commands of ``gateway auth``.

acl.py            ``gateway auth acl``: the access rules of the built-in database
acl_check.py      ``gateway auth acl test``: the decision of the built-in rules on a client and a topic
acl_files.py      ``gateway auth acl import`` and ``export``
audit.py          ``gateway auth audit``: the changes of the built-in database
ban.py            ``gateway auth ban``: clients that are refused
common.py         shared by the administration commands: the database, the operator, passwords
explain.py        ``gateway auth explain``: the decision on a client and a topic, with its reasons
explain_text.py   an explanation as text and JSON
forget.py         ``gateway auth forget``: erases a device
init.py           ``gateway auth init``: the first database, users and secrets
rule_text.py      an access rule in words, for the terminal
serve.py          ``gateway auth serve``: the service itself
tenant.py         ``gateway auth tenant``: customers or sites, with limits and attributes of their users
user.py           ``gateway auth user``: the users of the built-in database
user_files.py     ``gateway auth user import`` and ``export``
"""
