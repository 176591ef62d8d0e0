"""The points of the injection, before and after each numbered step (protocol P3)."""

from __future__ import annotations

from backlog.crashpoints import VARIABLE, reach

POINTS = (
    "p3.1.producer.before",
    "p3.1.producer.after",
    "p3.2.init.before",
    "p3.2.init.after",
    "p3.3.scan.before",
    "p3.3.scan.after",
    "p3.4.decide.before",
    "p3.4.decide.after",
    "p3.5.begin.before",
    "p3.5.begin.after",
    "p3.5.produce.middle",
    "p3.5.produce.after",
    "p3.5.record.after",
    "p3.5.flush.after",
    "p3.5.commit.before",
    "p3.5.commit.after",
    "p3.6.abort.before",
    "p3.6.abort.after",
    "p3.7.copy.before",
    "p3.7.copy.after",
)

__all__ = ["POINTS", "VARIABLE", "reach"]
