{{/* The services' configurations, as flat maps like Connect's. */}}

{{/* The keys about the store that the chart sets, as JSON. */}}
{{- define "keyfold.storeConfig" -}}
{{- $c := dict "s3.bucket.name" (required "store.bucket: missing required value, the bucket of the log" .Values.store.bucket) "topics.dir" .Values.store.topicsDir -}}
{{- with .Values.store.region }}{{ $_ := set $c "s3.region" . }}{{ end -}}
{{- with .Values.store.url }}{{ $_ := set $c "store.url" . }}{{ end -}}
{{- with .Values.store.encryption }}{{ $_ := set $c "s3.ssea.name" . }}{{ end -}}
{{- with .Values.store.kmsKeyId }}{{ $_ := set $c "s3.sse.kms.key.id" . }}{{ end -}}
{{- if not (kindIs "invalid" .Values.store.pathStyle) }}{{ $_ := set $c "s3.path.style.access.enabled" .Values.store.pathStyle }}{{ end -}}
{{- toJson $c -}}
{{- end -}}

{{/* (list name config reserved): refuse keys that the chart sets, and secrets that would be readable in a ConfigMap. */}}
{{- define "keyfold.checkConfig" -}}
{{- $name := index . 0 -}}
{{- $reserved := index . 2 -}}
{{- range $key, $value := index . 1 -}}
{{- if hasKey $reserved $key -}}
{{- fail (printf "%s.config: `%s` is set by the chart: use `%s`" $name $key (get $reserved $key)) -}}
{{- end -}}
{{- if and (regexMatch "passw|passphrase|secret|token|credential|jaas|user\\.?info" (lower $key)) (not (regexMatch "\\.(location|url|source|class|type)$" (lower $key))) (not (regexMatch "^aws\\.access\\.key\\.id$" $key)) (not (contains "${" (toString $value))) -}}
{{- fail (printf "%s.config: `%s` would be readable in a ConfigMap: write ${env:NAME} and name the Secret in %s.secretEnv, or ${file:/path:key} and %s.secretFiles" $name $key $name $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "keyfold.sinkConfig" -}}
{{- $sink := .Values.sink -}}
{{- $store := include "keyfold.storeConfig" . | fromJson -}}
{{- include "keyfold.checkConfig" (list "sink" $sink.config (dict "listeners" "sink.rest.port" "rest.token" "sink.rest.tokenSecretName" "bootstrap.servers" "sink.bootstrapServers" "consumer.override.group.instance.id" "sink.staticMembership" "consumer.override.session.timeout.ms" "sink.staticMembership.sessionTimeoutMs")) -}}
{{- if not (or (get $sink.config "topics") (get $sink.config "topics.regex")) -}}
{{- fail "sink.config: missing required key `topics` or `topics.regex`" -}}
{{- end -}}
{{- $c := dict "name" (include "keyfold.fullname" .) "bootstrap.servers" (required "sink.bootstrapServers: the brokers must be given, host:port separated by commas" $sink.bootstrapServers) -}}
{{- $_ := set $c "listeners" (printf "http://0.0.0.0:%d" (int $sink.rest.port)) -}}
{{- $_ := set $c "rest.token" "${env:KEYFOLD_REST_TOKEN}" -}}
{{- if $sink.staticMembership.enabled -}}
{{- /* A static member that comes back asking for other topics is given its old partitions again, and nobody gets the
new ones (KAFKA-12759). So a pod whose topics were changed is another member. */ -}}
{{- $topics := printf "%s %s" (get $sink.config "topics" | default "") (get $sink.config "topics.regex" | default "") -}}
{{- $_ := set $c "consumer.override.group.instance.id" (printf "${env:POD_NAME}-%s" (sha256sum $topics | trunc 8)) -}}
{{- end -}}
{{- with $sink.staticMembership.sessionTimeoutMs }}{{ $_ := set $c "consumer.override.session.timeout.ms" (int .) }}{{ end -}}
{{- mergeOverwrite $store $c (deepCopy $sink.config) | toPrettyJson -}}
{{- end -}}

{{/* (service): a registration may name the service's own secrets and nothing else. Without any, the defaults hold. As JSON.
Names of variables have no sign that means something in a regular expression (values.schema.json). */}}
{{- define "keyfold.registrationConfig" -}}
{{- $c := dict -}}
{{- with .secretEnv }}{{ $_ := set $c "replica.env.allowlist.pattern" (keys . | sortAlpha | join "|") }}{{ end -}}
{{- $paths := list -}}
{{- range .secretFiles }}{{ $paths = append $paths .mountPath }}{{ end -}}
{{- with $paths }}{{ $_ := set $c "replica.file.allowed.paths" (join "," .) }}{{ end -}}
{{- toJson $c -}}
{{- end -}}

{{- define "keyfold.compactConfig" -}}
{{- $compactor := .Values.compactor -}}
{{- include "keyfold.checkConfig" (list "compactor" $compactor.config (dict "metrics.port" "compactor.metrics.port" "metrics.host" "compactor.metrics.port" "spark.master" "compactor.spark.mode")) -}}
{{- $c := dict "name" (printf "%s-compactor" (include "keyfold.fullname" .)) "metrics.host" "0.0.0.0" "metrics.port" (int $compactor.metrics.port) -}}
{{- if eq (toString (get $compactor.config "replicas.run")) "true" }}{{ $_ := mergeOverwrite $c (include "keyfold.registrationConfig" $compactor | fromJson) }}{{ end -}}
{{- mergeOverwrite (include "keyfold.storeConfig" . | fromJson) $c (deepCopy $compactor.config) | toPrettyJson -}}
{{- end -}}

{{/* Whether Prometheus can know how the compactor does, "true" or "": the pod of a CronJob is gone before an alert has
seen enough of it, so its runs must push. */}}
{{- define "keyfold.compactorIsWatched" -}}
{{- if or (eq .Values.compactor.mode "loop") (and (eq .Values.compactor.mode "cron") (get .Values.compactor.config "metrics.push.url")) -}}true{{- end -}}
{{- end -}}

{{- define "keyfold.replicaConfig" -}}
{{- $replica := .Values.replica -}}
{{- include "keyfold.checkConfig" (list "replica" $replica.config (dict "metrics.port" "replica.metrics.port" "metrics.host" "replica.metrics.port")) -}}
{{- $c := dict "name" (printf "%s-replica" (include "keyfold.fullname" .)) "metrics.host" "0.0.0.0" "metrics.port" (int $replica.metrics.port) -}}
{{- $_ := mergeOverwrite $c (include "keyfold.registrationConfig" $replica | fromJson) -}}
{{- mergeOverwrite (include "keyfold.storeConfig" . | fromJson) $c (deepCopy $replica.config) | toPrettyJson -}}
{{- end -}}
