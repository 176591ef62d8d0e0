#!/bin/sh
# Makes the secrets that compose.yaml names, in docker/secrets; those that are there are kept.
# Compose mounts each as the file it is, whoever the user in the container: so the files may be read
# by all, and the directory is open to nobody else on this machine.
set -eu
cd "$(dirname "$0")/secrets"
chmod 700 .

random() { od -An -v -tx1 -N "$1" /dev/urandom | tr -d ' \n'; }

keep() { # NAME, its text on stdin
    if [ -s "$1" ]; then
        cat >/dev/null
    else
        cat >"$1.new"
        chmod 444 "$1.new"
        mv "$1.new" "$1"
        echo "made docker/secrets/$1"
    fi
}

for name in database_password airflow_database_password ledger_password \
    look_back_password outbox_password \
    shop_database_password shop_password shop_reader_password grafana_password; do
    random 16 | keep "$name"
done
for name in airflow_secret_key airflow_jwt_secret; do
    random 32 | keep "$name"
done
head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '\n' | keep airflow_fernet_key
printf 'postgresql+psycopg://airflow:%s@database/airflow' "$(cat airflow_database_password)" |
    keep airflow_database_url
printf '{"admin": "%s", "oncall": "%s", "second": "%s"}\n' "$(random 8)" "$(random 8)" "$(random 8)" |
    keep airflow_passwords.json
