"""The Airflow side: schedule, form, approval, retries and history; the work is `replay`'s."""
