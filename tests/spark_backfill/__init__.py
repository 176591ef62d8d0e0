"""Tests of spark_backfill."""
