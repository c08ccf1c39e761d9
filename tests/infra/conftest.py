"""A local S3 with the policies of `infra/iam`, for tests that act as services and as attackers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conftest import fresh
from tests.support.iam_recorder import IamS3
from tests.support.iam_scenes import Stage, policies


@pytest.fixture(scope="module")
def s3() -> Iterator[IamS3]:
    """Yield an S3 that checks every request against the policies."""
    with IamS3() as running:
        yield running


@pytest.fixture
def stage(s3: IamS3) -> Iterator[Callable[[], Stage]]:
    """Yield a function that creates a bucket with the bucket's policy and versioning."""
    made: list[Stage] = []

    def make() -> Stage:
        bucket = s3.create_bucket(fresh("bucket"))
        s3.bucket_policies[bucket] = policies(bucket, "bucket")[0]
        made.append(Stage(s3, bucket))
        made[-1].keep_versions()
        return made[-1]

    yield make
    s3.set_faults()
    for one in made:
        one.close()
