"""Step 2: the staged messages are those of the plan."""

from __future__ import annotations

from backlog.errors import StagingError
from backlog.step import Step
from backlog.values import GapState
from replay.injection.context import InjectionContext


class StageCheck(Step[InjectionContext]):
    """Reads the manifest and checks its hash; each chunk's own hash is checked as it is sent."""

    name = "stage_check"

    def validate(self, context: InjectionContext) -> None:
        """The manifest is the approved one and its files are there.

        Raises:
            StagingError: they are missing or changed.
        """
        manifest = context.manifest
        if (
            manifest.recovery_id != context.recovery.id
            or manifest.topic != context.plan.target_topic
        ):
            raise StagingError(
                "the manifest is of another recovery",
                subject=str(context.directory),
                hint="cancel this recovery and plan again",
            )
        if manifest.count != context.plan.message_count:
            raise StagingError(
                "the manifest and the plan count differently", subject=str(context.directory)
            )
        for chunk in manifest.chunks:
            if not (context.directory / chunk.path).is_file():
                raise StagingError(
                    "staged messages are missing",
                    subject=str(context.directory / chunk.path),
                    hint="restore the staging directory, or cancel this recovery and plan again",
                )

    def start(self, context: InjectionContext) -> None:
        """The gaps are staged."""
        context.workspace.ledger.chunks.add_all(context.recovery.id, context.manifest.chunks)
        context.advance_gaps(GapState.STAGED, [GapState.PLANNED])
