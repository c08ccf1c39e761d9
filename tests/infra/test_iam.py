"""The policies of `infra/iam` allow the requests that each service sends to S3, and nothing else.

Every service is played once under its policies: a local S3 asks them about each request, by the rules of IAM, and
answers 403 where they say no. What was allowed must need every word of the policies; what was refused must be what the
service is known to live without.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from string import Template
from typing import Any

import pytest

from tests.support import iam_scenes as scenes
from tests.support.each import by_name, each
from tests.support.iam import POLICIES, Call, Policy, Word, decide
from tests.support.iam_recorder import KEY_ARN, REGION, IamS3, User
from tests.support.iam_scenes import TOPIC, TOPICS_DIR, Buckets, Stage, policies

SEGMENT = "t/partition=0/00000000000000000000-00000001-s0123456789abcdef.avro"
CLEANED = SEGMENT.replace("-s0", "-c0")
INDEX = "t/partition=0/_index/00000000000000000000-00000001-s0123456789abcdef.parquet"
MANIFEST = "t/partition=0/_manifest.avro"
FIRST_COPY = "t/partition=0/_first_copy.json"
NAMES = {
    "bucket", "compactor", "keys", "operator", "reader", "repair", "replica-source", "replica-target", "restore",
    "serve", "sink", "table",
}  # fmt: skip


def of_template(user: User, *stages: Stage) -> tuple[set[Word], set[Word]]:
    """Return the statements of a user's policies and those that were needed, without the bucket's name."""

    def bare(words: Sequence[Word]) -> set[Word]:
        found = set()
        for word in words:
            text = word.text
            for one in stages:
                text = text.replace(one.bucket, "BUCKET")
            found.add(Word(word.policy, word.sid, text))
        return found

    given = [word for policy in user.identity for word in policy.words()]
    return bare(given), bare(list(user.words))


def assert_exact(user: User, *stages: Stage, of: Sequence[str] = (), refused: str = "") -> None:
    """Assert that only `refused` was refused, and that every statement (of the policies `of`, or of all) was needed."""
    others = [str(call) for call in user.refused if not re.search(refused or "^$", f"{call.action} {call.resource}")]
    assert not others
    given, needed = of_template(user, *stages)
    assert not sorted(str(word) for word in given - needed if not of or word.policy in of)


# Each service under its policies


def test_a_sink_uses_all_of_its_policy_and_works_without_deleting(s3: IamS3, stage: Callable[[], Stage]) -> None:
    at = stage()
    user = s3.add_user("sink", *policies(at.bucket, "sink", topics=TOPIC))
    scenes.sink(at, "sink")
    assert_exact(user, at, refused=r"^s3:DeleteObject .*/topics/(_probe/|_sinks/users/workers/)")
    assert user.refused, "it tries to tidy up, and goes on where it may not"


def test_a_compactor_uses_exactly_its_policy(s3: IamS3, stage: Callable[[], Stage]) -> None:
    at = stage()
    user = s3.add_user("compactor", *policies(at.bucket, "compactor", topics=TOPIC))
    scenes.compactor(at, "compactor")
    assert_exact(user, at)


def test_a_compactor_that_keeps_directories_of_keys_has_a_policy_for_them(
    s3: IamS3, stage: Callable[[], Stage]
) -> None:
    at = stage()
    user = s3.add_user("compactor", *policies(at.bucket, "compactor", "keys", topics=TOPIC))
    scenes.directories_kept(at, "compactor")
    assert_exact(user, at, of=("keys",))


def test_the_page_of_sinks_has_a_policy(s3: IamS3, stage: Callable[[], Stage]) -> None:
    at = stage()
    user = s3.add_user("server", *policies(at.bucket, "reader", "serve"))
    scenes.sinks_shown(at, "server")
    assert_exact(user, at, of=("serve",))


def test_a_reader_uses_exactly_its_policy(s3: IamS3, stage: Callable[[], Stage]) -> None:
    at = stage()
    user = s3.add_user("reader", *policies(at.bucket, "reader"))
    scenes.reader(at, "reader")
    assert_exact(user, at)


def test_a_restore_reads_as_a_reader_and_writes_its_journal(s3: IamS3, stage: Callable[[], Stage]) -> None:
    at = stage()
    user = s3.add_user("restore", *policies(at.bucket, "reader", "restore", topics=TOPIC))
    scenes.restored(at, at, "restore")
    assert_exact(user, at, of=("restore",))


def test_a_journal_in_its_own_bucket_needs_only_the_policy_restore(s3: IamS3, stage: Callable[[], Stage]) -> None:
    at, journal = stage(), stage()
    rights = (*policies(at.bucket, "reader", topics=TOPIC), *policies(journal.bucket, "restore", topics=TOPIC))
    user = s3.add_user("restore", *rights)
    scenes.restored(at, journal, "restore")
    assert_exact(user, at, journal, of=("restore",))


def test_a_repair_reads_as_a_reader_and_writes_manifests(s3: IamS3, stage: Callable[[], Stage]) -> None:
    at = stage()
    user = s3.add_user("repair", *policies(at.bucket, "reader", "repair", topics=TOPIC))
    scenes.repaired(at, "repair")
    assert_exact(user, at, of=("repair",))


def test_a_replicator_has_a_policy_for_each_side(s3: IamS3, stage: Callable[[], Stage]) -> None:
    source, replica = stage(), stage()
    near = s3.add_user("source-side", *policies(source.bucket, "replica-source"))
    far = s3.add_user("target-side", *policies(replica.bucket, "replica-target"))
    scenes.registered(Buckets(source, replica, scenes.ROOT, scenes.ROOT))
    scenes.replicated(Buckets(source, replica, "source-side", "target-side"))
    assert_exact(near, source)
    assert_exact(far, replica)


def test_an_operator_has_the_rights_of_a_replicator_and_may_change_registrations(
    s3: IamS3, stage: Callable[[], Stage]
) -> None:
    source, replica = stage(), stage()
    names = ("replica-source", "replica-target", "operator")
    user = s3.add_user("operator", *policies(source.bucket, *names), *policies(replica.bucket, *names))
    scenes.operated(Buckets(source, replica, "operator", "operator"))
    assert_exact(user, source, replica, of=("operator",))


def test_an_operator_without_other_policies_can_list_and_pause_replicas(s3: IamS3, stage: Callable[[], Stage]) -> None:
    source, replica = stage(), stage()
    scenes.registered(Buckets(source, replica, scenes.ROOT, scenes.ROOT))
    user = s3.add_user("on-call", *policies(source.bucket, "operator"))
    scenes.paused(Buckets(source, replica, "on-call", "on-call"))
    assert not user.refused


def test_a_table_needs_its_policy_in_its_own_bucket_and_a_readers_for_the_log(
    s3: IamS3, stage: Callable[[], Stage]
) -> None:
    logs, lake = stage(), stage()
    user = s3.add_user("table", *policies(logs.bucket, "reader", topics=TOPIC), *policies(lake.bucket, "table"))
    scenes.tabled(logs, lake, "table")
    assert_exact(user, logs, lake, of=("table",))


# What nobody may


def put(key: str, **conditions: str) -> Call:
    known = {"s3:objectcreationoperation": "true", **{f"s3:{k.replace('_', '-')}": v for k, v in conditions.items()}}
    return Call("s3:PutObject", f"arn:aws:s3:::b/{TOPICS_DIR}/{key}", {"aws:securetransport": "true", **known})


def on(action: str, key: str) -> Call:
    return Call(action, f"arn:aws:s3:::b/{TOPICS_DIR}/{key}", {"aws:securetransport": "true"})


def allowed(name: str, call: Call, *, by_bucket: bool = True) -> bool:
    return decide(policies("b", name), policies("b", "bucket") if by_bucket else [], call).allowed


SERVICES = sorted(NAMES - {"bucket"})
each_service = each("name", by_name(SERVICES))
with_and_without_the_buckets_policy = each("by_bucket", {"with the bucket's policy": True, "without it": False})
CREATED = {"if_none_match": "*"}
UPDATED = {"if_match": '"etag"'}


@each_service
@each("key", by_name([SEGMENT, CLEANED, INDEX, "_schemas/1.avsc", "_restores/t/t@id/plan.json"]))
@with_and_without_the_buckets_policy
def test_no_policy_allows_overwriting_immutable_objects(name: str, key: str, by_bucket: bool) -> None:
    assert not allowed(name, put(key), by_bucket=by_bucket)
    assert not allowed(name, put(key, **UPDATED), by_bucket=by_bucket)


@each_service
@each(
    "key",
    by_name([MANIFEST, FIRST_COPY, "_sinks/users/orders.json", "_sinks/users/workers/a.json", "_replicas/dr.json",
     "_replica.json", "_replicas/dr/status.json", "_restores/t/t@id/lease.json", "_probe/1"]),
)  # fmt: skip
@with_and_without_the_buckets_policy
def test_no_policy_allows_writes_without_a_condition(name: str, key: str, by_bucket: bool) -> None:
    assert not allowed(name, put(key), by_bucket=by_bucket)


@each("key", by_name([SEGMENT, CLEANED, INDEX, MANIFEST, "_schemas/1.avsc", "_sinks/users/orders.json"]))
@each("name", by_name(["sink", "reader", "restore", "repair", "replica-source"]))
def test_policies_without_gc_allow_no_deletion(name: str, key: str) -> None:
    assert not allowed(name, on("s3:DeleteObject", key), by_bucket=False)


@each_service
def test_no_policy_allows_deleting_a_manifest_or_a_version(name: str) -> None:
    assert not allowed(name, on("s3:DeleteObject", MANIFEST), by_bucket=False)
    for key in (SEGMENT, MANIFEST):
        for action in ("s3:DeleteObjectVersion", "s3:PutObjectAcl", "s3:PutObjectTagging", "s3:RestoreObject"):
            assert not allowed(name, on(action, key), by_bucket=False)


@each_service
def test_no_policy_reaches_beyond_the_folder(name: str) -> None:
    for key in (f"other/{SEGMENT}", "other/x", f"{TOPICS_DIR}x/{MANIFEST}"):
        for action in ("s3:GetObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:GetObjectVersion"):
            assert not allowed(name, Call(action, f"arn:aws:s3:::b/{key}", {}), by_bucket=False)
        for conditions in (CREATED, UPDATED):
            context = dict(put("x", **conditions).context)
            assert not allowed(name, Call("s3:PutObject", f"arn:aws:s3:::b/{key}", context), by_bucket=False)
    for prefix in ("other/", "", "x"):
        listing = {"s3:prefix": prefix}
        assert not allowed(name, Call("s3:ListBucket", "arn:aws:s3:::b", listing), by_bucket=False)
        assert not allowed(name, Call("s3:ListBucketVersions", "arn:aws:s3:::b", listing), by_bucket=False)
    assert not allowed(name, Call("s3:ListBucket", "arn:aws:s3:::c", {}), by_bucket=False)


def test_writers_create_only_names_of_their_own_role() -> None:
    assert allowed("sink", put(SEGMENT, **CREATED))
    assert not allowed("sink", put(CLEANED, **CREATED))
    assert allowed("compactor", put(CLEANED, **CREATED))
    assert not allowed("compactor", put(SEGMENT, **CREATED))
    assert not allowed("reader", put(SEGMENT, **CREATED))


@each_service
def test_the_key_is_used_only_through_s3(name: str) -> None:
    for action in ("kms:Decrypt", "kms:GenerateDataKey", "kms:Encrypt", "kms:ReEncryptFrom"):
        assert not allowed(name, Call(action, KEY_ARN, {}), by_bucket=False)
        elsewhere = {"kms:viaservice": f"dynamodb.{REGION}.amazonaws.com"}
        assert not allowed(name, Call(action, KEY_ARN, elsewhere), by_bucket=False)


def test_a_policy_for_one_topic_does_not_reach_others() -> None:
    (reader,) = policies("b", "reader", topics="users-*")
    for topic, is_allowed in (("users-eu", True), ("users", False), ("other-users-eu", False)):
        call = on("s3:GetObject", f"{topic}/partition=0/_manifest.avro")
        assert decide([reader], [], call).allowed == is_allowed, topic


@each("action", by_name(["s3:DeleteObject", "s3:AbortMultipartUpload"]))
@each("name", by_name(["compactor", "replica-target", "operator"]))
def test_deletions_are_limited_to_keyfolds_object_names(name: str, action: str) -> None:
    others = (
        "_manifest.damaged-0123456789abcdef.avro",
        "part-00000-c0123456789abcdef.avro",
        "backup/s0123456789abcdef",
    )
    for other in others:
        assert not allowed(name, on(action, f"t/partition=0/{other}"), by_bucket=False)
    assert allowed(name, on(action, SEGMENT)) == (name != "operator")


@each("name", by_name(sorted(set(SERVICES) - {"table"})))
def test_the_key_serves_only_objects_of_the_bucket(name: str) -> None:
    action = "kms:Decrypt" if name in {"reader", "serve"} else "kms:GenerateDataKey"
    via = {"kms:viaservice": f"s3.{REGION}.amazonaws.com"}
    contexts = {"b": True, f"b/{TOPICS_DIR}/{SEGMENT}": True, "other": False, "b/elsewhere/x": False, "bb": False}
    for named, is_allowed in contexts.items():
        call = Call(action, KEY_ARN, via | {"kms:encryptioncontext:aws:s3:arn": f"arn:aws:s3:::{named}"})
        assert allowed(name, call, by_bucket=False) == is_allowed, named
    assert not allowed(name, Call(action, KEY_ARN, via), by_bucket=False)


# What the bucket says to everybody, whatever he may by policies of his own


EVERYTHING = Policy.parse(
    "admin",
    {"Version": "2012-10-17", "Statement": [{"Sid": "All", "Effect": "Allow", "Action": "*", "Resource": "*"}]},
)


def admin(call: Call) -> tuple[str, ...]:
    """Return the bucket's statements that refuse an administrator."""
    decision = decide([EVERYTHING], policies("b", "bucket"), call)
    assert decision.allowed == (not decision.denied_by)
    return tuple(name.rpartition(" ")[2] for name in decision.denied_by)


