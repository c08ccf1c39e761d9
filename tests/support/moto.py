"""The local S3 for tests; see `keyfold_demo.local_s3`, `keyfold_demo.s3_endpoint` and `keyfold_demo.faults`."""

from __future__ import annotations

from keyfold_demo.faults import DROP, PASS, Fault, FaultPlan
from keyfold_demo.local_s3 import LocalS3, LocalS3Process
from keyfold_demo.s3_endpoint import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, s3_client

__all__ = [
    "ACCESS_KEY_ID",
    "DROP",
    "PASS",
    "REGION",
    "SECRET_ACCESS_KEY",
    "Fault",
    "FaultPlan",
    "LocalS3",
    "LocalS3Process",
    "s3_client",
]
