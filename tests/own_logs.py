"""What the product itself logs: clients of other tests in the same process may log as well."""

from __future__ import annotations

import logging

import pytest


def list_own(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The records of our own loggers."""
    return [
        one
        for one in caplog.records
        if one.name.partition(".")[0] in ("backlogctl", "backlogctl_delivery")
    ]
