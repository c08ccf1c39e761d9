"""The Terraform modules: valid syntax, matching variables, known arguments, and the policies of infra/iam.

No provider can be had here, so nothing is planned. The arguments that `KNOWN` lists are those of the AWS provider's
schema (5.0 and newer) that the modules need; one that is not there has to be looked up before it is added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any, Final

import hcl2
import pytest

from tests.support.iam import POLICIES

MODULES: Final = Path(__file__).parents[2] / "infra" / "terraform"
KNOWN: Final = {
    "aws_s3_bucket": "bucket force_destroy tags",
    "aws_s3_bucket_public_access_block": (
        "bucket block_public_acls block_public_policy ignore_public_acls restrict_public_buckets"
    ),
    "aws_s3_bucket_ownership_controls": "bucket rule rule.object_ownership",
    "aws_s3_bucket_server_side_encryption_configuration": (
        "bucket rule rule.bucket_key_enabled rule.apply_server_side_encryption_by_default "
        "rule.apply_server_side_encryption_by_default.sse_algorithm "
        "rule.apply_server_side_encryption_by_default.kms_master_key_id"
    ),
    "aws_s3_bucket_versioning": "bucket versioning_configuration versioning_configuration.status",
    "aws_s3_bucket_lifecycle_configuration": (
        "bucket rule rule.id rule.status rule.filter rule.filter.prefix rule.expiration rule.expiration.days "
        "rule.expiration.expired_object_delete_marker rule.abort_incomplete_multipart_upload "
        "rule.abort_incomplete_multipart_upload.days_after_initiation rule.noncurrent_version_expiration "
        "rule.noncurrent_version_expiration.noncurrent_days"
    ),
    "aws_s3_bucket_policy": "bucket policy",
    "aws_kms_key": "description enable_key_rotation",
    "aws_iam_policy": "name description tags policy",
    "aws_iam_role": "name tags assume_role_policy",
    "aws_iam_role_policy_attachment": "role policy_arn",
}
META: Final = {"for_each", "depends_on", "provider"}
PLACEHOLDER: Final = re.compile(r"\$\{([A-Z_]+)\}")
Block = Mapping[str, Any]


def files() -> list[Path]:
    return sorted(MODULES.glob("*/*.tf"))


def load(path: Path) -> Block:
    with path.open() as file:
        found: Block = hcl2.load(file)
    return found


def blocks(module: str, kind: str) -> Iterator[tuple[tuple[str, ...], Block]]:
    """Return all blocks of a kind in a module: their labels and bodies."""
    labels = 2 if kind in {"resource", "data"} else 1

    def within(found: Block, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Block]]:
        if len(names) == labels:
            yield names, found
            return
        for name, inner in found.items():
            if not name.startswith("__"):
                yield from within(inner, (*names, name.strip('"')))

    for path in sorted((MODULES / module).glob("*.tf")):
        for block in load(path).get(kind, []):
            yield from within(block, ())


def arguments(body: Block, before: str = "") -> Iterator[str]:
    """Return the paths of all arguments and nested blocks, including `dynamic` ones."""
    for name, value in body.items():
        if name.startswith("__"):
            continue
        if name == "dynamic":
            for dynamic in value:
                for kind, made in dynamic.items():
                    for content in made["content"]:
                        yield before + kind.strip('"')
                        yield from arguments(content, f"{before}{kind.strip(chr(34))}.")
            continue
        yield before + name
        for inner in value if isinstance(value, list) else ():
            if isinstance(inner, dict) and inner.get("__is_block__"):
                yield from arguments(inner, f"{before}{name}.")


def resource(module: str, kind: str) -> Block:
    (found,) = [body for names, body in blocks(module, "resource") if names[0] == kind]
    return found


def text_of(module: str) -> str:
    return "\n".join(path.read_text() for path in sorted((MODULES / module).glob("*.tf")))


def modules() -> list[str]:
    return sorted({path.parent.name for path in files()})


def test_the_modules_and_an_example_exist() -> None:
    assert modules() == ["bucket", "example", "roles"]


@pytest.mark.parametrize("module", ["bucket", "example", "roles"])
def test_resources_use_only_arguments_of_the_provider(module: str) -> None:
    for (kind, name), body in blocks(module, "resource"):
        unknown = {*arguments(body)} - META - {*KNOWN[kind].split()}
        assert not unknown, (kind, name)


@pytest.mark.parametrize("module", ["bucket", "example", "roles"])
def test_every_variable_is_described_declared_and_used(module: str) -> None:
    declared = {names[0]: body for names, body in blocks(module, "variable")}
    assert {*re.findall(r"\bvar\.(\w+)", text_of(module))} == {*declared}
    for name, body in [*declared.items(), *((names[0], body) for names, body in blocks(module, "output"))]:
        assert len(body["description"]) > 10, name


@pytest.mark.parametrize("module", ["bucket", "example", "roles"])
def test_every_reference_resolves(module: str) -> None:
    there = {".".join(names) for names, _ in blocks(module, "resource")}
    found = re.findall(r"(?<![\w.\"])(aws_\w+\.\w+)", text_of(module))
    provider = {"aws.replica"}
    assert {*found} - provider <= there
    known = {
        name for path in (MODULES / module).glob("*.tf") for block in load(path).get("locals", []) for name in block
    }
    assert {*re.findall(r"\blocal\.(\w+)", text_of(module))} <= known


def test_the_example_gives_each_module_its_variables() -> None:
    for (name,), body in blocks("example", "module"):
        module = body["source"].strip('"').removeprefix("../")
        declared = {names[0]: inner for names, inner in blocks(module, "variable")}
        given = {key for key in body if not key.startswith("__")} - {"source", "providers"}
        assert given <= set(declared), name
        assert {key for key, inner in declared.items() if "default" not in inner} <= given, name


@pytest.mark.parametrize(
    ("module", "templates"),
    [("bucket", ["bucket"]), ("roles", sorted({p.stem for p in POLICIES.glob("*")} - {"bucket"}))],
)
def test_policies_come_from_infra_iam_with_all_their_variables(module: str, templates: list[str]) -> None:
    (call,) = re.findall(r"templatefile\(\"([^\"]+)\", \{(.*?)\}\)", text_of(module), re.DOTALL)
    given = {*re.findall(r"^\s*([A-Z_]+)\s*=", call[1], re.MULTILINE)}
    for name in templates:
        path = call[0].replace("${path.module}", str(MODULES / module)).replace("${grant.policy}", name)
        text = Path(path).resolve().read_text()
        assert {*PLACEHOLDER.findall(text)} <= given, name
        assert not re.search(r"%\{|\$\{(?![A-Z_]+\})", text), "nothing else that a template would evaluate"
        Template(text).substitute(dict.fromkeys(given, "x"))


def test_the_example_grants_exactly_the_policies() -> None:
    granted = {
        *re.findall(r'"([a-z-]+)"', " ".join(re.findall(r"(?:source|replica)\s+= (\[.*?\])", text_of("example"))))
    }
    assert granted - {"users"} == {path.stem for path in POLICIES.glob("*.json")} - {"bucket"}


# What the bucket must have


def test_the_bucket_is_private_versioned_and_encrypted() -> None:
    block = resource("bucket", "aws_s3_bucket_public_access_block")
    flags = ("block_public_acls", "block_public_policy", "ignore_public_acls", "restrict_public_buckets")
    assert all(block[flag] is True for flag in flags)
    assert resource("bucket", "aws_s3_bucket_versioning")["versioning_configuration"][0]["status"] == '"Enabled"'
    assert (
        resource("bucket", "aws_s3_bucket_ownership_controls")["rule"][0]["object_ownership"] == '"BucketOwnerEnforced"'
    )
    (rule,) = resource("bucket", "aws_s3_bucket_server_side_encryption_configuration")["rule"]
    assert "bucket_key_enabled" in rule
    assert '"aws:kms"' in rule["apply_server_side_encryption_by_default"][0]["sse_algorithm"]


def test_old_versions_and_unfinished_uploads_go_and_segments_that_are_named_never_do() -> None:
    lifecycle = resource("bucket", "aws_s3_bucket_lifecycle_configuration")
    rules = {rule["id"].strip('"'): rule for rule in lifecycle["rule"]}
    assert rules["abort-incomplete-uploads"]["abort_incomplete_multipart_upload"]
    expiring = rules["expire-noncurrent-versions"]
    # With `newer_noncurrent_versions` a deleted segment would be kept for ever: it has one version.
    assert {*expiring["noncurrent_version_expiration"][0]} - {"__is_block__"} == {"noncurrent_days"}
    assert expiring["expiration"][0]["expired_object_delete_marker"] is True
    for rule in rules.values():
        assert not any("days" in expiration for expiration in rule.get("expiration", ())), "no current object"
    (dynamic,) = lifecycle["dynamic"]
    (cleared,) = dynamic['"rule"']["content"]
    assert cleared["filter"][0]["prefix"] == '"${var.topics_dir}/${rule.value}"'
    assert re.findall(r'"(_[^"]+)"', dynamic['"rule"']["for_each"]) == ["_probe/", "_sinks/${name}/workers/"]
