"""The HTTP side of `backlogctl watch`: /metrics, /healthz, /readyz, and the page beside them."""
