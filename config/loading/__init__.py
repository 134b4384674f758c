"""From files, variables and secret files to checked settings, and back to text.

live.py         what a running gateway can take of changed settings
load.py         settings from one TOML file, ``GATEWAY_*`` variables and secret files: merged, checked
reference.py    the configuration reference as Markdown
show.py         all settings in effect, each with where it came from: for people as TOML
sources.py      the places that settings are read from, each as a layer: the raw values by table
toml_lines.py   on which line of a TOML file each key stands: what tomllib does not tell
transfer.py     checked settings on their way to another process of ours: text that holds every value
"""
