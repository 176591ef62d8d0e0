"""The points at which runners are killed, before and after the steps of P3, P4, P5 and P8."""

from __future__ import annotations

# Of the injection.
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
# Of the runner of an expansion.
RUNNER_POINTS = (
    "p4.2.raised",
    "p4.4.created",
    "p4.3.stopped",
    "p4.7.canary.relayed",
    "p4.7.canary.started",
    "p4.5.guard.joined",
    "p4.6.relays.started",
    "p4.7.consumers.started",
    "p4.8.relays.stopped",
    "p4.9.fenced",
    "p4.9.drained",
    "p4.8.consumers.stopped",
    "p4.9.guard.left",
    "p4.9.originals.started",
    "p4.9.retention.given_back",
    "p4.10.verified",
    "p4.9.deleted",
)
# Of a relay's process.
RELAY_POINTS = (
    "p4.6.init.after",
    "p4.6.produce.middle",
    "p4.6.produce.after",
    "p4.6.offsets.after",
    "p4.6.commit.after",
)
# Of the runner of an offload, in the order in which one run comes to them.
OFFLOAD_POINTS = (
    "p5.2.stopped",
    "p5.2.quiet",
    "p5.3.lowered",
    "p5.3.ended",
    "p5.3.fenced",
    "p5.4.batch.written",
    "p5.4.batch.noted",
    "p5.4.manifest.before",
    "p5.4.archived",
    "p5.4.recorded",
    "p5.5.confirmed",
    "p5.5.forward",
    "p5.5.gaps",
    "p5.5.moved",
    "p5.5.staged",
    "p5.6.before",
    "p5.6.deleted",
    "p5.7.started",
    "p5.8.verified",
)
# From here on a cancel goes forward.
POINT_OF_NO_RETURN = "p5.5.forward"
# Of an application with an outbox, which sends by itself or not.
ADDING_POINTS = ("p8.1.added",)
HINT_POINTS = ("p8.1.hint.before", "p8.1.hint.after")
# Of a sender, in the application's process or in one of its own.
SENDER_POINTS = (
    "p8.2.claim.before",
    "p8.2.claim.after",
    "p8.3.produced",
    "p8.3.acknowledged",
    "p8.4.mark.before",
    "p8.4.mark.after",
)
# Only where the brokers are away, or refuse.
FAILING_POINTS = ("p8.4.failed.before", "p8.4.failed.after")
# Of an application with look-back.
PREPARING_POINTS = ("p8.prepared.after", "p8.decided.before", "p8.decided.after")
# Of an instance of look-back.
LOOK_BACK_POINTS = (
    "p8.applied.before",
    "p8.applied.after",
    "p8.offsets.before",
    "p8.offsets.after",
    "p8.asked.before",
    "p8.answer.before",
    "p8.answer.after",
)
# Of the same, when it starts: days ahead are made, old ones archived and dropped.
KEEPER_POINTS = (
    "p8.kept.before",
    "p8.kept.after",
    "p8.archived.after",
    "p8.dropped.before",
    "p8.dropped.after",
)
# Of a consumer that handles once (examples/delivery/order_consumer.py).
CONSUMER_POINTS = ("once.begun", "once.worked", "once.committed", "once.read")
