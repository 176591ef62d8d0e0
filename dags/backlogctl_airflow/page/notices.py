"""Pages of this application's own: no login, no right, a wrong configuration, which recovery."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from backlog.clock import utc_now
from backlog.config import mask_secrets
from backlog.values import Recovery
from replay.console.page.rendering import make_environment
from replay.console.page.words import say_ago

if TYPE_CHECKING:
    from fastapi.responses import HTMLResponse
    from jinja2 import Environment

# Seconds between two looks, as long as no configuration says another.
_LOOKS_AGAIN = 10


def make_notice(
    title: str,
    told: str,
    *,
    up: str,
    status: int = 200,
    hint: str = "",
    recoveries: Iterable[Recovery] = (),
    kind: str = "recoveries",
    home: bool = True,
) -> HTMLResponse:
    """A page that says one thing, in the style of the others; secrets in it are masked.

    Args:
        up: the way to the overview from it: "" or some `../`.
        recoveries: to choose one of. kind: what of it is led to, `recoveries` or `reports`.
        home: whether the overview is of any use to who reads it.
    """
    rows = [{"recovery": one, "command": ""} for one in recoveries]
    return _render(
        "notice.html",
        status,
        title=title,
        told=told,
        up=up or "./",
        hint=hint,
        rows=rows,
        kind=kind,
        home=home,
    )


def make_login(address: str) -> HTMLResponse:
    """What is said without a login; it needs no other file, which would ask for one too."""
    return _render("login.html", 401, login=address)


def _render(template: str, status: int, **values: Any) -> HTMLResponse:
    from fastapi.responses import HTMLResponse

    now = utc_now()
    text = (
        _make_environment()
        .get_template(template)
        .render(now=now, ago=partial(say_ago, now=now), refresh=_LOOKS_AGAIN, **values)
    )
    return HTMLResponse(text, status)


@cache
def _make_environment() -> Environment:
    return make_environment(mask_secrets, "backlogctl_airflow.page", "replay.console.page")
