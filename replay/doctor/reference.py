"""docs/doctor.md: `python -m backlogctl.replay.doctor.reference` prints it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from backlogctl.monitoring.doctor import (
    clients,  # noqa: F401
    group,  # noqa: F401
    producers,  # noqa: F401
    timestamps,  # noqa: F401
    topic,  # noqa: F401
)
from backlogctl.monitoring.doctor.checks import CATALOGUE, CheckScope
from backlogctl.replay.doctor import (
    deliveries,  # noqa: F401
    stream,  # noqa: F401
)

# Checks are named where their rules are.

_HEAD = """\
# The doctor

`backlogctl doctor [STREAM…]` reads settings, replicas, the newest batches, the group, rights,
source tables and the tool itself, judges them together, and prints what would lose messages or stop
a recovery, worst first: the figure that was read, why it matters, and what mends it. Without a
stream it looks at all, and at the [outboxes](outbox.md) and [look-back](look-back.md) that are
configured. It changes nothing.

| level | means | exit code |
|---|---|---|
| `loses` | messages are lost, or will be after one failure that is to be expected | 1 |
| `stops` | a recovery, or the group itself, cannot go on | 1 |
| `unknown` | it could not be read, or what was read does not tell | 2, where nothing is worse |
| `warns` | costs time or figures, and loses nothing by itself | 0 |

`--json` prints the same as one document. `backlogctl watch` looks each hour (`watch.doctor`), shows
the findings on the page of the stream, and exports them as `backlog_doctor_findings`.

`backlogctl doctor --client FILE` judges the settings of a producer or consumer, without a cluster.
It reads the file as its client does:

- Spring Boot's YAML, properties, or environment (`SPRING_KAFKA_…`): each profile on the base, by
  name; relaxed names; `${NAME:default}` from the file, else by its default, which is said. What
  Spring ignores is told.
- Kafka Streams', a Connect worker's or connector's: its producer and consumer, with their prefixes
  and defaults.
- Java properties, librdkafka's `name=value`, INI with sections: of the client that knows its names
  and values. Where both do, as Java's, and what only librdkafka would lose is `unknown`.

What the file leaves out counts with the default of its client. It is `unknown` where the file lies
over another (an environment, `application-prod.yml` alone, `spring.config.import`, a connector), or
has only what producers and consumers have in common. So is what only an application or another
framework reads (Spring Cloud Stream, Quarkus, Micronaut, MirrorMaker).

Without a configuration file: `backlogctl doctor --bootstrap HOST:PORT --group GROUP`.

Beyond `see` it needs `DescribeConfigs` on the cluster (docs/permissions.md, `doctor`).
Without it the checks that need the brokers' settings are `unknown`.

![The page of a stream: its members, and what the doctor found](img/page-doctor.png)

What it does not see: settings of clients that are given no file, quotas, the disks of the brokers
(docs/alerts.md has those), and whatever happens after the look.
"""


def render_page() -> str:
    """The whole page."""
    return _HEAD + "".join(f"\n## {room}\n" + "".join(_render_checks(room)) for room in CheckScope)


def _render_checks(room: CheckScope) -> Iterator[str]:
    for _, check in sorted(CATALOGUE.items()):  # they are there as their modules were imported
        if check.room is room:
            text = " ".join(filter(None, (check.why, check.more)))
            yield f"\n### {check.name}\n\n**{check.title}.** {text}\n"


if __name__ == "__main__":
    sys.stdout.write(render_page())
