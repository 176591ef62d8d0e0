"""An archive in an object store: looked into, verified, put back and purged, each by a process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from tests.replay.offloaded import offload
from tests.replay.redrive.world import UNREAD, plain_shop, read_own
from tests.replay.shop import LOCAL_SPARK, Shop
from tests.spark_backfill.archive.test_s3 import BUCKET, KEYS, endpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.timeout(900)


def test_the_whole_way(plain_shop: Shop, spark: SparkSession, endpoint: str) -> None:
    shop = plain_shop
    archive = offload(shop, spark, store=f"s3a://{BUCKET}/offloads")
    client = make_client(endpoint)
    upload(client, shop.directory / "staging" / "archives" / archive, f"offloads/{archive}")
    assert isinstance(LOCAL_SPARK["conf"], dict)
    conf = {
        **LOCAL_SPARK["conf"],
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    shop.spark = {**LOCAL_SPARK, "conf": conf}
    shop.environment.update(KEYS)
    shop.write_config(mask=["user_id"])
    peeked = shop.run("archive", "peek", archive, "--partition", "1", "-n", "2").out
    assert '"user_id": "***"' in peeked
    assert shop.run("archive", "verify", archive, "--json").document["messages"] == UNREAD
    source = f"archive:{archive}"
    plan = shop.run("plan", "redrive", "orders", "--from", source, "--json").document
    assert plan["counts"]["staged"] == UNREAD
    shop.call("approve", plan["id"], "--by", "Ada")
    shop.run("run", plan["id"])
    assert len(read_own(shop)) == UNREAD
    purged = shop.run("archive", "purge", archive, "--json").document
    assert purged["files"] > 0
    assert "Contents" not in client.list_objects_v2(Bucket=BUCKET, Prefix=f"offloads/{archive}")


def make_client(endpoint: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
    )


def upload(client: Any, folder: Path, prefix: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            name = f"{prefix}/{path.relative_to(folder)}"
            client.put_object(Bucket=BUCKET, Key=name, Body=path.read_bytes())
