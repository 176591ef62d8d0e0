"""The extras of the package: what each brings, and the error where one was not installed.

Code imports a library where it is used and needs no guard: the two places that show errors (the
command line, a task of Airflow) ask here what an import that failed belongs to.
"""

from __future__ import annotations

from backlogctl.errors import UsageError

_BRINGS = {
    "airflow": ("airflow",),
    "delivery": ("aiosqlite", "greenlet", "grpc", "grpc_health", "httpx", "pymysql", "redis"),
    "kubernetes": ("httpx2", "lightkube", "msgspec"),
    "schemas": (
        *("attr", "authlib", "cachetools", "certifi", "fastavro", "google", "grpc_tools"),
        *("jsonschema", "referencing"),
    ),
    "msk": ("aws_msk_iam_sasl_signer", "boto3", "botocore"),
    "spark": ("pandas", "py4j", "pyspark"),
    "wire": ("cramjam", "crc32c", "llvmlite", "lz4", "numba"),
}
_EXTRAS = {library: extra for extra, libraries in _BRINGS.items() for library in libraries}


class ExtraMissing(UsageError):
    """A library is missing that comes with an extra of the package."""

    code = "extra_missing"


def explain_import(error: BaseException) -> ExtraMissing | None:
    """The extra that brings what could not be imported; None where this is another error."""
    name = error.name if isinstance(error, ImportError) else None
    library = (name or "").partition(".")[0]
    if library not in _EXTRAS:
        return None
    extra = _EXTRAS[library]
    return ExtraMissing(
        f"library {library} is not installed",
        subject=f"extra {extra}",
        hint=f"pip install 'backlogctl[{extra}]'",
    )
