"""Notifications of `backlogctl watch`: the next command and the page are those of the page."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from backlog.clock import utc_now
from backlog.errors import BacklogError
from monitoring.notifications.changes import Look
from monitoring.notifications.notifier import Notifier
from monitoring.notifications.posting import MessageContext
from monitoring.observing import measure_skew
from monitoring.outages import OnOutage
from replay.around.observation import find_page
from replay.console.page.statuses import choose_commands, shorten_commands
from replay.recovery.states import ACTIVE
from replay.recovery.workspace import Workspace
from replay.telling.documents import list_next_commands


def open_notifier(workspace: Workspace, on_outage: OnOutage) -> Notifier:
    """The hooks of the configuration; they are told while its `with` block runs.

    Args:
        on_outage: called when a hook fails, and again when it works.
    """
    skew = measure_skew(workspace.ledger)
    return Notifier(
        workspace.config.watch.hooks,
        on_outage,
        partial(_find_context, workspace, skew),
        clock=lambda: utc_now() + skew,
    )


def _find_context(workspace: Workspace, skew: timedelta, look: Look) -> MessageContext:
    now = utc_now() + skew
    next_command = shorten_commands(partial(list_next_commands, workspace), lambda: now)
    try:
        active = workspace.ledger.recoveries.list(look.stream, ACTIVE)
        commands = {recovery.id: next_command(recovery) for recovery in active}
    except BacklogError:
        # Recoveries are unknown then; the verdict's own commands are not.
        active, commands = (), {}
    return MessageContext(
        choose_commands(look.stream, look.status, tuple(active), commands, now),
        find_page(workspace.config, look.stream),
    )
