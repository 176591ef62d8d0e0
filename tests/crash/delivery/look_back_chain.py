"""Payment service, look_back_msg, two instances of look-back, the topic, the consumer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from threading import Thread

import pyarrow.parquet as pq

from backlogctl_delivery.lookback.admin import count_messages, list_incidents
from backlogctl_delivery.lookback.messages import State
from backlogctl_delivery.lookback.tables import LookBackDatabase, list_partitions
from backlogctl_delivery.lookback.tables import create_tables as create_look_back
from examples.delivery.facts import COMMITTED_PAYMENTS, PAYMENT_SERVICE, create_tables, open_engine
from examples.delivery.payment_answers import make_server
from examples.delivery.story import PARTITIONS
from examples.stage import await_handled
from tests.crash.delivery import cast
from tests.crash.delivery.chain import APPLICATION, RATE, Chain, Part
from tests.delivery.kit import add_old
from tests.kafka_tools import wait_until

INSTANCES = ("look-back 1", "look-back 2")
_OLD, _OF_A_DAY = date(2020, 2, 29), 50

_CONFIG = """\
clusters: {{main: {{bootstrap.servers: "{bootstrap}"}}}}
look_back:
  database: {url}
  cluster: main
  topic: {topic}
  group: {topic}
  first_check: 200ms
  pause: 50ms
  longest_pause: 200ms
  max_checks: 1000000
  lease: 2s
  archive: ./archive
  listen: 127.0.0.1:0
  services:
    payments: {{http: "http://127.0.0.1:{port}/", networks: [127.0.0.0/8], timeout: 2s}}
"""


class LookBackChain(Chain):
    """See there; on PostgreSQL."""

    rows = COMMITTED_PAYMENTS

    def make_parts(self) -> Mapping[str, Part]:
        create_tables(self.database, PAYMENT_SERVICE)
        self._look_back = LookBackDatabase(self.database)
        create_look_back(self._look_back)
        self._days = 0
        self._prepared = self.make_topic("prepared")
        self._engine = open_engine(self.database)
        self._answers = make_server(self._engine, 0)
        Thread(target=self._answers.serve_forever, daemon=True).start()
        config = self.directory / "backlog.yaml"
        names = {"bootstrap": self.bootstrap, "url": self.database, "topic": self._prepared}
        config.write_text(_CONFIG.format(port=self._answers.server_port, **names))
        paying = (self.ledger.topic, self._prepared, self.ledger.begun, RATE)
        return {
            APPLICATION: Part(cast.serve_payments, (self.database, self.bootstrap, *paying)),
            **dict.fromkeys(INSTANCES, Part(cast.look_back, (config,))),
        }

    def add_old_day(self) -> None:
        """Messages that ended long ago, for the next instance that starts."""
        day = _OLD + timedelta(days=self._days)
        self._days += 1
        add_old(self._look_back, _OF_A_DAY, State.FORWARDED, day)

    def await_sent(self) -> None:
        await_handled(self.client, self._prepared, self._prepared, PARTITIONS)
        wait_until(
            lambda: not any(one.messages for one in count_messages(self._look_back)),
            60,
            "all of it is settled",
        )

    def find_problems(self) -> list[str]:
        """Incidents, and old days that are not archived whole and dropped."""
        found = super().find_problems()
        found += [f"incident: {one}" for one in list_incidents(self._look_back, 10)]
        for number in range(self._days):
            day = _OLD + timedelta(days=number)
            file = self.directory / "archive" / f"{day.isoformat()}.parquet"
            kept = pq.read_metadata(file).num_rows if file.exists() else 0
            with self._look_back.read() as connection:
                is_there = day in list_partitions(connection)
            if is_there or kept != _OF_A_DAY:
                found.append(f"{day}: {kept} of {_OF_A_DAY} archived, dropped: {not is_there}")
        return found

    def close(self) -> None:
        """With who answers."""
        super().close()
        self._answers.shutdown()
        self._answers.server_close()
        self._engine.dispose()
        self._look_back.close()
