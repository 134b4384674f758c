"""The commands of ``gateway auth``, and what they share.

acl.py            ``gateway auth acl``: the access rules of the built-in database
acl_check.py      ``gateway auth acl test``: what the rules of the built-in database say of a client and a topic
acl_files.py      ``gateway auth acl import`` and ``export``
audit.py          ``gateway auth audit``: who changed what in the built-in database
ban.py            ``gateway auth ban``: who is kept out, whatever it shows
common.py         what the administration commands of ``gateway auth`` share: the database, who is at the keyboard
explain.py        ``gateway auth explain``: who decides about a client and a topic, and why the others did not
explain_text.py   an explanation as people and programs read it
forget.py         ``gateway auth forget``: erase a device
init.py           ``gateway auth init``: what is needed before the service and EMQX can run, made once
rule_text.py      an access rule in words, for the terminal
serve.py          ``gateway auth serve``: the service itself
tenant.py         ``gateway auth tenant``: customers or sites, and what holds for all of their users
user.py           ``gateway auth user``: who is in the built-in database
user_files.py     ``gateway auth user import`` and ``export``
"""