@each("key", by_name([SEGMENT, CLEANED, INDEX, "_schemas/1.avsc", "_restores/t/t@id/partition=0/1.window"]))
def test_even_an_administrator_cannot_overwrite_a_segment(key: str) -> None:
    assert admin(put(key)) == admin(put(key, **UPDATED)) == ("DenyOverwriting",)
    assert admin(put(key, **CREATED)) == ()


@each("key", by_name([MANIFEST, FIRST_COPY, "_sinks/users/orders.json", "_replicas/dr.json", "_replica.json"]))
def test_even_an_administrator_changes_an_object_only_by_condition(key: str) -> None:
    assert admin(put(key)) == ("DenyUnconditionalSwaps",)
    assert admin(put(key, **CREATED)) == admin(put(key, **UPDATED)) == ()


def test_parts_need_no_condition_and_completing_an_upload_does() -> None:
    part = {"aws:securetransport": "true", "s3:objectcreationoperation": "false"}
    resource = f"arn:aws:s3:::b/{TOPICS_DIR}/{SEGMENT}"
    assert admin(Call("s3:PutObject", resource, part)) == ()
    assert allowed("sink", Call("s3:PutObject", resource, part))
    assert admin(Call("s3:PutObject", resource, part | {"s3:objectcreationoperation": "true"})) == ("DenyOverwriting",)


