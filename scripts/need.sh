#!/usr/bin/env bash
# Makes sure that programs which Python does not bring are here:
#   scripts/need.sh [postgres] [kcat] [prometheus] [chromium] [mariadb] [redis]
# They are Debian's packages. Prometheus is only unpacked, into .tools.
set -euo pipefail
cd "$(dirname "$0")/.."

has() { command -v "$1" >/dev/null 2>&1; }

there() {
    case "$1" in
        postgres) has initdb || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null ;;
        kcat) has kcat ;;
        prometheus)
            { has prometheus && has promtool; } || { [ -x .tools/prometheus ] && [ -x .tools/promtool ]; }
            ;;
        chromium) has chromium ;;
        mariadb) has mariadbd || [ -x /usr/sbin/mariadbd ] ;;
        redis) has redis-server ;;
        *) echo "need: no such thing: $1 (postgres, kcat, prometheus, chromium, mariadb, redis)" >&2; exit 2 ;;
    esac
}

title() {
    case "$1" in
        postgres) echo "PostgreSQL's server programs" ;;
        kcat) echo "kcat" ;;
        prometheus) echo "Prometheus and promtool" ;;
        chromium) echo "Chromium" ;;
        mariadb) echo "MariaDB's server programs" ;;
        redis) echo "Redis's server program" ;;
    esac
}

package() {
    case "$1" in
        postgres) echo postgresql ;;
        mariadb) echo mariadb-server ;;
        redis) echo redis-server ;;
        *) echo "$1" ;;
    esac
}

install() {
    if [ "$1" = prometheus ]; then
        # Installed, it would start a service on a fixed port where the machine runs services.
        local unpacked
        unpacked=$(mktemp -d) &&
            (cd "$unpacked" && apt-get download prometheus && dpkg-deb -x prometheus_*.deb .) &&
            mkdir -p .tools &&
            mv "$unpacked/usr/bin/prometheus" "$unpacked/usr/bin/promtool" .tools/ &&
            rm -rf "$unpacked"
    else
        DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$(package "$1")"
    fi
}

updated=
for what in "$@"; do
    if there "$what"; then continue; fi
    if [ "$(id -u)" -ne 0 ] || ! has apt-get; then
        echo "missing: $(title "$what"): install it (Debian and Ubuntu: sudo apt-get install $(package "$what"))" >&2
        exit 1
    fi
    echo "installing $(title "$what") with apt-get"
    log=$(mktemp)
    if ! { { [ -n "$updated" ] || apt-get update; } && install "$what"; } >"$log" 2>&1 || ! there "$what"; then
        tail -n 5 "$log" >&2
        echo "could not be installed: $(title "$what"): the lines above tell why; the rest is in $log" >&2
        exit 1
    fi
    rm -f "$log"
    updated=yes
done
