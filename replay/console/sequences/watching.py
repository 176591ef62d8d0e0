"""The rounds of the sequence check, in a thread of their own, beside the sampling."""

from __future__ import annotations

import logging
import threading
import time
from typing import Self

from backlog.config import Stream, mask_secrets
from backlog.errors import BacklogError
from monitoring.board import Board, SequenceLook
from monitoring.outages import OnOutage, Outages
from replay.audits.audit import GRACE
from replay.console.sequences.reading import SequenceReader
from replay.recovery.workspace import Workspace

LOG = logging.getLogger("backlog.replay.sequences")
_STOP_SECONDS = 2.0
_LEAST_SECONDS = 1.0


class SequenceWatch:
    """Reads the streams that say `sequence: true` while the `with` block runs."""

    def __init__(
        self,
        workspace: Workspace,
        board: Board,
        on_outage: OnOutage,
        grace: float | None = None,
    ) -> None:
        self._workspace, self._board = workspace, board
        self._outages = Outages(on_outage)
        self._grace = GRACE.total_seconds() if grace is None else grace
        watch = workspace.config.watch
        self._interval, self._keep = watch.interval.total_seconds(), watch.horizon.total_seconds()
        self._streams = [one for one in workspace.config.streams.values() if one.sequence]
        self._readers: dict[str, SequenceReader] = {}
        self._told: dict[str, int] = {}
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name="backlog-sequences", daemon=True)

    def __enter__(self) -> Self:
        if self._streams:
            self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._streams:
            # It may wait for a broker that is away; as a daemon it ends with the process.
            self.thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            began = time.monotonic()
            for stream in self._streams:
                if not self._stop.is_set():
                    self._look(stream)
            # At once where a topic is faster than a round.
            pause = max(0.0, self._interval - (time.monotonic() - began))
        for reader in self._readers.values():
            reader.close()

    def _look(self, stream: Stream) -> None:
        what = f"the sequence check of {stream.name}"
        try:
            reader = self._find_reader(stream)
            seconds = max(_LEAST_SECONDS, self._interval / len(self._streams))
            look = reader.read(seconds, self._stop)
        except BacklogError as error:
            self._outages.begin(what, error)
            self._fail(stream, mask_secrets(str(error)))
        except Exception as error:
            # A round must not end all rounds in silence.
            LOG.exception("%s failed", what)
            self._fail(
                stream, f"internal error ({type(error).__name__}); see the log and report it"
            )
        else:
            self._outages.end(what)
            self._board.put_sequence(stream.name, look)
            self._tell_new(stream, look)

    def _find_reader(self, stream: Stream) -> SequenceReader:
        if stream.name not in self._readers:
            properties = self._workspace.properties(stream)
            self._readers[stream.name] = SequenceReader(stream, properties, self._grace, self._keep)
        return self._readers[stream.name]

    def _fail(self, stream: Stream, trouble: str) -> None:
        reader = self._readers.get(stream.name)
        look = (
            SequenceLook(stream.cluster, trouble=trouble)
            if reader is None
            else reader.tell_trouble(trouble)
        )
        self._board.put_sequence(stream.name, look)

    def _tell_new(self, stream: Stream, look: SequenceLook) -> None:
        lost = look.lost or 0
        if lost > self._told.get(stream.name, 0):
            LOG.warning(
                "stream %s: %s numbered messages are missing; next: backlogctl audit sequence %s",
                stream.name,
                lost,
                stream.name,
            )
        self._told[stream.name] = lost
