"""Where Airflow finds the runbooks: inside the installed package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backlogctl.dags.airflow_internals import LocalDagBundle

RUNBOOKS = Path(__file__).parent / "runbooks"


class RunbookBundle(LocalDagBundle):
    """To be named in `[dag_processor] dag_bundle_config_list`."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.pop("path", None)
        super().__init__(path=str(RUNBOOKS), **kwargs)
