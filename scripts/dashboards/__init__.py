"""What the Grafana dashboards show; `python -m scripts.dashboards` writes their JSON."""
