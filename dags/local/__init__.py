"""A real Airflow on this machine, for `make airflow` and the tests."""
