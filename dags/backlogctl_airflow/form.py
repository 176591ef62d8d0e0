"""The form of `recover_backlog`."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param

from backlog.config.outline import Outline
from fanout.layout import MAX_FACTOR
from replay.expand_plans import ORDERS
from replay.runbooks.requests import ACTIONS, AUTO, BY_STREAM

# Fields without a section come first, and are seen at once.
_REBUILD, _EXPAND, _RECORD = "Rebuild", "Expand", "Approval and record"
_NOTHING_TO_CHOOSE = "(no stream: see the note above)"
_ACTION_WORDS = {
    "auto": "auto: what the verdict suggests; drain first, then rebuild",
    "expand": "expand: drain the backlog through a temporary topic",
    "rebuild": "rebuild: put lost messages back from the source table",
}


def make_form(outline: Outline) -> dict[str, Param]:
    """The fields, from the streams of the configuration."""
    names = [stream.name for stream in outline.streams]
    # Without names anything goes, and the first task tells what is wrong with the file.
    choice: dict[str, Any] = {"enum": names} if names else {}
    problem = f" **{outline.problem}**" if outline.problem else ""
    return {
        "stream": Param(
            names[0] if names else _NOTHING_TO_CHOOSE,
            type="string",
            **choice,
            title="Stream",
            description_md=f"What is behind, or has lost messages.{problem}",
        ),
        "action": Param(
            AUTO,
            type="string",
            enum=list(ACTIONS),
            values_display=_ACTION_WORDS,
            title="Action",
            description_md="Every plan is shown before anything is changed.",
        ),
        "since": _optional_time("Since", "Read source rows from this time on"),
        "until": _optional_time("Until", "Read source rows up to this time"),
        "order": Param(
            BY_STREAM,
            type="string",
            enum=[BY_STREAM, *ORDERS],
            title="Order",
            description_md="`key` keeps messages of a key in order; `round_robin` spreads evenly.",
            section=_EXPAND,
        ),
        "factor": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            maximum=MAX_FACTOR,
            title="Factor",
            description_md="Temporary partitions and consumers for each one. Empty: as configured.",
            section=_EXPAND,
        ),
        "rate": Param(
            None,
            type=["null", "number"],
            exclusiveMinimum=0,
            title="Rate",
            description_md="Messages one consumer handles a second. Empty: as measured.",
            section=_EXPAND,
        ),
        "note": Param(
            "",
            type=["null", "string"],
            maxLength=500,
            title="Incident note",
            description_md="For the approval and the report, such as `INC-4711`.",
            section=_RECORD,
        ),
        "answer_within": Param(
            None,
            type=["null", "string"],
            pattern=r"^([0-9]+(ms|[smhd]))+$",
            title="Answer within",
            description_md="No answer in this time means no, such as `2h`. Empty: "
            "`guards.approval_expires`.",
            section=_RECORD,
        ),
        "recovery": Param(
            None,
            type=["null", "string"],
            title="Existing plan",
            description_md="A plan that was made already, such as `r-20261121-0007`. Empty: "
            "make one.",
            section=_RECORD,
        ),
    }


def _optional_time(title: str, told: str) -> Param:
    return Param(
        None,
        type=["null", "string"],
        format="date-time",
        title=title,
        description_md=f"{told}. Empty: from the samples.",
        section=_REBUILD,
    )
