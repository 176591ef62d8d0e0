"""The archive of drained messages, in Parquet files: written, verified, read and purged."""
