"""From files, variables and secret files to checked settings, and back to text.

live.py         which changed settings a running gateway can take, and which need a restart
load.py         settings from one TOML file, ``GATEWAY_*`` variables and secret files: merged, checked
reference.py    the configuration reference as Markdown
show.py         all settings in effect with their origins: for people as TOML
sources.py      the sources of settings, each as a layer; suggestions for unknown and removed names
toml_lines.py   the line of each key in a TOML file, for messages
transfer.py     checked settings as text for another process of the gateway
"""
