#!/bin/bash
# Users and databases of Airflow and of the ledger; runs once, when the volume is empty.
set -euo pipefail
psql --no-psqlrc --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres <<'SQL'
\set airflow_password `cat /run/secrets/airflow_database_password`
\set ledger_password `cat /run/secrets/ledger_password`
CREATE ROLE airflow LOGIN PASSWORD :'airflow_password';
CREATE ROLE ledger LOGIN PASSWORD :'ledger_password';
CREATE DATABASE airflow OWNER airflow;
CREATE DATABASE ledger OWNER ledger;
SQL
