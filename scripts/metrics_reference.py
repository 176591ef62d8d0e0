"""docs/metrics.md, made from the catalogues: `python -m scripts.metrics_reference`."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from backlogctl.monitoring.metrics.catalogue import KAFKA_EXPORTER, KAFKA_LAG_EXPORTER, OURS
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl_delivery.idempotent import metrics as once
from backlogctl_delivery.lookback import metrics as look_back
from backlogctl_delivery.metrics import Metric
from backlogctl_delivery.outbox import metrics as outbox

_INTRO = """\
# Metrics

<!-- Made by `python -m scripts.metrics_reference > docs/metrics.md`. Do not edit. -->

`backlogctl watch` serves all of these but [some of delivery](#delivery) on `/metrics` of
`watch.listen`, compressed where the scraper takes gzip. There is no login.

- `/healthz` answers 503 when a sampler's thread is dead, or the loop over the streams has shown
  nothing for 10 intervals, and 5 minutes at least. It asks nobody.
- `/readyz` answers 503 until the streams and the groups of every cluster were looked at, or could
  not be; while no cluster was looked at, streams and groups, within 3 intervals and the longest
  pass; and while the ledger does not answer. One cluster of several that is away is named in it
  (`failing`), and changes nothing else.
- A ledger that hangs holds up neither: gaps, recoveries and holds are then shown for a minute
  more, and are absent after that.

- Streams are sampled each `watch.interval` and recorded in the ledger. All other groups of every
  configured cluster are sampled beside them, in memory, by a thread for each cluster: their
  history begins with the process. They have an empty `stream` label. A group on a topic that is a
  stream appears once, as the stream.
- `watch.groups` allows and denies groups by glob patterns; `watch.max_partitions` limits them, and
  `backlog_partitions_left_out` counts what is left out.
- Of groups that are no stream, partitions that are ok are one series without a `partition`: the sum
  of offsets and lags, the oldest age, the first loss, so that `sum by (group, topic)`, `max` and
  `min` give the same. Likewise partitions of topics of no stream whose replicas are all in sync,
  without leader and replicas. With `watch.granularity: partition` each has its own series.
- What is not known is absent: no series is NaN, and no lag is guessed where nothing was committed.
- After a failed look the series keep their last values, and `backlog_sample_age_seconds` grows.
- Nobody says how a group that is not a stream reads. Its lag is counted to the high watermark; one
  that stands exactly at the last stable offset has no lag, since a reader of committed data can
  read no further; what has lain behind it for too long is `backlog_transaction_held_messages`.
- A lag of one or two offsets that holds only control records or aborted messages is 0, once that
  was read.
- A group's id may be any text. What cannot be seen in it stands escaped in the label (`\\x1b`,
  `\\n`, `\\u202e`), with each backslash doubled. bash reads it back within `$'...'`.
- Losses to come by size (`retention.bytes`) are told of streams only.
"""

_DELIVERY = """\
## Delivery

What applications take in. `outbox run` serves with `--listen`, `lookback run` on
`look_back.listen`, `watch` for the outboxes and the look-back of its configuration.

- `outbox` is the name that the configuration gives, else host and database, or the file's name.
- Several processes serve the figures of one table, the same from each: take the `max`. Counters are
  of one process: take the `sum`, by rates.
- A database that hangs holds up no scrape for more than a second. Senders and instances show what
  it said last for a minute more; to `watch` it is unknown after 30 s.
"""
_SERVED: tuple[tuple[str, tuple[Metric, ...]], ...] = (
    ("`watch`, `outbox run`, [the application](outbox.md#metrics)", outbox.OF_TABLE),
    ("`outbox run`, [the application](outbox.md#metrics)", outbox.OF_SENDER),
    ("`watch`, `lookback run`", look_back.OF_TABLES),
    ("`lookback run`", look_back.OF_INSTANCE),
    ("[the application](idempotent-consumer.md#metrics)", once.CATALOGUE),
)

_VERDICTS: dict[Verdict, str] = {
    Verdict.OK: "Nothing is unread, or what is unread gets less at times. Also: idle, or never "
    "written.",
    Verdict.LAGGING: "Something is unread, and there are too few samples yet to tell more, or a "
    "job that comes by is due.",
    Verdict.UNKNOWN: "The partition was written, and the group has no committed offset.",
    Verdict.WARN: "Unread in every sample of the window, and the lag grew and never fell; or "
    "a recovery has stopped the stream's own consumers.",
    Verdict.BLOCKED: "Messages lie behind a transaction that has been open for too long: readers "
    "of committed data do not get them.",
    Verdict.STALL: "The group has members and a lag, and its committed offset did not move in the "
    "window.",
    Verdict.STOP: "The group has no members, a lag, and no commit in the window.",
    Verdict.REWIND: "The committed offset went back within the window, and is not back where it "
    "was.",
    Verdict.BEYOND_END: "The committed offset lies beyond the end of the log.",
    Verdict.LOSING: "At the pace of the window, retention passes the group within `watch.horizon`.",
    Verdict.LOST: "Messages are gone that the group never read, and were not put back or waived.",
}


def render_reference() -> str:
    verdicts = [f"| {v.severity} | `{v}` | {_VERDICTS[v]} |" for v in Verdict]
    return "\n".join(
        [
            _INTRO,
            "## backlogctl's own\n",
            *_render_table(OURS),
            "",
            "The process's own (`process_resident_memory_bytes`, `process_cpu_seconds_total`, …) "
            "are there too.\n",
            _DELIVERY,
            *_render_delivery(),
            "",
            "## Verdicts\n",
            "The value of the label `verdict`; of several, the worst (the last) holds.\n",
            "| severity | verdict | meaning |\n|---|---|---|",
            *verdicts,
            "",
            "## Names of kafka_exporter\n",
            "With `kafka_exporter` in `watch.metrics` (the default), for dashboards that exist. "
            "With several clusters they have a `cluster` label more. Topics without a group that "
            "is sampled are not there, nor partitions without a committed offset. `promtool check "
            "metrics` complains of the two names that end in `_sum`, which it wants for histograms "
            "only: they are kafka_exporter's own, and dashboards ask for them.\n",
            *_render_table(KAFKA_EXPORTER),
            "",
            "## Names of kafka-lag-exporter\n",
            "With `kafka_lag_exporter` in `watch.metrics`.\n",
            *_render_table(KAFKA_LAG_EXPORTER),
            "",
        ]
    )


def _render_table(metrics: Iterable[Metric]) -> list[str]:
    rows = ["| metric | kind | labels | meaning |\n|---|---|---|---|"]
    rows += [f"| {_render_name(metric)} | {metric.help} |" for metric in metrics]
    return rows


def _render_delivery() -> list[str]:
    rows = ["| metric | kind | labels | served by | meaning |\n|---|---|---|---|---|"]
    for server, metrics in _SERVED:
        rows += [f"| {_render_name(metric)} | {server} | {metric.help} |" for metric in metrics]
    return rows


def _render_name(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"`{metric.exported_name}` | {metric.type} | {labels}"


if __name__ == "__main__":
    sys.stdout.write(render_reference())
