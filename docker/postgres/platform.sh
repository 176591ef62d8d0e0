#!/bin/bash
# Users and databases of Airflow, of the ledger and of look-back; runs once, when the volume is empty.
set -euo pipefail
psql --no-psqlrc --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres <<'SQL'
\set airflow_password `cat /run/secrets/airflow_database_password`
\set ledger_password `cat /run/secrets/ledger_password`
\set look_back_password `cat /run/secrets/look_back_password`
CREATE ROLE airflow LOGIN PASSWORD :'airflow_password';
CREATE ROLE ledger LOGIN PASSWORD :'ledger_password';
CREATE ROLE look_back LOGIN PASSWORD :'look_back_password';
CREATE DATABASE airflow OWNER airflow;
CREATE DATABASE ledger OWNER ledger;
CREATE DATABASE look_back OWNER look_back;
SQL
