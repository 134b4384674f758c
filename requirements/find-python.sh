#!/bin/sh
# Prints the first Python 3.11 or newer among the commands given (default: python3, then named versions), or says
# which ones were found to be too old and ends with status 1. A command that exists but does not run (a version
# manager's shim without that version, say) is passed over.
set -u

seen=
named=$*
[ $# -gt 0 ] || set -- python3 python3.14 python3.13 python3.12 python3.11
for candidate in "$@"; do
    path=$(command -v "$candidate" 2>/dev/null) || continue
    version=$("$path" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || continue
    if "$path" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        printf '%s\n' "$path"
        exit 0
    fi
    seen="$seen $candidate is $version;"
done

{
    if [ -n "$seen" ]; then
        echo "Python 3.11 or newer is needed, and every Python found is older:${seen%;}."
    elif [ -n "$named" ]; then
        echo "Python 3.11 or newer is needed, and \"$named\" is no Python that runs."
    else
        echo "Python 3.11 or newer is needed, and no python3 was found."
    fi
    echo "Install one (Debian 12, Ubuntu 24.04 and newer: sudo apt-get install python3 python3-venv),"
    echo "or name one that is elsewhere: make PYTHON=/path/to/python3 ..."
} >&2
exit 1
