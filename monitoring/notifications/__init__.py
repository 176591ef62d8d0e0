"""Tells people of verdicts when they change: Slack, PagerDuty, or any webhook."""
