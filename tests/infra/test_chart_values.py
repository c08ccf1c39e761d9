"""The chart as Helm renders it: the effect of single values, and refused values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import yaml

from keyfold.errors import KeyfoldError
from tests.support.chart import command, config, found_pod, sink_options, with_values
from tests.support.helm import CHART, VALUE_SETS, one, template, template_text
from tests.support.rendered import Object, breaches, name_of, pods, selects

pytestmark = pytest.mark.real


def test_a_sink_is_a_static_member_named_by_its_pod() -> None:
    options = sink_options(template(with_values()))
    own_id = options.consumer["group.instance.id"]
    assert re.fullmatch("given-[0-9a-f]{8}", own_id)
    two = sink_options(template(with_values({"sink": {"config": {"tasks.max": 2}}})))
    assert two.for_task(1).consumer["group.instance.id"] == f"{own_id}-1"
    off = template(with_values({"sink": {"staticMembership": {"enabled": False, "sessionTimeoutMs": 60_000}}}))
    assert "group.instance.id" not in sink_options(off).consumer
    assert sink_options(off).consumer["session.timeout.ms"] == "60000"


@pytest.mark.parametrize(("flush_ms", "grace_s"), [(None, 55), (90_000, 120), (1_500, 32)])
def test_a_sinks_grace_period_exceeds_its_tasks_flush_time(flush_ms: int | None, grace_s: int) -> None:
    from keyfold_sink.worker.run import WorkerTimings, limits

    given = {} if flush_ms is None else {"task.shutdown.graceful.timeout.ms": flush_ms}
    objects = template(with_values({"sink": {"config": given}}))
    set_grace_s = found_pod(objects, "StatefulSet/kf-keyfold-sink").spec["terminationGracePeriodSeconds"]
    assert set_grace_s == grace_s
    assert set_grace_s > limits(sink_options(objects)).stop_s + WorkerTimings().leave_s


def test_a_sinks_memory_limit_covers_its_tasks() -> None:
    pod = found_pod(template(with_values()), "StatefulSet/kf-keyfold-sink")
    for values in VALUE_SETS.glob("*.yaml"):
        given = yaml.safe_load(values.read_text())
        if given["sink"].get("enabled", True):
            objects = template(values)
            prefix = "clicks" if values.stem == "sink-only" else "kf-keyfold"
            pod = found_pod(objects, f"StatefulSet/{prefix}-sink")
            written = config(objects, "sink", prefix=prefix)
            tasks = int(written.get("tasks.max", 1))
            buffer_mib = int(written.get("buffer.memory", 256 << 20)) >> 20
            limit = pod.containers[0]["resources"]["limits"]["memory"]
            assert int(limit.removesuffix("Mi")) >= 100 + tasks * (200 + buffer_mib), values


def test_probes_use_the_matching_endpoints() -> None:
    services = {"compactor": {"mode": "loop"}, "replica": {"enabled": True}, "serve": {"enabled": True}}
    objects = template(with_values(services))
    for owner in ("StatefulSet/kf-keyfold-sink", *(f"Deployment/kf-keyfold-{name}" for name in services)):
        container = found_pod(objects, owner).containers[0]
        paths = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
        assert paths == {"startup": "/health/live", "liveness": "/health/live", "readiness": "/health/ready"}
    cron = found_pod(template(with_values()), "CronJob/kf-keyfold-compactor")
    assert not [key for key in cron.containers[0] if key.endswith("Probe")], "a run is bounded by its deadline"


def test_a_changed_configuration_replaces_the_pods() -> None:
    def mark(values: Mapping[str, Any]) -> str:
        found = one(template(values), "StatefulSet", "kf-keyfold-sink")["spec"]["template"]["metadata"]["annotations"]
        return str(found["keyfold/config"])

    assert mark(with_values()) == mark(with_values({"compactor": {"mode": "off"}}))
    assert mark(with_values()) != mark(with_values({"sink": {"config": {"segment.ms": 1000}}}))


def test_large_numbers_are_rendered_as_integers() -> None:
    values = {"buffer.memory": 1_073_741_824, "segment.bytes": "9007199254740993", "source.gap.policy": "record"}
    found = config(template(with_values({"sink": {"config": values}})), "sink")
    assert found["buffer.memory"] == "1073741824"
    assert found["segment.bytes"] == "9007199254740993"


def test_a_services_own_configuration_overrides_the_store_values() -> None:
    objects = template(with_values({"replica": {"enabled": True, "config": {"s3.bucket.name": "other"}}}))
    assert config(objects, "replica")["s3.bucket.name"] == "other"
    assert config(objects, "compactor")["s3.bucket.name"] == "log"


def test_a_registration_may_use_only_the_secrets_of_its_service() -> None:
    secrets = {
        "secretEnv": {name: {"secretName": "dr", "key": "k"} for name in ("DR_SECRET", "DR_KEY_ID")},
        "secretFiles": [{"secretName": n, "mountPath": f"/run/secrets/{n}"} for n in ("dr", "eu")],
    }
    keys = ("replica.env.allowlist.pattern", "replica.file.allowed.paths")

    def allowed(service: str, **values: Any) -> list[str | None]:
        said = {service: values} if service != "replica" else {service: {"enabled": True, **values}}
        found = config(template(with_values(said)), service)
        return [found.get(key) for key in keys]

    assert allowed("replica", **secrets) == ["DR_KEY_ID|DR_SECRET", "/run/secrets/dr,/run/secrets/eu"]
    assert allowed("replica", **secrets, config={keys[0]: "EU_.*"}) == ["EU_.*", "/run/secrets/dr,/run/secrets/eu"]
    assert allowed("replica") == [None, None], "the defaults"
    assert allowed("compactor", **secrets) == [None, None], "no registration is opened"
    running = allowed("compactor", **secrets, config={"replicas.run": True})
    assert running == ["DR_KEY_ID|DR_SECRET", "/run/secrets/dr,/run/secrets/eu"]


def test_sparks_driver_has_exactly_the_pod_rights_that_it_uses() -> None:
    objects = template(VALUE_SETS / "spark-kubernetes.yaml")
    assert one(objects, "Role", "kf-keyfold-compactor")["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["pods"],
            "verbs": ["create", "get", "list", "watch", "delete", "deletecollection"],
        }
    ]
    others = [each for each in template(VALUE_SETS / "eks-irsa.yaml") if each["kind"] in {"Role", "RoleBinding"}]
    assert others == []


def test_executors_are_separated_from_the_driver() -> None:
    objects = template(VALUE_SETS / "spark-kubernetes.yaml")
    executor = next(pod for pod in pods(objects) if pod.owner.endswith("executor.yaml"))
    words = command(found_pod(objects, "Deployment/kf-keyfold-compactor"))
    settings = dict(word.split("=", 1) for word in words if word.startswith("spark."))
    assert settings["spark.kubernetes.executor.podTemplateContainerName"] == executor.containers[0]["name"]
    assert settings["spark.kubernetes.authenticate.executor.serviceAccountName"] == "kf-keyfold-executor"
    assert settings["spark.kubernetes.container.image"] == "keyfold-compactor:0.1.0"
    assert settings["spark.driver.host"] == "$(POD_IP)"
    assert settings["spark.kubernetes.driver.pod.name"] == "$(POD_NAME)"
    assert settings["spark.executor.instances"] == "4"
    assert "--once" not in words


def test_spark_submit_is_used_if_configured() -> None:
    words = command(found_pod(template(VALUE_SETS / "spark-submit-cron.yaml"), "CronJob/kf-keyfold-compactor"))
    assert words[:2] == ["/opt/spark/bin/spark-submit", "--master=k8s://https://kubernetes.default.svc"]
    assert words[-4:] == ["run", "/etc/keyfold/compact.json", "--once", "--json"]
    assert "spark.authenticate=true" in words


def test_credentials_of_a_secret_reach_every_container_that_opens_the_bucket() -> None:
    values = with_values(
        {
            "store": {"credentials": {"secretName": "s3-keys"}},
            "compactor": {"spark": {"mode": "kubernetes"}},
            "replica": {"enabled": True},
            "serve": {"enabled": True},
        }
    )
    for pod in pods(template(values)):
        for container in pod.containers:
            if container.get("command", [""])[0] != "python3":
                assert "AWS_SECRET_ACCESS_KEY" in {variable["name"] for variable in container["env"]}, pod.owner


def test_network_policies_deny_unlisted_traffic() -> None:
    objects = template(VALUE_SETS / "spark-kubernetes.yaml")
    policies = [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"]
    for pod in pods(objects):
        chosen = [policy for policy in policies if selects(policy["podSelector"], pod.labels)]
        assert {kind for policy in chosen for kind in policy["policyTypes"]} == {"Ingress", "Egress"}
    assert all(peers != [] for policy in policies for rule in policy.get("ingress", []) for peers in [rule.get("from")])
    assert ports(objects, "kf-keyfold-store") == {53, 443, 80}
    assert ports(objects, "kf-keyfold-compactor") == {443, 6443}


def test_ports_of_brokers_and_store_come_from_their_addresses() -> None:
    values = with_values(
        {
            "store": {"url": "http://s3:9000"},
            "sink": {"bootstrapServers": "a:9093, b:9093,c:9094"},
            "compactor": {"mode": "off"},
        }
    )
    objects = template(values)
    assert ports(objects, "kf-keyfold-store") == {53, 9000}
    assert ports(objects, "kf-keyfold-sink") == {9093, 9094}


CREDENTIALS = {
    "podIdentity": {"169.254.170.23/32", "fd00:ec2::23/128"},
    "instanceMetadata": {"169.254.169.254/32", "fd00:ec2::254/128"},
}


@pytest.mark.parametrize("key", CREDENTIALS)
def test_the_nodes_credential_endpoint_is_reachable_only_if_configured(key: str) -> None:
    store = {"store": {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}}], "ports": [443]}}
    assert not blocks(with_values({"networkPolicy": store})) & set().union(*CREDENTIALS.values())
    opened = with_values({"networkPolicy": {**store, key: {"enabled": True}}})
    assert blocks(opened) & set().union(*CREDENTIALS.values()) == CREDENTIALS[key]
    assert ports(template(opened), "kf-keyfold-store") == {53, 443, 80}


def blocks(values: Mapping[str, Any]) -> set[str]:
    """Return the address blocks that every pod may send to."""
    rules: Iterable[Object] = one(template(values), "NetworkPolicy", "kf-keyfold-store")["spec"]["egress"]
    return {peer["ipBlock"]["cidr"] for rule in rules for peer in rule.get("to", []) if "ipBlock" in peer}


def ports(objects: list[Object], policy: str) -> set[int]:
    rules: Iterable[Object] = one(objects, "NetworkPolicy", policy)["spec"]["egress"]
    return {port["port"] for rule in rules for port in rule.get("ports", [])}


def test_a_scaled_sink_leaves_its_replica_count_to_the_scaler() -> None:
    fixed = one(template(with_values({"sink": {"replicas": 3}})), "StatefulSet", "kf-keyfold-sink")
    assert fixed["spec"]["replicas"] == 3
    objects = template(VALUE_SETS / "sink-only.yaml")
    assert "replicas" not in one(objects, "StatefulSet", "clicks-sink")["spec"]
    trigger = one(objects, "ScaledObject", "clicks-sink")["spec"]["triggers"][0]
    assert trigger["metadata"]["consumerGroup"] == "connect-clicks"
    assert trigger["metadata"]["lagThreshold"] == "6000000"
    assert all(isinstance(value, str) for value in trigger["metadata"].values())


def test_trigger_values_override_the_charts_defaults() -> None:
    said = {"topic": "users", "offsetResetPolicy": "latest", "lagThreshold": "5"}
    scaling = {"type": "keda", "lagPerPod": 7, "kedaMetadata": said}
    given = with_values({"sink": {"config": {"topics": "users,orders"}, "autoscaling": scaling}})
    (trigger,) = one(template(given), "ScaledObject", "kf-keyfold-sink")["spec"]["triggers"]
    fixed = {"bootstrapServers": "kafka:9092", "consumerGroup": "connect-kf-keyfold"}
    assert trigger == {"type": "kafka", "metadata": fixed | said}


RULE: dict[str, Any] = {"monitoring": {"prometheusRule": {"enabled": True}}}
PUSHES: dict[str, Any] = {"compactor": {"config": {"metrics.push.url": "http://pushgateway:9091"}}}


def groups(*changes: Mapping[str, Any]) -> list[str]:
    found = one(template(with_values(RULE, *changes)), "PrometheusRule", "kf-keyfold")["spec"]["groups"]
    return [group["name"] for group in found]


def test_alert_rules_are_those_of_the_enabled_services() -> None:
    assert groups({"compactor": {"mode": "loop"}}) == ["keyfold", "keyfold-sink", "keyfold-compactor"]
    assert groups({"compactor": {"mode": "off"}}) == ["keyfold", "keyfold-sink"]
    assert groups({"compactor": {"mode": "off"}}, PUSHES) == ["keyfold", "keyfold-sink"]
    serving = {"compactor": {"mode": "off"}, "serve": {"enabled": True}}
    assert groups(serving) == ["keyfold", "keyfold-sink", "keyfold-serve"]
    tables = {"compactor": {"mode": "off"}, "table": {"tables": {"users": {"topic": "users", "to": "s3://lake/users"}}}}
    assert groups(tables) == ["keyfold", "keyfold-sink", "keyfold-table"]
    assert groups({"monitoring": {"prometheusRule": {"services": ["replica"]}}}) == ["keyfold", "keyfold-replica"]


def test_a_cron_job_without_pushed_metrics_has_no_alerts() -> None:
    """The pods were not scraped for two hours: `absent_over_time` would fire for ever, the others never."""
    cron = {"compactor": {"mode": "cron"}}
    assert groups(cron) == ["keyfold", "keyfold-sink"]
    assert groups(cron, PUSHES) == ["keyfold", "keyfold-sink", "keyfold-compactor"]
    asked_for = {"monitoring": {"prometheusRule": {"services": ["compactor"]}}}
    assert groups(cron, asked_for) == ["keyfold", "keyfold-compactor"], "another release may run a loop"


def test_alerts_wait_longer_if_runs_are_rare() -> None:
    daily = {"monitoring": {"prometheusRule": {"noRunAfterSeconds": 180_000}}}
    for changes, limit_s in (((), 7200), ((daily,), 180_000)):
        objects = template(with_values(RULE, PUSHES, *changes))
        (rule,) = (each for each in objects if each["kind"] == "PrometheusRule")
        alerts = {alert["alert"]: alert for group in rule["spec"]["groups"] for alert in group["rules"]}
        assert alerts["KeyfoldCompactorNoRun"]["expr"].strip().endswith(f"> time() - {limit_s}")
    changed = [alert for alert in alerts.values() if "180000" in str(alert)]
    assert len(changed) == 1, "nothing else depends on it"


def test_the_notes_mention_a_compactor_without_alerts() -> None:
    def said(*changes: Mapping[str, Any]) -> bool:
        notes = template_text(with_values(*changes), command="notes")
        return "No alert covers the compactor" in notes and "metrics.push.url" in notes

    assert said(RULE)
    assert not said(), "no rule is wanted"
    assert not said(RULE, PUSHES)
    assert not said(RULE, {"compactor": {"mode": "loop"}})
    assert not said(RULE, {"compactor": {"mode": "off"}})
    assert not said(RULE, {"monitoring": {"prometheusRule": {"services": ["sink"]}}})


def test_rules_and_dashboard_are_rendered_unchanged() -> None:
    objects = template(VALUE_SETS / "eks-irsa.yaml")
    written = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    arrived = one(objects, "PrometheusRule", "kf-keyfold")["spec"]["groups"]
    others = {"keyfold-replica", "keyfold-table", "keyfold-serve"}
    assert arrived == [group for group in written if group["name"] not in others]
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())
    assert json.loads(one(objects, "ConfigMap", "kf-keyfold-dashboard")["data"]["keyfold.json"]) == dashboard


def test_a_token_is_generated_if_none_is_given() -> None:
    serve = with_values({"serve": {"enabled": True}})
    for name in ("rest", "serve"):
        assert len(one(template(serve), "Secret", f"kf-keyfold-{name}")["data"]["token"]) >= 40
    named = {"tokenSecretName": "mine"}
    given = template(with_values(serve, {"sink": {"rest": named}, "serve": named}))
    assert not [each for each in given if each["kind"] == "Secret"]


def test_openshift_assigns_its_own_users() -> None:
    objects = template(with_values({"sink": {"runAsUser": None}, "compactor": {"runAsUser": None}}))
    for pod in pods(objects):
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(pod.spec["securityContext"])
        assert breaches(pod) == []


def test_disabled_services_render_no_objects() -> None:
    objects = template({"store": {"bucket": "log"}, "sink": {"enabled": False}, "compactor": {"mode": "off"}})
    assert {each["kind"] for each in objects} == {"NetworkPolicy"}


def test_commands_in_the_runbooks_use_the_charts_object_names() -> None:
    made: set[str] = set()
    for mode in ("cron", "loop"):
        every = {"compactor": {"mode": mode}, "replica": {"enabled": True}, "serve": {"enabled": True}}
        every["table"] = {"tables": {"users": {"topic": "users", "to": "s3://lake/tables/users"}}}
        objects = template(with_values(every), name="keyfold")
        made |= {name_of(each).lower() for each in objects}
    made |= {f"pod/{name.removeprefix('statefulset/')}-0" for name in made if name.startswith("statefulset/")}
    kinds = "statefulset|deployment|cronjob|secret|service|svc|pod"
    wrong = []
    for page in sorted((CHART.parents[2] / "docs" / "operations").rglob("*.md")):
        for line in re.findall(r"kubectl [^`\n]*", page.read_text()):
            named = re.findall(rf"\b({kinds})[/ ](keyfold[\w-]*)", line)
            wrong += [
                (page.name, line) for kind, name in named if f"{kind.replace('svc', 'service')}/{name}" not in made
            ]
            wrong += [(page.name, line) for name in re.findall(r"logs (keyfold\S*)", line) if f"pod/{name}" not in made]
    assert wrong == []


# What is refused


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sink": {"replica": 2}}, "replica"),
        ({"sink": {"replicas": "two"}}, "replicas"),
        ({"sinks": {}}, "sinks"),
        ({"sink": {"config": {"topics": ["users"]}}}, "topics"),
        ({"sink": {"autoscaling": {"scaleDownAfterSeconds": 3601}}}, "scaleDownAfterSeconds"),
        ({"sink": {"resources": {"limit": {}}}}, "limit"),
        ({"compactor": {"mode": "daily"}}, "mode"),
        ({"compactor": {"cron": {"schedule": "hourly"}}}, "schedule"),
        ({"compactor": {"spark": {"conf": {"executor.cores": 2}}}}, "executor.cores"),
        ({"store": {"url": "minio:9000"}}, "url"),
        ({"networkPolicy": {"kafka": {"to": [{"cidr": "10.0.0.0/8"}]}}}, "cidr"),
        ({"networkPolicy": {"instanceMetadata": {"enable": True}}}, "enable"),
        ({"monitoring": {"prometheusRule": {"services": ["sinks"]}}}, "services"),
        ({"sink": {"secretEnv": {"A-B": {"secretName": "a", "key": "b"}}}}, "A-B"),
    ],
)
def test_invalid_values_are_refused_by_name(change: Mapping[str, Any], said: str) -> None:
    with pytest.raises(KeyfoldError) as refused:
        template_text(with_values(change))
    assert "values don't meet the specifications of the schema" in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "store.bucket: missing required value, the bucket of the log"),
        ({"store": {"bucket": "log"}}, "sink.config: missing required key `topics` or `topics.regex`"),
        ({"store": {"bucket": "log"}, "sink": {"config": {"topics": "users"}}}, "sink.bootstrapServers"),
        (
            with_values({"sink": {"config": {"listeners": "x"}}}),
            "`listeners` is set by the chart: use `sink.rest.port`",
        ),
        (with_values({"sink": {"config": {"sasl.password": "x"}}}), "`sasl.password` would be readable in a ConfigMap"),
        (with_values({"compactor": {"config": {"aws.secret.access.key": "x"}}}), "would be readable in a ConfigMap"),
        (with_values({"compactor": {"config": {"spark.master": "yarn"}}}), "use `compactor.spark.mode`"),
        (
            with_values({"sink": {"autoscaling": {"type": "hpa", "minReplicas": 5}}}),
            "maxReplicas (4) is less than minReplicas (5)",
        ),
        (with_values({"sink": {"pod": {"labels": {"app.kubernetes.io/name": "x"}}}}), "is set by the chart"),
    ],
)
def test_values_that_cannot_work_are_refused_with_a_hint(values: Mapping[str, Any], said: str) -> None:
    with pytest.raises(KeyfoldError) as refused:
        template_text(values)
    assert said in str(refused.value)
