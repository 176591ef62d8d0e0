"""The archive of offloaded messages, in Parquet files: written, verified, read and purged."""
