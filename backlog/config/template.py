"""The commented backlog.yaml that `backlogctl init` writes, in its sections."""

from __future__ import annotations

HEAD = """\
# backlog.yaml: what backlogctl watches and repairs. Every key: docs/configuration.md
#
# Secrets do not stand here. Give them as ${env:NAME} or ${file:PATH}, also within a longer text
# such as a URL; the value is percent-encoded there, so the variable holds the password as it is.
# Relative paths are relative to this file. An unknown key is an error.

# The record of samples, gaps and recoveries. SQLite needs nothing; several hosts need PostgreSQL:
# ledger: postgresql+psycopg://backlog:${env:LEDGER_PASSWORD}@db.example.com/backlog
ledger: sqlite:///backlog.db

# Staged messages: exactly what will be sent, readable by the owner only.
staging:
  dir: ./staging
  keep: 30d
  # Where `plan offload` puts archives; not on a broker's disk. Without it, in `dir`.
  # archive: s3a://bucket/backlog    # or a directory

# The topic, on the same cluster as the stream, that says which messages were put back. It is
# created at the first run.
# kafka_ledger:
#   topic: backlog-recovery-ledger
#   transactional_prefix: backlog
#   partitions: 12
#   replication: 3

# spark:
#   master: "local[*]"
#   conf:
#     spark.driver.memory: 4g

# watch:
#   interval: 30s
#   horizon: 24h
#   hooks:                     # told when a verdict changes; `backlogctl watch --test-hooks`
#     team:
#       apprise: ${env:SLACK_URL}    # slack://…, pagerduty://…, mailto://…; or webhook
#       from: warn

# guards:
#   deny_topics: ["__*"]       # no stream may have these
#   approval_expires: 24h

"""
_CLUSTERS = """\
clusters:
  main:
    # Properties of the Kafka client. Those that load or run code are refused.
    bootstrap.servers: localhost:9092
    # security.protocol: SASL_SSL
    # sasl.mechanism: SCRAM-SHA-512
    # sasl.username: backlog
    # sasl.password: ${env:KAFKA_PASSWORD}
    # ssl.ca.location: ./ca.pem

"""
SOURCES = """\
sources:
  shop:
    # The database that lost messages are rebuilt from: PostgreSQL or SQLite. A user that may
    # only read is enough. `export SHOP_PASSWORD=...` before each command.
    url: postgresql+psycopg://backlog_reader:${env:SHOP_PASSWORD}@localhost/shop
    timezone: UTC              # of time columns without a zone
    # limits:
    #   connections: 4
    #   fetch_size: 10000
    #   statement_timeout: 10m

"""
_STREAMS = """\
streams:
  orders:
    cluster: main
    topic: orders
    group: order-service       # the consumer group that must read the topic
"""
OF_A_STREAM = """\
    isolation: read_committed  # how it reads: read_committed | read_uncommitted
    partitioner: murmur2       # how the producers place keys: murmur2 (Java) | crc32 (librdkafka)
    approval: named            # named | second_person | auto
    # Where an outbox of backlogctl sends the messages, `source: {outbox: shop}` is all that is
    # needed (docs/outbox.md).
    source:
      database: shop
      table: orders            # or schema.table
      primary_key: order_id    # or [tenant_id, order_id]
      time_column: updated_at
      # time_unit: ms          # where it holds numbers: s | ms since 1970
      # where: {kind: order}   # which rows, where the table holds others too
      # order_by: [updated_at, order_id]
      # Whether rows change after their message was sent. `false`: a plan can be exact
      # (docs/accuracy.md); `true`: rows are sent as they are now, also some that were handled.
      mutable: true
      margin: 10m              # rows may be committed that much later than their time says
      message:
        key: order_id          # a column, or {sql: "..."}
        # As the producers write it: docs/messages.md. Decimals and times are text here.
        value:                 # or {column: payload}, or {sql: "..."}
          json: [order_id, user_id, status, amount, updated_at]
        # headers:
        #   type: "'OrderPaid'"   # SQL, so a fixed text has its own quotes
      identity:                # how a row and its message are known to belong together
        row: order_id
        message: key           # key | header:NAME
      # What the consumer says it handled, where it keeps a table of that. Without it, keep
      # `watch` running, which notes where the group stands. It does not tell of later changes.
      # consumed:
      #   database: shop
      #   table: processed_orders
      #   column: order_id
      #
      # Rows at the edge of a loss, of which it is not certain whether they were lost: include
      # (the consumer drops repeats) or exclude. Without it each as is most likely.
      # edge: include
      #
      # An old message after a newer one of the same key:
      #   restate  the row's current version is sent
      #   events   append-only events, sent as they were (identity by header)
      #   refuse   nothing is rebuilt
      stale: restate
    # How the group's consumers are started and stopped; an expansion and an offload need it. A
    # consumer learns what to read from BACKLOG_TOPIC, BACKLOG_GROUP and BACKLOG_BOOTSTRAP_SERVERS.
    # consumers:
    #   launcher: process        # process | command | manual
    #   command: [python, -m, order_service, "--group={group}"]
    #   replicas: 3
    #   directory: .             # where it runs; relative to this file
    #   environment:
    #     DATABASE_PASSWORD: ${env:SHOP_PASSWORD}
    #   stop_within: 60s
    #   max_consumers: 60
    #   ramp:
    #     step: 10
    #     every: 1s
    # expand:
    #   factor: 10               # ten times the partitions, ten times the consumers
    #   order: key               # key | round_robin
    #   max_lag_at_cutover: 1000
    # Needed by name when other groups read the topic too: they get the messages again.
    # deliver: topic
    # off_peak:
    #   from: "00:30"
    #   to: "06:00"
    #   timezone: Europe/Berlin
    # limits:
    #   messages_per_second: 5000
    #   max_live_lag: 10000
    #   max_messages: 5000000
    # What is not shown of messages: JSON fields at any depth, header:NAME, key or value.
    # mask: [email, header:authorization]
    # Dead letters of a framework of your own (Spring Kafka's and Kafka Connect's are known).
    # redrive:
    #   max_replays: 3
    #   rehearsal_keep: 24h
    #   dead_letters:
    #     topic: failed-topic        # the headers' names
    #     partition: failed-partition
    #     offset: failed-offset
    #     error: failed-because
"""

OUTBOXES = """\

# Databases under `sources` whose messages `backlogctl outbox run` sends (docs/outbox.md).
# outboxes:
#   shop:
#     cluster: main
#     keep: 30d                # of what is sent; longer than the topics' retention
#     listen: 127.0.0.1:9406   # /metrics of `outbox run`
"""


def render_template() -> str:
    """A backlog.yaml to edit; it loads as it is with `SHOP_PASSWORD` set."""
    return HEAD + _CLUSTERS + SOURCES + _STREAMS + OF_A_STREAM + OUTBOXES
