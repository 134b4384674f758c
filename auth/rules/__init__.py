"""Rules about topics: matching, EMQX's own forms of them, and handing them over with a login.

acl_claim.py          access rules that come with a token: EMQX's ``acl`` claim, in both its forms
acl_conf.py           EMQX's acl.conf, read into rules
acl_conf_writing.py   rules written as EMQX's acl.conf
acl_text.py           the ``acl`` of a login's answer as JSON text, for a fleet whose clients have the same rules
conditions.py         whom an access rule concerns: users, client ids, groups, tenants, networks, certificates
emqx_forms.py         the pieces that EMQX's access rules are made of, in tokens and in acl.conf
erlang_terms.py       reads the plain Erlang terms of a file such as acl.conf: tuples, lists, atoms
files.py              files of rules in JSON: this service's own, and those of EMQX's REST API
hand_over.py          a client's rules as the ``acl`` of the login's answer
reasons.py            why a rule did not decide about a request, for people
rules.py              whether a client may publish to a topic or subscribe to a filter: matches each rule to it
topics.py             the topics of access rules: placeholders, the topic of a request, filters as sets
"""
