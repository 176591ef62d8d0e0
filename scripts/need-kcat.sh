#!/usr/bin/env bash
# Makes sure that kcat is here: the relay's benchmark is held against it.
set -euo pipefail

command -v kcat >/dev/null 2>&1 && exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "kcat is missing: install it (Debian and Ubuntu: sudo apt-get install kcat)" >&2
    exit 1
fi
echo "installing kcat with apt-get"
log=$(mktemp)
if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends kcat; } >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    echo "kcat could not be installed: the lines above tell why; the rest is in $log" >&2
    exit 1
fi
rm -f "$log"
command -v kcat >/dev/null
