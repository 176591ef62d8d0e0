"""Of two answers to one question the first that is written counts, by Airflow's own database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from airflow.models.hitl import HITLDetail
from sqlalchemy import MetaData, Table, create_engine, event, select
from sqlalchemy.orm import Session, lazyload
from starlette.exceptions import HTTPException

from backlogctl.dags.plugin import refuse_second

TI = uuid4()


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def sessions(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Session, Session]]:
    """Of two API servers, which show one question; without the rest of Airflow's tables."""
    name = request.param
    url = f"sqlite:///{tmp_path}/airflow.db"
    if name != "sqlite":
        url = request.getfixturevalue("pg_url" if name == "postgres" else "mariadb_url")
    options = {} if name == "sqlite" else {"isolation_level": "READ COMMITTED"}
    engine = create_engine(url, **options)
    known = HITLDetail.__table__
    columns = [column._copy() for column in known.columns]
    Table(known.name, MetaData(), *columns).create(engine)
    event.listen(HITLDetail, "before_update", refuse_second)
    with Session(engine) as first, Session(engine) as second:
        first.add(HITLDetail(ti_id=TI, options=["Approve", "Reject"], subject="a plan"))
        first.commit()
        yield first, second
    event.remove(HITLDetail, "before_update", refuse_second)
    engine.dispose()


def read(session: Session) -> HITLDetail:
    alone = select(HITLDetail).options(lazyload(HITLDetail.task_instance))
    found: HITLDetail = session.scalars(alone).one()
    return found


def answer(detail: HITLDetail, option: str) -> None:
    detail.chosen_options = [option]
    detail.responded_at = datetime.now(UTC)


def test_fault_167_the_first_of_two_answers_counts(sessions: tuple[Session, Session]) -> None:
    """Both were given to who had read that there is none. Asked anew, there is a first one again."""
    first, second = sessions
    no, yes = read(first), read(second)
    answer(no, "Reject")
    first.commit()
    answer(yes, "Approve")
    with pytest.raises(HTTPException) as told:
        second.commit()
    assert told.value.status_code == 409
    second.rollback()
    found = read(second)
    assert found.chosen_options == ["Reject"]
    found.params_input = {"seen": True}
    second.commit()
    found.responded_at = None
    second.commit()
    answer(read(second), "Approve")
    second.commit()
    assert read(second).chosen_options == ["Approve"]
