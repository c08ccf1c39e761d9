#!/usr/bin/env bash
# Runs before an executor's pod is stopped, if spark.decommission.enabled is set (spark.kubernetes.decommission.script).
# SIGPWR tells the executor to accept no more tasks. The executor ends by itself, or when the pod's grace period is over.
set -euo pipefail

for process in /proc/[0-9]*; do
    if tr '\0' '\n' 2>/dev/null < "$process/cmdline" | grep -qx 'org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend'; then
        executor=${process#/proc/}
        # tini has the class's name among its arguments, too
        [ "$(readlink "$process/exe" || true)" != /usr/bin/tini ] || continue
        kill -s PWR "$executor"
        while [ -d "$process" ]; do sleep 1; done
    fi
done
