"""Disks nearly full: what is unread goes into an archive, and its space is freed."""

from __future__ import annotations

from airflow.sdk import DAG

from backlogctl.dags.form import make_fields
from backlogctl.dags.layout import lay_out_tasks
from backlogctl.dags.policies import OFFLOAD, TAGS, read_outline
from backlogctl.dags.tasks import DAG_DEFAULTS
from backlogctl.replay.engine.kind import Registry
from backlogctl.replay.kinds import OFFLOAD as KIND

DOC = """
### The brokers' disks are nearly full, and nobody reads fast enough

1. **Trigger** with the stream whose unread messages take the space.
2. **Look at the plan** under *Required Actions*: how much is freed, where the archive goes, who
   else would lose messages. Nothing is changed before you approve.
3. **Approve**. Its consumers stop, what is unread is archived and read back, and only then deleted
   from the brokers. The consumers go on with what is fresh.

At night `nightly_backfill` puts the archive's messages back, each once.
"""
ONLY = Registry((KIND,))

with DAG(
    OFFLOAD,
    description="Moves what is unread into an archive, and frees the brokers' disks.",
    schedule=None,
    params=make_fields(read_outline(), ONLY),
    doc_md=DOC,
    default_args=dict(DAG_DEFAULTS),
    tags=TAGS,
    max_active_runs=16,
    max_active_tasks=8,
) as dag:
    lay_out_tasks(dag, ONLY)
