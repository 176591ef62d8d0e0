"""Takes the pictures of the Airflow runbook from a running `make airflow` into docs/img/.

`make airflow` in one terminal; then: scripts/picture_airflow.py ADDRESS PASSWORD_OF_ONCALL
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
OUT = ROOT / "docs/img"
COLOURS = 128


def main(address: str, password: str) -> None:
    """Triggers a recovery of the shop's orders, and leaves it waiting."""
    from tests.dags.browsing import Visit, open_browser

    with open_browser() as browser:
        visit = Visit(browser, address.rstrip("/"))
        visit.log_in("oncall", password)
        visit.open_form()
        visit.choose("stream", "orders")
        visit.page.wait_for_timeout(1000)  # the dialog moves in
        take(visit, "airflow-form")
        run_id = visit.trigger()
        visit.page.get_by_text("Required Action").first.wait_for(timeout=180_000)
        visit.open_question(run_id, "rebuild.approve")
        visit.page.wait_for_timeout(1000)
        take(visit, "airflow-approval")
        visit.open_recovery(run_id).get_by_text("planned by").wait_for()
        take(visit, "airflow-page")


def take(visit: object, name: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        raw = Path(directory) / "raw.png"
        visit.page.screenshot(path=raw)  # type: ignore[attr-defined]
        Image.open(raw).convert("RGB").quantize(COLOURS).save(OUT / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
