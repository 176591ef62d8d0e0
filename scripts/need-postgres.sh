#!/usr/bin/env bash
# Makes sure that PostgreSQL's server programs are here: the tests start a server of their own.
set -euo pipefail

there() {
    command -v initdb >/dev/null 2>&1 || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

there && exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "PostgreSQL's server programs are missing: install them (Debian and Ubuntu: sudo apt-get install postgresql)" >&2
    exit 1
fi
echo "installing PostgreSQL's server programs with apt-get"
log=$(mktemp)
if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends postgresql; } >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    echo "PostgreSQL could not be installed: the lines above tell why; the rest is in $log" >&2
    exit 1
fi
rm -f "$log"
there
