#!/usr/bin/env bash
# The entrypoint that Spark on Kubernetes expects: called with `driver ARGUMENTS...` or `executor`, with further settings
# in variables that Spark gives to its pods. Any other command runs as it is. All commands run under tini, which forwards
# signals and reaps orphaned processes. The script writes nothing: the root file system may be read-only.
set -euo pipefail

: "${SPARK_HOME:=/opt/spark}"

java_options() { # SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ... one option each, in the order of their numbers
    local name
    while IFS= read -r name; do
        options+=("${!name}")
    done < <(compgen -e | grep -E '^SPARK_JAVA_OPT_[0-9]+$' | sort -t_ -k4 -n || true)
}

class_path() { # what Spark says, after its configuration and the jars of the image
    local path="${SPARK_CONF_DIR:-$SPARK_HOME/conf}"
    [ -z "${HADOOP_CONF_DIR:-}" ] || path+=":$HADOOP_CONF_DIR"
    [ -z "${SPARK_CLASSPATH:-}" ] || path+=":$SPARK_CLASSPATH"
    path+=":$SPARK_HOME/jars/*"
    [ -z "${SPARK_EXTRA_CLASSPATH:-}" ] || path+=":$SPARK_EXTRA_CLASSPATH"
    [ -z "${SPARK_DIST_CLASSPATH:-}" ] || path+=":$SPARK_DIST_CLASSPATH"
    printf '%s' "$path"
}

case "${1:-}" in
    driver)
        shift
        command=(
            "$SPARK_HOME/bin/spark-submit"
            --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS"
            --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS"
            --deploy-mode client
            "$@"
        )
        ;;
    executor)
        options=()
        java_options
        command=(
            "${JAVA_HOME:?}/bin/java"
            "${options[@]}"
            "-Xms${SPARK_EXECUTOR_MEMORY:?}"
            "-Xmx$SPARK_EXECUTOR_MEMORY"
            -cp "$(class_path)"
            org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend
            --driver-url "${SPARK_DRIVER_URL:?}"
            --executor-id "${SPARK_EXECUTOR_ID:?}"
            --cores "${SPARK_EXECUTOR_CORES:?}"
            --app-id "${SPARK_APPLICATION_ID:?}"
            --hostname "${SPARK_EXECUTOR_POD_IP:?}"
            --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID:-0}"
            --podName "${SPARK_EXECUTOR_POD_NAME:?}"
        )
        ;;
    "")
        echo "what should run? driver ARGUMENTS..., executor, or a command such as: keyfold compact run CONFIG" >&2
        exit 2
        ;;
    *)
        command=("$@")
        ;;
esac

exec /usr/bin/tini -s -- "${command[@]}"
