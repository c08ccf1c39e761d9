"""The object store: a small protocol, its backends and its wrappers.

api              `ObjectStore`, its optional calls, and `StoreLocation`: where a bucket is
location         the table of backends; locations by URL and by configuration
memory           a store in memory, for tests
s3, s3_*         S3 through boto3: requests, reads, uploads and copies, answers, errors
wrappers         stores around a store: counting, faults, observation
pacing           where a byte-rate limit acts
documents        small JSON objects, parsed without trust
cas_document     small objects that many processes change by compare-and-swap
probe            whether a store keeps the promises of `ObjectStore`
"""
