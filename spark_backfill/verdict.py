"""The comparison of what was lost with what was rebuilt, partition by partition (P2.10); pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.errors import Refused, StagingError
from backlogctl.spark_backfill.evidence.injected import (
    INJECTED,
    LOST,
    OUTSIDE,
    QUARANTINED,
    SURVIVING,
)
from backlogctl.spark_backfill.failures import translating
from backlogctl.spark_backfill.request import (
    PartitionOutcome,
    Proof,
    Quarantine,
    Quarantined,
    RebuildRequest,
    Stretch,
    Uncertain,
    UncertainRow,
)
from backlogctl.spark_backfill.spark.frames import freeze
from backlogctl.values import Gap, OffsetRange

EXACT = "exact"
WITHIN = "within"
COVERING = "covering"
SHORT = "short"
SURPLUS = "surplus"


@dataclass(frozen=True, slots=True)
class Tally:
    """What was counted, by partition. A partition that is missing has none.

    `unplaced` quarantined rows have no partition, since their key could not be read. `forced`:
    how many more uncertain rows are rebuilt (or fewer: negative) than are likely, as `edge` says.
    """

    rebuilt: Mapping[int, int]
    surviving: Mapping[int, int]
    quarantined: Mapping[int, int]
    unplaced: int = 0
    injected: Mapping[int, int] = field(default_factory=dict)
    forced: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VerdictBasis:
    """What is known about the inputs of the comparison.

    Attributes:
        blurred: partitions where only times say which rows were lost.
        advice: why, and what would say it better.
        counted: which rows of a partition are lost, counting says.
        uncertain: rows at a gap's edge that may be lost or not, by partition.
        evidence: what says where the loss begins, by partition.
        differs: by how many rows the check of that says otherwise, by partition.
        uneven: partitions where a gap has another number of rows than of messages, even if the
            partition's total fits.
        unread: what of the table was not read, or hidden, that may have lost messages; empty where
            all was read.
        bounded: some gap's range is itself only an upper bound.
        holes: why offsets in the ranges need not be messages; empty where they are.
        collapsible: rows are mutable and restated, so one may stand for several messages.
        spread: messages without a key were spread, their partition is a guess.
        unordered: rows without a place in the log that may be lost ones; empty for none.
        ragged: what survivors show of rows without a message, of messages without a row, or that
            they are too few to show it; empty where all is well.
        unproved: why the rules are not proved on survivors; empty where they are.
        gone: messages that were put back before and lost again, and are nowhere any more.
        unlisted: what was put back before and is not known; empty where all is.
        unsure: why the schema of the lost messages is not known; empty where it is, or they have
            none.
    """

    blurred: Sequence[int] = ()
    advice: str = ""
    counted: bool = False
    uncertain: Mapping[int, int] = field(default_factory=dict)
    evidence: Mapping[int, str] = field(default_factory=dict)
    differs: Mapping[int, int] = field(default_factory=dict)
    uneven: Sequence[int] = ()
    unread: str = ""
    bounded: bool = False
    holes: str = ""
    collapsible: bool = False
    spread: bool = False
    unordered: str = ""
    ragged: str = ""
    unproved: str = ""
    gone: int = 0
    unlisted: str = ""
    unsure: str = ""


@dataclass(frozen=True, slots=True)
class RebuildVerdict:
    """`kind` is exact, within, covering, short or surplus; `reasons` say why it is not exact."""

    kind: str
    partitions: tuple[PartitionOutcome, ...]
    reasons: tuple[str, ...]


def count_expected(
    ranges: Sequence[OffsetRange], stretches: Sequence[Stretch] = ()
) -> dict[int, int]:
    """Offsets lost by partition; ranges that overlap count once, and the control records of
    earlier recoveries not at all."""
    expected: dict[int, int] = {}
    last: dict[int, int] = {}
    for item in sorted(ranges, key=lambda r: (r.partition, r.start, r.end)):
        start = max(item.start, last.get(item.partition, item.start))
        markers = sum(
            s.partition == item.partition and start <= s.end - 1 < item.end for s in stretches
        )
        count = max(0, item.end - start) - markers
        expected[item.partition] = expected.get(item.partition, 0) + count
        last[item.partition] = max(item.end, last.get(item.partition, item.end))
    return expected


def count_unsent(gaps: Sequence[Gap]) -> dict[int, int]:
    """Messages by partition that never reached the topic: their producer numbered them."""
    expected: dict[int, int] = {}
    for gap in gaps:
        if gap.sequences is not None:
            expected[gap.partition] = expected.get(gap.partition, 0) + gap.sequences.count
    return expected


def judge_plan(expected: Mapping[int, int], tally: Tally, basis: VerdictBasis) -> RebuildVerdict:
    """Compares per partition: equal totals prove nothing, since errors cancel out.

    Args:
        expected: offsets of the gaps by partition; a partition without a gap is not in it.
    """
    numbers = sorted({*expected, *tally.rebuilt, *tally.quarantined})
    partitions = tuple(_judge_partition(number, expected, tally, basis) for number in numbers)
    surplus = sum(item.surplus for item in partitions)
    shortfall = sum(item.shortfall for item in partitions)
    quarantined = sum(item.quarantined for item in partitions) + tally.unplaced
    collapsed = sum(item.collapsed for item in partitions)
    uncertain = sum(basis.uncertain.values())
    before = sum(min(p.shortfall, tally.injected.get(p.partition, 0)) for p in partitions)
    said: tuple[tuple[object, str], ...] = (
        (
            surplus,
            f"{surplus} rebuilt messages more than were lost, in partitions "
            f"{_join([item.partition for item in partitions if item.surplus])}: "
            "rows that were read before, or whose message was never sent",
        ),
        (shortfall, _explain_shortfall(shortfall, before, collapsed, quarantined, basis)),
        (not shortfall and basis.holes, f"offsets are at most that many messages: {basis.holes}"),
        (quarantined, f"{quarantined} rows cannot be built and are in quarantine"),
        (
            basis.uneven and not basis.holes,
            f"gaps in partitions {_join(basis.uneven)} have more or fewer rows than messages, "
            "though their totals fit: rows that are gone, and others that were never sent",
        ),
        (basis.unread, basis.unread),
        (basis.bounded, "a gap's range is an upper bound: the group may have read some of it"),
        (basis.spread, "messages without a key were spread: their old partition is unknown"),
        (
            basis.blurred and not basis.collapsible,
            f"where the loss begins in partitions {_join(basis.blurred)} is known by the samples' "
            f"times only: {basis.advice}",
        ),
        (basis.unordered, basis.unordered),
        (
            basis.counted and not basis.collapsible,
            "counting takes lost rows to be ordered as survivors are: one that is older than its "
            "message by more (a backfill, a row that was restored) would be missed, and a handled "
            "one sent for it; a bookmark of a row that no other ties with would show it",
        ),
        (basis.ragged, basis.ragged),
        (basis.unproved, f"the rules are not proved: {basis.unproved}"),
        (basis.unlisted, basis.unlisted),
        (basis.unsure, basis.unsure),
        (
            basis.gone,
            f"{basis.gone} messages that were put back before, and lost again, are in no archive, "
            "and no row is known to be theirs; where they came from (dead letters, the log) may "
            "have them still",
        ),
    )
    reasons = [text for is_so, text in said if is_so]
    kind = _find_kind(partitions, quarantined, uncertain, reasons, basis)
    place = "of these gaps" if basis.bounded else "at the edges of the gaps"
    if uncertain:
        reasons.append(f"{uncertain} rows {place} may be lost or not; they are listed")
    if kind == COVERING:
        reasons.append(
            "rows are sent as they are now: one that was not lost only says its newest state "
            "again, and one that gets a newer message before the run is left out"
        )
    return RebuildVerdict(kind, partitions, tuple(reasons))


def _find_kind(
    partitions: Sequence[PartitionOutcome],
    quarantined: int,
    uncertain: int,
    reasons: Sequence[str],
    basis: VerdictBasis,
) -> str:
    if basis.collapsible:
        # Every row that changed since the loss began is sent: nothing else can be missing.
        covered = all(item.shortfall <= item.collapsed for item in partitions)
        doubt = quarantined or basis.unproved or basis.unread or basis.gone
        return COVERING if covered and not doubt else SHORT
    if any(item.surplus for item in partitions):
        return SURPLUS
    if reasons:
        return SHORT
    return WITHIN if uncertain else EXACT


def _judge_partition(
    number: int, expected: Mapping[int, int], tally: Tally, basis: VerdictBasis
) -> PartitionOutcome:
    lost = expected.get(number, 0)
    rebuilt = tally.rebuilt.get(number, 0)
    surviving = tally.surviving.get(number, 0)
    quarantined = tally.quarantined.get(number, 0)
    likely = rebuilt - tally.forced.get(number, 0)
    shortfall = max(0, lost - likely)
    return PartitionOutcome(
        partition=number,
        expected=lost,
        rebuilt=rebuilt,
        surviving=surviving,
        quarantined=quarantined,
        collapsed=_count_collapsed(number, shortfall - quarantined, tally, basis),
        surplus=max(0, likely - lost),
        shortfall=shortfall,
        evidence=basis.evidence.get(number, ""),
        uncertain=basis.uncertain.get(number, 0),
        differs=basis.differs.get(number, 0),
    )


def _count_collapsed(number: int, missing: int, tally: Tally, basis: VerdictBasis) -> int:
    """Lost messages whose row may have a newer one, rebuilt or in the log, that covers them."""
    if not basis.collapsible:
        return 0
    newer = tally.surviving.get(number, 0) + tally.injected.get(number, 0)
    # Where no row at all is rebuilt, a few survivors do not explain many messages.
    most = missing if tally.rebuilt.get(number, 0) else newer
    return max(0, min(missing, most))


def _explain_shortfall(
    shortfall: int, before: int, collapsed: int, quarantined: int, basis: VerdictBasis
) -> str:
    may = []
    if before:
        may.append(f"up to {before} put back by an earlier recovery")
    if collapsed:
        may.append(f"up to {collapsed} collapsed (one row stands for several messages)")
    if quarantined:
        may.append(f"{quarantined} in quarantine")
    if basis.holes:
        may.append(f"at most {shortfall}, control records included ({basis.holes})")
    if not basis.collapsible:
        may.append("if rows change (`mutable`), one stands for several messages")
    may.append("rows that are gone from the table are unrecoverable")
    return f"{shortfall} lost offsets have no rebuilt message: {'; '.join(may)}"


def advise_on_growth(request: RebuildRequest, proof: Proof) -> str:
    """What to do where survivors lie in other partitions, and the topic may have had fewer."""
    if request.growth or all(item.what != "partition" for item in proof.differences):
        return ""
    return (
        "if it got partitions that no sample saw, it is not known when, nor which lost messages "
        f"are older: `backlogctl plan rebuild {request.stream.name} --allow proof --allow surplus` "
        "goes by no partition; with `consumed` it sends what that table does not name, else what "
        "was handled in the same times too"
    )


def _join(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:10])
    return f"{shown}, ..." if len(numbers) > 10 else shown


# Counting labelled candidates and listing those in quarantine; only counts reach the driver.

LISTED = 100


@dataclass(frozen=True, slots=True)
class LabelCounts:
    """Candidates by label and partition (None where unknown), and what else one pass can count.

    `by_label` goes by the partition that a row's message was sent to, or is counted for; `slots`
    has the lost ones by the partition that they are put back into.
    """

    by_label: Mapping[str, Mapping[int | None, int]]
    duplicates: int
    without_key: int  # lost, and their partition is a guess
    young: int  # lost, and changed so lately that their message may be on its way
    without_home: int = 0  # lost, without a key, and nothing tells their partition
    placed_by_key: Mapping[int, int] = field(default_factory=dict)  # lost, and known to be of it
    slots: Mapping[int, int] = field(default_factory=dict)
    uncertain: Mapping[int, int] = field(default_factory=dict)
    forced: Mapping[int, int] = field(default_factory=dict)  # as in Tally

    def total(self, label: str) -> int:
        """All of one label."""
        return sum(self.by_label.get(label, {}).values())

    def placed(self, label: str) -> dict[int, int]:
        """One label by partition."""
        found = self.by_label.get(label, {})
        return {slot: count for slot, count in found.items() if slot is not None}

    @property
    def candidates(self) -> int:
        return sum(self.total(label) for label in self.by_label)

    def to_tally(self) -> Tally:
        return Tally(
            rebuilt=self.placed(LOST),
            surviving=self.placed(SURVIVING),
            quarantined=self.placed(QUARANTINED),
            injected=self.placed(INJECTED),
            forced=self.forced,
            unplaced=self.by_label.get(QUARANTINED, {}).get(None, 0),
        )


def count_labels(decided: DataFrame, young_after: str) -> LabelCounts:
    """One narrow pass over the candidates.

    Args:
        decided: with their last label (`attribute_rows`).
        young_after: a time in the normal form.
    """
    with translating("count the candidates", subject="candidates", kind=StagingError):
        rows = decided.sparkSession.sql(
            f"""
            WITH marked AS (
                SELECT *, label = '{LOST}' AS is_lost, label = '{OUTSIDE}' AS is_outside,
                    home IS NULL AS alien
                FROM {{decided}}
            ), counted AS (
                -- A message without a key counts for the partition whose need it fills.
                SELECT *, CASE WHEN is_lost OR uncertain THEN coalesce(home, counted, slot)
                    ELSE home END AS partition
                FROM marked
            )
            SELECT label, partition, slot, alien, count(*) AS n, sum(copies) AS copies,
                count_if(is_lost AND key_is_null) AS without_key,
                count_if(is_lost AND time > '{young_after}') AS young,
                count_if(uncertain) AS uncertain,
                count_if(uncertain AND is_lost AND NOT likely) AS taken,
                count_if(uncertain AND is_outside AND likely) AS left
            FROM counted GROUP BY label, partition, slot, alien
            """,
            decided=decided,
        ).collect()
    by_label: dict[str, Counter[int | None]] = {}
    slots: Counter[int] = Counter()
    uncertain: Counter[int] = Counter()
    forced: Counter[int] = Counter()
    keyed: Counter[int] = Counter()
    without_home = 0
    for row in rows:
        by_label.setdefault(row["label"], Counter())[row["partition"]] += row["n"]
        if row["label"] == LOST:
            slots[row["slot"]] += row["n"]
            if row["alien"]:
                without_home += row["n"]
            else:
                keyed[row["partition"]] += row["n"]
        if row["uncertain"]:
            uncertain[row["partition"]] += row["uncertain"]
            forced[row["partition"]] += row["taken"] - row["left"]
    return LabelCounts(
        by_label,
        duplicates=sum(row["copies"] or 0 for row in rows),
        without_key=sum(row["without_key"] for row in rows),
        young=sum(row["young"] for row in rows),
        without_home=without_home,
        placed_by_key=keyed,
        slots=slots,
        uncertain=uncertain,
        forced=forced,
    )


def check_identity_unique(candidates: DataFrame, stream: str) -> None:
    """One identity for several rows would let one surviving message hide the others (P2.6).

    Raises:
        Refused: names how many, and some.
    """
    with translating("check the identity", subject=f"stream {stream}", kind=StagingError):
        found = candidates.sparkSession.sql(
            """
            SELECT count(*) AS n, min(identity) AS first FROM (
                SELECT identity FROM {candidates} WHERE identity IS NOT NULL
                GROUP BY identity HAVING count(*) > 1
            )
            """,
            candidates=candidates,
        ).first()
    if found is not None and found["n"]:
        example = bytes(found["first"]).decode("utf-8", "backslashreplace")[:60]
        raise Refused(
            f"{found['n']} identities stand for several rows each (one is {example!r}), so a "
            "surviving message of one row would hide the lost message of another",
            subject=f"stream {stream}",
            hint="let `identity` name something that each row has alone, such as an event id "
            "in a header",
        )


def write_quarantine(
    decided: DataFrame,
    key_names: Sequence[str],
    directory: Path,
    count: int,
) -> Quarantine:
    """Lists the rows that cannot be built, as Parquet, and a bounded sample of them."""
    if not count:
        return Quarantine(0, {}, (), "")
    rows = decided.where(F.col("label") == QUARANTINED).select(
        F.array(*key_names).alias("primary_key"), "time", F.col("home").alias("partition"), "reason"
    )
    kept = _list_rows(rows, directory / "quarantine", "list the quarantine")
    reasons = kept.groupBy("reason").count().orderBy("reason").limit(LISTED).collect()
    sample = kept.orderBy("primary_key", "reason").limit(LISTED).collect()
    return Quarantine(
        count=count,
        reasons={row["reason"]: row["count"] for row in reasons},
        sample=tuple(Quarantined(tuple(row["primary_key"]), row["reason"]) for row in sample),
        path=str(directory / "quarantine"),
    )


def write_uncertain(
    decided: DataFrame, key_names: Sequence[str], directory: Path, count: int
) -> Uncertain:
    """Lists the rows at the gaps' edges that may be lost or not, and a bounded sample of them."""
    if not count:
        return Uncertain()
    rows = decided.where("uncertain").select(
        F.col("home").alias("partition"),
        F.array(*key_names).alias("primary_key"),
        "time",
        (F.col("label") == LOST).alias("taken"),
    )
    kept = _list_rows(rows, directory / "uncertain", "list the uncertain rows")
    sample = kept.orderBy("partition", "time", "primary_key").limit(LISTED).collect()
    return Uncertain(
        count=count,
        taken=kept.where("taken").count(),
        sample=tuple(
            UncertainRow(row["partition"], tuple(row["primary_key"]), row["time"], row["taken"])
            for row in sample
        ),
        path=str(directory / "uncertain"),
    )


def _list_rows(rows: DataFrame, path: Path, doing: str) -> DataFrame:
    with translating(doing, subject=str(path), kind=StagingError):
        return freeze(rows.coalesce(1), str(path))
