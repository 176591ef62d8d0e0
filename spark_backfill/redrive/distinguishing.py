"""Dead letters that name one place and are other messages: each has an id of its own.

A topic that was made anew counts from zero again, and a header may be wrong. The oldest letter of a
place keeps the place's id; the id of another message comes from what it says, so that every plan
gives it the same one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PLACE = ("source_partition", "source_offset")
_ID_LENGTH = 32


def distinguish_letters(frozen: DataFrame) -> DataFrame:
    """The frozen letters, with other ids where key or value is not that of the oldest.

    Values are not shuffled, only their hashes; nothing is joined where no letter differs.
    """
    oldest = Window.partitionBy("message_id").orderBy("written_at", *_PLACE)
    named = frozen.select(*_PLACE, "message_id", "written_at", _hash_content().alias("content"))
    others = named.withColumn("first", F.first("content").over(oldest)).where(
        F.col("content") != F.col("first")
    )
    if others.isEmpty():
        return frozen
    made = F.substring(F.sha2(F.concat("message_id", "content"), 256), 1, _ID_LENGTH)
    renamed = others.select(*_PLACE, made.alias("other_id"))
    joined = frozen.join(renamed, list(_PLACE), "left")
    return joined.withColumn("message_id", F.coalesce("other_id", "message_id")).drop("other_id")


def _hash_content() -> Column:
    """Of key and value; null is not empty."""
    parts = [F.coalesce(F.sha2(F.col(name), 256), F.lit("null")) for name in ("key", "value")]
    return F.sha2(F.concat(*parts), 256)
