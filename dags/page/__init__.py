"""The monitoring page and the reports inside Airflow, behind Airflow's own login."""