def test_requests_without_tls_or_with_another_encryption_are_denied() -> None:
    plain: dict[str, Any] = {"aws:securetransport": "false"}
    assert admin(Call("s3:GetObject", f"arn:aws:s3:::b/{TOPICS_DIR}/{SEGMENT}", plain)) == ("DenyOtherThanTls",)
    assert admin(Call("s3:ListBucket", "arn:aws:s3:::b", plain)) == ("DenyOtherThanTls",)
    assert admin(put(SEGMENT, **CREATED, x_amz_server_side_encryption="AES256")) == ("DenyOtherEncryption",)
    assert admin(put(SEGMENT, **CREATED, x_amz_server_side_encryption="aws:kms")) == ()
    own = {"x_amz_server_side_encryption_customer_algorithm": "AES256"}
    assert admin(put(SEGMENT, **CREATED, **own)) == admin(put(MANIFEST, **UPDATED, **own)) == ("DenyKeysOfCallers",)


# The documents themselves


def test_all_policies_are_known_and_fit_into_a_managed_policy() -> None:
    assert {path.stem for path in POLICIES.glob("*.json")} == NAMES
    for name in NAMES:
        for statement in policies("b", name)[0].statements:
            assert statement.effect == ("Deny" if name == "bucket" else "Allow")
        long = {
            "BUCKET": "b" * 63,
            "TOPICS_DIR": "d" * 20,
            "TABLES_DIR": "d" * 20,
            "TOPICS": "t" * 40,
            "SINK": "s" * 40,
        }
        text = Template((POLICIES / f"{name}.json").read_text()).substitute(
            long, KMS_KEY_ARN=KEY_ARN, REGION="ap-southeast-1"
        )
        assert len("".join(text.split())) < 6144, "AWS takes 6,144 characters, white space apart"


def test_no_service_policy_has_a_wildcard_action() -> None:
    for name in SERVICES:
        for statement in policies("b", name)[0].statements:
            assert not any("*" in action for action in statement.actions)


def test_the_evaluator_refuses_unknown_policy_elements() -> None:
    statement = {"Sid": "x", "Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}
    for odd in ({"NotAction": "s3:*"}, {"Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}}, {"Effect": "?"}):
        with pytest.raises(ValueError, match="odd"):
            Policy.parse("odd", {"Version": "2012-10-17", "Statement": [statement | odd]})
