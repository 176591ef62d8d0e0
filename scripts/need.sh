#!/usr/bin/env bash
# Makes sure that programs which Python does not bring are here:
#   scripts/need.sh [postgres] [kcat] [prometheus] [chromium] [mariadb] [redis] [jdk] [node] [go] [etcd]
# They are Debian's packages. Prometheus and etcd are only unpacked, into .tools; so is Go, from its module
# proxy, where there is none or an older one than tests/clients/go asks for.
set -euo pipefail
cd "$(dirname "$0")/.."

# As go.mod has it.
GO_MINOR=$(sed -nE 's/^go 1\.([0-9]+).*/\1/p' tests/clients/go/go.mod 2>/dev/null || true)

has() { command -v "$1" >/dev/null 2>&1; }

there() {
    case "$1" in
        postgres) has initdb || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null ;;
        kcat) has kcat ;;
        prometheus)
            { has prometheus && has promtool; } || { [ -x .tools/prometheus ] && [ -x .tools/promtool ]; }
            ;;
        etcd) has etcd || [ -x .tools/etcd ] ;;
        chromium) has chromium ;;
        mariadb) has mariadbd || [ -x /usr/sbin/mariadbd ] ;;
        redis) has redis-server ;;
        jdk) has javac || [ -x "${JAVA_HOME:-/none}/bin/javac" ] ;;
        node) has node && has npm ;;
        go)
            local go minor
            for go in go .tools/go/bin/go; do
                minor=$(GOTOOLCHAIN=local "$go" version 2>/dev/null | sed -nE 's/.* go1\.([0-9]+).*/\1/p') || true
                if [ "${minor:-0}" -ge "$GO_MINOR" ]; then return 0; fi
            done
            return 1
            ;;
        *) echo "need: no such thing: $1 (postgres, kcat, prometheus, chromium, mariadb, redis, jdk, node, go, etcd)" >&2; exit 2 ;;
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
        jdk) echo "Java's compiler" ;;
        node) echo "Node and npm" ;;
        go) echo "Go 1.$GO_MINOR or newer" ;;
        etcd) echo "etcd" ;;
    esac
}

package() {
    case "$1" in
        postgres) echo postgresql ;;
        mariadb) echo mariadb-server ;;
        redis) echo redis-server ;;
        jdk) echo default-jdk-headless ;;
        node) echo nodejs npm ;;
        etcd) echo etcd-server ;;
        *) echo "$1" ;;
    esac
}

install() {
    if [ "$1" = prometheus ] || [ "$1" = etcd ]; then
        # Installed, it would start a service on a fixed port where the machine runs services.
        local unpacked
        unpacked=$(mktemp -d) &&
            (cd "$unpacked" && apt-get download "$(package "$1")" && dpkg-deb -x ./*.deb .) &&
            mkdir -p .tools &&
            mv "$unpacked"/usr/bin/* .tools/ &&
            rm -rf "$unpacked"
    else
        # shellcheck disable=SC2046 # one thing may be two packages
        DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(package "$1")
    fi
}

# The toolchain as a module: Debian's may be too old. Needs no root.
unpack_go() {
    local architecture sha256
    case "$(uname -m)" in
        x86_64) architecture=amd64 sha256=30c2b1bf7dcc88d3eb0a1364e47ddd9128edb3110a30e8a0ef61cd5856b31de7 ;;
        aarch64) architecture=arm64 sha256=02b36b6787b3ac767668f630e2998df45a3b1f9ffee08d1bf3ef6487cd658d99 ;;
        *) echo "no toolchain is known for $(uname -m)" && return 1 ;;
    esac
    mkdir -p .tools
    python3 - "v0.0.1-go1.26.8.linux-$architecture" "$sha256" <<'END'
import hashlib, io, os, pathlib, shutil, sys, tempfile, urllib.request, zipfile
version, sha256 = sys.argv[1:]
proxy = os.environ.get("GOPROXY", "").replace("|", ",").split(",")[0]
proxy = proxy if proxy.startswith("http") else "https://proxy.golang.org"
url = f"{proxy}/golang.org/toolchain/@v/{version}.zip"
content = urllib.request.urlopen(url, timeout=60).read()
if hashlib.sha256(content).hexdigest() != sha256:
    sys.exit(f"another file than the one that was tested: {url}")
with tempfile.TemporaryDirectory(dir=".tools") as scratch:
    zipfile.ZipFile(io.BytesIO(content)).extractall(scratch)
    made = pathlib.Path(scratch, f"golang.org/toolchain@{version}")
    for program in [*made.glob("bin/*"), *made.glob("pkg/tool/*/*")]:
        program.chmod(0o755)
    shutil.rmtree(".tools/go", ignore_errors=True)
    made.rename(".tools/go")
END
}

updated=
for what in "$@"; do
    if there "$what"; then continue; fi
    if [ "$what" = go ]; then
        echo "unpacking $(title go) into .tools: 72 MB"
        if unpack_go && there go; then continue; fi
        echo "missing: $(title go): the lines above tell why; it may also be put on the PATH" >&2
        exit 1
    fi
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
