"""Look-back is killed at each of its steps; applications fall silent meanwhile.

The oracle: the message of every committed business row at least once and with one id, that of no
rolled-back one ever.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
from confluent_kafka import Producer

from delivery.lookback.database import Database
from delivery.lookback.operating import count_messages, list_incidents
from delivery.lookback.producer import LookBackProducer
from delivery.lookback.states import make_id
from sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.crash.points import LOOK_BACK_POINTS
from tests.delivery.lookback.world import read_ids, serve_answers
from tests.kafka_tools import wait_until

_OF_EACH = 12
# After it the next instance goes on from the group's offsets, for which it waits until the dead
# member's session ends. After others it reads all again, which changes nothing.
_KEPT = "p8.applied.before"

_CONFIG = """\
clusters: {{main: {{bootstrap.servers: "{bootstrap}"}}}}
look_back:
  database: {url}
  cluster: main
  topic: {topic}
  group: {group}
  first_check: 1ms
  pause: 10ms
  longest_pause: 100ms
  max_checks: 1000000
  listen: 127.0.0.1:0
  services: {{payments: {{http: "{answers}/ok", networks: [127.0.0.0/8]}}}}
"""


class _Shop:
    """Business transactions, of which some end without a word to look-back."""

    def __init__(self, url: str, sender: LookBackProducer, out: str) -> None:
        self._connection = psycopg.connect(url.replace("+psycopg", ""))
        self._connection.execute("CREATE TABLE payments (id text PRIMARY KEY)")
        self._connection.commit()
        self._sender, self._out = sender, out
        self._chance = random.Random(7)
        self._number = 0
        self.committed: set[str] = set()
        self.rolled_back: set[str] = set()

    def trade(self, count: int) -> None:
        for _ in range(count):
            self._number += 1
            biz_id = str(self._number)
            self._sender.prepare("payment", biz_id, topic=self._out, key=biz_id, value=b"{}")
            self._connection.execute("INSERT INTO payments VALUES (%s)", [biz_id])
            commits, speaks = self._chance.random() < 0.6, self._chance.random() < 0.5
            if commits:
                self._connection.commit()
                self.committed.add(biz_id)
            else:
                self._connection.rollback()
                self.rolled_back.add(biz_id)
            if speaks:
                end = self._sender.commit if commits else self._sender.roll_back
                end("payment", biz_id)

    def close(self) -> None:
        self._connection.close()


def _start(config: Path, crash_at: str = "") -> subprocess.Popen[bytes]:
    with (config.parent / "stderr").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "replay.cli", "lookback", "run", "--config", str(config)],
            env={**os.environ, "BACKLOG_CRASH_AT": crash_at},
            start_new_session=True,
            stderr=log,
            stdout=subprocess.DEVNULL,
        )


def test_fault_45_killed_at_each_step_no_committed_message_is_lost_and_no_other_sent(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str, pg_url: str, tmp_path: Path
) -> None:
    own, out = topic(2), topic(2)
    sender = LookBackProducer(
        Producer({"bootstrap.servers": kafka.bootstrap}), "payments", topic=own
    )
    config = tmp_path / "backlog.yaml"
    database = Database(pg_url)
    shop = _Shop(pg_url, sender, out)
    with serve_answers() as answers:

        def configure(number: int) -> None:
            names = {"topic": own, "group": f"{group}-{number}", "answers": answers.url}
            config.write_text(_CONFIG.format(bootstrap=kafka.bootstrap, url=pg_url, **names))

        def trade() -> None:
            shop.trade(_OF_EACH)
            answers.statuses |= dict.fromkeys(shop.committed, "committed")
            answers.statuses |= dict.fromkeys(shop.rolled_back, "rolled_back")

        configure(0)
        for number, point in enumerate(LOOK_BACK_POINTS):
            trade()
            # Not always at the first: some of what was under way is then done.
            running = _start(config, f"{point}:{1 + number % 2}")
            try:
                # Where its work is done before it comes to the point again, there is more.
                while True:
                    try:
                        running.wait(3)
                        break
                    except subprocess.TimeoutExpired:
                        trade()
            finally:
                running.kill()
            assert running.returncode == -signal.SIGKILL, (tmp_path / "stderr").read_text()
            # As if the leases of the dead had run out.
            with database.write() as connection:
                connection.exec_driver_sql("UPDATE look_back_messages SET lease_until = now()")
            if point != _KEPT:
                configure(number + 1)
        trade()
        running = _start(config)
        try:
            wait_until(lambda: shop.committed <= read_ids(kafka.bootstrap, out).keys())
            wait_until(lambda: sum(one.messages for one in count_messages(database)) == 0)
            running.send_signal(signal.SIGTERM)
            assert running.wait(60) == 0
        finally:
            running.kill()
    found = read_ids(kafka.bootstrap, out)
    assert found.keys() == shop.committed
    assert not shop.rolled_back & found.keys()
    for biz_id, ids in found.items():
        assert set(ids) == {make_id(own, "payment", biz_id)}
    assert list_incidents(database, 10) == []
    database.close()
    shop.close()
