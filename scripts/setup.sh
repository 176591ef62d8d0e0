#!/usr/bin/env bash
# Makes the locked environment in .venv: `setup.sh` to work on the code, `setup.sh airflow` with
# Airflow in it too, `setup.sh demo` with what the demos need and no more.
# Installs nothing outside this folder.
set -euo pipefail
cd "$(dirname "$0")/.."

UV_VERSION=0.13.9

fail() {
    echo "setup: $1" >&2
    exit 1
}

find_python() {
    local candidate
    for candidate in python3.11 python3.12 python3.13 python3 python; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    # uv may know of one that is not on the PATH.
    if uv --version >/dev/null 2>&1; then
        uv python find --no-python-downloads '>=3.11,<3.14' 2>/dev/null && return
    fi
    return 1
}

python=$(find_python) ||
    fail "Python 3.11, 3.12 or 3.13 was not found: install one (apt-get install python3 python3-venv, pyenv install 3.13, or uv python install 3.13)"

java=java
[ -z "${JAVA_HOME:-}" ] || java="$JAVA_HOME/bin/java"
java_major=$("$java" -version 2>&1 | sed -nE 's/.* version "([0-9]+).*/\1/p' | head -n 1) || true
case "$java_major" in
    17 | 21) ;;
    "") fail "Java 17 or 21 was not found: install it (apt-get install default-jre-headless) or set JAVA_HOME" ;;
    *) fail "Java $java_major was found, but Spark 4 needs 17 or 21: install it (apt-get install default-jre-headless) and set JAVA_HOME" ;;
esac

uv=uv
if ! uv --version >/dev/null 2>&1; then
    uv=.uv/bin/uv
    if ! "$uv" --version >/dev/null 2>&1; then
        "$python" -m venv .uv ||
            fail "a virtual environment could not be made: install Python's venv module (apt-get install python3-venv)"
        .uv/bin/pip install --quiet "uv==$UV_VERSION" || fail "uv could not be installed from PyPI"
    fi
fi

case "${1:-}" in
    demo)
        wanted=(--no-dev --group demo --extra schemas --extra spark --extra delivery --extra wire)
        echo "setup: fetching 620 MB of Python packages and 70 MB of Java libraries, once"
        ;;
    # Compiled once here: every Python worker of Spark would else compile its libraries again, where
    # PYTHONDONTWRITEBYTECODE is set or the folder may not be written.
    airflow) wanted=(--compile-bytecode --extra all --group airflow) ;;
    *) wanted=(--compile-bytecode --extra kubernetes --extra schemas --extra spark --extra delivery --extra wire) ;;
esac
"$uv" sync --locked "${wanted[@]}" --no-python-downloads --python "$python"
# The first relay of an emergency does not wait for a compiler.
.venv/bin/python -c 'import backlogctl.wire.kernels'
# What could not be fetched is asked for again, and its absence explained, by what needs it.
.venv/bin/python -c '
from backlogctl.sandbox.embedded import ensure_kafka_jars
from backlogctl.spark_backfill.spark.session import ensure_spark_jars
ensure_spark_jars(), ensure_kafka_jars()' || true
if [ "${1:-}" != demo ]; then
    env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -m compileall -q backlogctl delivery
    # Every start of Spark and of a broker is quicker with them. Everything works without, only
    # slower; a demo starts them too seldom to make up for the minute that this takes.
    .venv/bin/python -m backlogctl.spark_backfill.spark.class_archive_maker || true
    .venv/bin/python -c '
from backlogctl.sandbox.embedded import make_class_archive
make_class_archive()' || true
fi
echo "setup: ready, the command is .venv/bin/backlogctl"
