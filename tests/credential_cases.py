"""Settings that say how the gateway proves itself, wrong or doubtful ones: a file's text, and what the one sentence
about it must hold, in order."""

SECRET = "hunter2"
OAUTH = f'[{{}}.oauth]\ntoken_url = "https://id.example/token"\nclient_id = "gateway"\nclient_secret = "{SECRET}"\n'
BEARER = '[kafka]\nsecurity = "SASL_SSL"\n[kafka.sasl]\nmechanism = "OAUTHBEARER"\n'
SCRAM = f'[kafka]\nsecurity = "SASL_SSL"\n[kafka.sasl]\nusername = "u"\npassword = "{SECRET}"\n'
ADMIN = BEARER.replace("kafka", "admin")
ADMIN_TOKEN = f'[admin.sasl.token]\nvalue = "{SECRET}"\n'
KAFKA_TOKEN = f'[kafka.sasl.token]\nvalue = "{SECRET}"\n'

SOUND = {
    "mqtt token on this machine": f'[mqtt]\nusername = "u"\n[mqtt.token]\nvalue = "{SECRET}"',
    "bearer with extensions": BEARER + 'extensions = { logicalCluster = "lkc-1" }\n' + KAFKA_TOKEN,
    "scram": SCRAM,
    "plain password on this machine": SCRAM.replace("SASL_SSL", "SASL_PLAINTEXT") + 'mechanism = "PLAIN"',
}
REFUSED = {
    "token without user": (f'[mqtt.token]\nvalue = "{SECRET}"',
        ("mqtt.token (gateway.toml:1)", "without mqtt.username", "any name")),
    "token and password": (f'[mqtt]\nusername = "u"\npassword = "{SECRET}"\n[mqtt.token]\nvalue = "{SECRET}"',
        ("mqtt.token (gateway.toml:4)", "mqtt.password (gateway.toml:3)", "both given", "remove one")),
    "token from nowhere": ('[mqtt]\nusername = "u"\n[mqtt.token]\nrenew_at = 0.5',
        ("mqtt.token", "none of value, file and oauth")),
    "token from two places": (f'[mqtt]\nusername = "u"\n[mqtt.token]\nvalue = "{SECRET}"\nfile = "t"',
        ("mqtt.token.value (gateway.toml:4)", 'mqtt.token.file = "t" (gateway.toml:5)', "remove one")),
    "scram without password": ('[kafka]\nsecurity = "SASL_SSL"\n[kafka.sasl]\nusername = "u"',
        ('kafka.sasl.mechanism = "SCRAM-SHA-512" (default)', "kafka.sasl.password", "add password_file")),
    "plain without user": (f'[kafka]\nsecurity = "SASL_SSL"\n[kafka.sasl]\nmechanism = "PLAIN"\npassword = "{SECRET}"',
        ('kafka.sasl.mechanism = "PLAIN" (gateway.toml:4)', "kafka.sasl.username", "add username")),
    "bearer without token": (BEARER,
        ('kafka.sasl.mechanism = "OAUTHBEARER" (gateway.toml:4)', "needs a token", "add [kafka.sasl.token]")),
    "bearer with user": (BEARER + 'username = "u"\n' + KAFKA_TOKEN,
        ('kafka.sasl.username = "u" (gateway.toml:5)', '"OAUTHBEARER"', "never shows it")),
    "bearer with password": (BEARER + f'password = "{SECRET}"\n' + KAFKA_TOKEN,
        ("kafka.sasl.password (gateway.toml:5)", '"OAUTHBEARER"', "never shows it")),
    "scram with token": (SCRAM + KAFKA_TOKEN,
        ("kafka.sasl.token (gateway.toml:6)", '"SCRAM-SHA-512"', "set the mechanism to OAUTHBEARER")),
    "scram with extensions": (SCRAM + 'extensions = { a = "b" }',
        ("kafka.sasl.extensions", '"SCRAM-SHA-512"', "never shows it")),
    "extension called auth": (BEARER + 'extensions = { auth = "b" }\n' + KAFKA_TOKEN,
        ("kafka.sasl.extensions", '"auth"', "remove it")),
    "extension with a bad name": (BEARER + 'extensions = { "a-b" = "b" }\n' + KAFKA_TOKEN,
        ("kafka.sasl.extensions", "'a-b'", "letters alone")),
    "extension with a bad value": (BEARER + 'extensions = { a = "b\\u0001" }\n' + KAFKA_TOKEN,
        ("kafka.sasl.extensions", "'a'", "printable ASCII")),
    "oauth without proof": (BEARER + '[kafka.sasl.token.oauth]\ntoken_url = "https://id/token"\nclient_id = "g"',
        ("kafka.sasl.token.oauth.client_id", "kafka.sasl.token.oauth.client_secret", "could not know that it is us")),
    "admin's user without security": (f'[admin.sasl]\nusername = "u"\npassword = "{SECRET}"',
        ("admin.sasl (gateway.toml:1)", "without admin.security", "log in as [kafka] says")),
    "admin's security without user": ('[admin]\nsecurity = "SASL_SSL"',
        ('admin.security = "SASL_SSL" (gateway.toml:2)', "add [admin.sasl]")),
    "admin's user with tls alone": (f'[admin]\nsecurity = "SSL"\n[admin.sasl]\nusername = "u"\npassword = "{SECRET}"',
        ("admin.sasl (gateway.toml:3)", "never shows it", "to SASL_SSL, or remove")),
    "admin's user in the open": (
        f'[admin]\nsecurity = "PLAINTEXT"\n[admin.sasl]\nusername = "u"\npassword = "{SECRET}"',
        ("admin.sasl (gateway.toml:3)", "never shows it", "to SASL_PLAINTEXT or SASL_SSL"),
    ),
    "admin's tls without security": ('[admin.tls]\nserver_name = "k"',
        ("admin.tls (gateway.toml:1)", "without admin.security", "log in as [kafka] says")),
    "admin's key without certificate": ('[admin]\nsecurity = "SSL"\n[admin.tls]\nkey_file = "k"',
        ('admin.tls.key_file = "k" (gateway.toml:4)', "admin.tls.certificate_file", "identifies nobody")),
    "admin's tls without tls": ('[admin]\nsecurity = "PLAINTEXT"\n[admin.tls]\nserver_name = "k"',
        ("admin.tls (gateway.toml:3)", "nothing would be encrypted")),
    "admin's scram without password": ('[admin]\nsecurity = "SASL_SSL"\n[admin.sasl]\nusername = "u"',
        ('admin.sasl.mechanism = "SCRAM-SHA-512" (default)', "admin.sasl.password", "to [admin.sasl]")),
    "admin's extension with a bad name": (ADMIN + 'extensions = { "a-b" = "b" }\n' + ADMIN_TOKEN,
        ("admin.sasl.extensions", "'a-b'", "letters alone")),
    "admin's bearer with a user": (ADMIN + 'username = "u"\n' + ADMIN_TOKEN,
        ('admin.sasl.username = "u" (gateway.toml:5)', '"OAUTHBEARER"', "never shows it")),
    "admin's token without bearer": (ADMIN.replace("OAUTHBEARER",
        "PLAIN") + f'username = "u"\npassword = "{SECRET}"\n' + ADMIN_TOKEN, ("admin.sasl.token (gateway.toml:7)",
        '"PLAIN"', "set the mechanism to OAUTHBEARER")),
    "admin's bearer without token": (ADMIN, ("admin.sasl.mechanism", "needs a token", "add [admin.sasl.token]")),
    "admin's oauth without proof": (
        ADMIN + '[admin.sasl.token.oauth]\ntoken_url = "https://id/token"\nclient_id = "g"',
        ("admin.sasl.token.oauth.client_id", "admin.sasl.token.oauth.client_secret", "could not know that it is us"),
    ),
}  # fmt: skip
WARNED = {
    "mqtt token, readable": (
        f'[mqtt]\naddresses = ["mqtt://10.0.0.1"]\nusername = "u"\n[mqtt.token]\nvalue = "{SECRET}"',
        ("mqtt.token (gateway.toml:4)", "readable over the network to mqtt://10.0.0.1", "use mqtts://"),
    ),
    "kafka token, readable": (BEARER.replace("SASL_SSL", "SASL_PLAINTEXT").replace("[kafka]",
        '[kafka]\nbootstrap_servers = ["k:1"]') + KAFKA_TOKEN, ('kafka.sasl.mechanism = "OAUTHBEARER"',
        "SASL_PLAINTEXT", "the token readable", "k:1; use SASL_SSL.")),
    "mqtt token url, unchecked": (
        '[mqtt]\naddresses = ["mqtts://emqx"]\nusername = "u"\n'
        + OAUTH.format("mqtt.token")
        + "[mqtt.token.oauth.tls]\nverify = false",
        ("mqtt.token.oauth.tls.verify = false", "pretend to be the identity provider", "mqtt.token.oauth.tls.ca_file"),
    ),
    "admin's token, readable": (ADMIN.replace("SASL_SSL",
        "SASL_PLAINTEXT") + ADMIN_TOKEN + '[kafka]\nbootstrap_servers = ["k:1"]\n',
        ('admin.sasl.mechanism = "OAUTHBEARER"', "SASL_PLAINTEXT", "the token readable", "k:1; use SASL_SSL.")),
    "admin's token url, readable": (ADMIN + OAUTH.format("admin.sasl.token").replace("https://id", "http://id"),
        ("admin.sasl.token.oauth.token_url", "not encrypted", "use https://")),
    "unverified admin": ('[admin]\nsecurity = "SSL"\n[admin.tls]\nverify = false',
        ("admin.tls.verify = false", "pretend", "admin.tls.ca_file")),
    "token url, readable": (BEARER + OAUTH.format("kafka.sasl.token").replace("https://id", "http://id"),
        ("kafka.sasl.token.oauth.token_url", "not encrypted", "use https://")),
}  # fmt: skip
