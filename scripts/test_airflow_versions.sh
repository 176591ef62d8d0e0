#!/usr/bin/env bash
# Tests of the runbooks on the lowest and the newest Airflow that they are for, and on the oldest and
# newest Python: each in an environment of its own under .tools. `make test-airflow-versions`.
set -euo pipefail
cd "$(dirname "$0")/.."

uv=uv
"$uv" --version >/dev/null 2>&1 || uv=.uv/bin/uv
bounds=$(.venv/bin/python -c '
from backlogctl.dags.airflow_internals import LOWEST, NEWEST
print(LOWEST, NEWEST)')
read -r lowest newest <<<"$bounds"
# Airflow's own lists, if they can be had; then what we need, as its documentation says: in a step of
# its own, without them.
lists=${AIRFLOW_CONSTRAINTS:-https://raw.githubusercontent.com/apache/airflow}
subset=(
    tests/dags/test_airflow_internals.py tests/dags/test_layout.py tests/dags/test_holds.py
    tests/dags/test_marks.py tests/dags/test_page.py tests/dags/test_lineage.py
    tests/dags/test_task_context.py
    tests/dags/test_approvals.py::test_no_no_answer_and_an_answer_elsewhere
)
left_out=()
failed=()

find_python() { # A shim of pyenv is there also where it leads to nothing.
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        "$candidate" -c '' 2>/dev/null && command -v "$candidate" && return
    done
    echo "$1"
}

run_one() { # AIRFLOW PYTHON REQUIREMENT...
    local airflow=$1 python=$2 place=.tools/airflow-$1-python-$2
    local list=$lists/constraints-$1/constraints-$2.txt constraints=()
    shift 2
    "$uv" venv --quiet --clear --no-python-downloads --python "$(find_python "$python")" "$place" || return 77
    if curl --silent --fail --location --max-time 20 --output "$place/constraints.txt" "$list"; then
        constraints=(--constraint "$place/constraints.txt")
    else
        echo "Airflow's constraints cannot be had: $list"
    fi
    "$uv" pip install --quiet --python "$place" "apache-airflow==$airflow" "${constraints[@]}"
    "$uv" pip install --quiet --python "$place" "apache-airflow==$airflow" \
        -e '.[all]' -e delivery --group dev "$@"
    "$place/bin/python" -m pytest -q -p no:cacheprovider "${subset[@]}"
}

try() {
    local name="Airflow $1 on Python $2" code=0
    echo "== $name"
    # Not in a condition: `set -e` is to end it at the first that fails.
    set +e
    (set -e; run_one "$@")
    code=$?
    set -e
    case $code in
        0) ;;
        77) left_out+=("$name") ;;
        *) failed+=("$name") ;;
    esac
}

try "$lowest" 3.11 'apache-airflow-providers-standard==1.20.*'
try "$newest" 3.13 apache-airflow-providers-{openlineage,apache-kafka,postgres}
echo "failed: ${failed[*]:-none}; left out, for want of that Python: ${left_out[*]:-none}"
[ $((${#failed[@]} + ${#left_out[@]})) -eq 0 ]
