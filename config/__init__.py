"""The typed settings: their tables, loading and checks.

loading/          from files, variables and secret files to checked settings, and back to text
relations/        checks of settings against each other
tables/           the tables of settings, a class for each
values/           values that settings hold
error_words.py    errors of the system and of libraries in words for people
errors.py         the root of the error tree, and the exit statuses it maps to
extras.py         packages that only some commands need, and the command that installs them
numbers.py        numbers, sizes and lists of names in sentences
origins.py        origins of values, and problems with them
process_lock.py   a file that one process at a time holds
prose.py          wraps sentences to the terminal's width
removed.py        settings of earlier versions, each with its replacement; ``loading/sources`` tells them
schema.py         the parts of the settings tree: paths, kinds, environment names, texts
settings.py       the typed settings tree
wording.py        pydantic's errors in our words
"""
