{{/* The compactor's pod: the same for a run of the CronJob and for the loop. */}}

{{/* The pod template of executors. Spark adds image, resources, a volume for its local directories, and its own labels. */}}
{{- define "keyfold.executorPod" -}}
{{- $compactor := .Values.compactor -}}
{{- $executor := $compactor.spark.executor -}}
apiVersion: v1
kind: Pod
metadata: {{- include "keyfold.podMetadata" (list . "executor" $executor.pod "") | nindent 2 }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  securityContext: {{- include "keyfold.podSecurity" $compactor.runAsUser | nindent 4 }}
  {{- with include "keyfold.pullSecrets" . }}{{ trim . | nindent 2 }}{{ end }}
  {{- with include "keyfold.placement" $executor.pod }}{{ trim . | nindent 2 }}{{ end }}
  containers:
    - name: executor
      env:
        {{- include "keyfold.sharedEnv" (list . $compactor) | nindent 8 }}
      securityContext: {{- include "keyfold.containerSecurity" . | nindent 8 }}
      volumeMounts:
        # Executors fetch the code, and write what Spark's start script makes, into their working directory.
        - {name: work, mountPath: {{ $compactor.spark.home }}/work-dir}
        # Spark uses volumes with this name for its local directories.
        - {name: spark-local-dir-1, mountPath: /var/data/spark}
        {{- include "keyfold.sharedMounts" $compactor | nindent 8 }}
  volumes:
    - name: work
      emptyDir: {sizeLimit: 1Gi}
    - name: spark-local-dir-1
      emptyDir: {sizeLimit: {{ $executor.scratchSize }}}
    {{- include "keyfold.sharedVolumes" (list . $compactor) | nindent 4 }}
{{- end -}}

{{/*
Settings of Spark, as a JSON object. Spark gives its executors new names at each start, so they never have the names of
a run that died in this pod or of another compactor's. The progress bar is off, because it would break the lines of the
log. Driver and executors authenticate each other with a secret that Spark makes at each start, and encrypt their
traffic, because tasks contain the store's credentials.
*/}}
{{- define "keyfold.sparkConf" -}}
{{- $spark := .Values.compactor.spark -}}
{{- $c := dict "spark.driver.memory" $spark.driverMemory -}}
{{- if include "keyfold.onKubernetes" . -}}
{{- $executor := $spark.executor -}}
{{- $c = mergeOverwrite $c (dict
  "spark.authenticate" "true"
  "spark.network.crypto.enabled" "true"
  "spark.driver.host" "$(POD_IP)"
  "spark.kubernetes.namespace" .Release.Namespace
  "spark.kubernetes.driver.pod.name" "$(POD_NAME)"
  "spark.kubernetes.container.image" (include "keyfold.image" (list . .Values.compactor.image))
  "spark.kubernetes.container.image.pullPolicy" .Values.compactor.image.pullPolicy
  "spark.kubernetes.authenticate.executor.serviceAccountName" (include "keyfold.serviceAccount" (list . $executor.serviceAccount "executor"))
  "spark.kubernetes.executor.podTemplateFile" "/etc/keyfold/executor.yaml"
  "spark.kubernetes.executor.podTemplateContainerName" "executor"
  "spark.kubernetes.executor.disableConfigMap" "true"
  "spark.kubernetes.driver.service.deleteOnTermination" "false"
  "spark.kubernetes.driver.ownPersistentVolumeClaim" "false"
  "spark.kubernetes.driver.reusePersistentVolumeClaim" "false"
  "spark.dynamicAllocation.enabled" "false"
  "spark.executor.instances" (int $executor.instances)
  "spark.executor.cores" (int $executor.cores)
  "spark.executor.memory" $executor.memory
  "spark.executor.memoryOverhead" $executor.memoryOverhead
  "spark.pyspark.python" $spark.python
  "spark.ui.enabled" "false"
  "spark.ui.showConsoleProgress" "false"
) -}}
{{- end -}}
{{- mergeOverwrite $c (deepCopy $spark.conf) | toJson -}}
{{- end -}}

{{/* Arguments of the image's entrypoint, which runs them under an init that reaps Spark's orphaned processes. */}}
{{- define "keyfold.compactArguments" -}}
{{- $compactor := .Values.compactor -}}
{{- $spark := $compactor.spark -}}
{{- $isSubmit := and (include "keyfold.onKubernetes" .) (eq $spark.launcher "spark-submit") -}}
{{- $conf := include "keyfold.sparkConf" . | fromJson -}}
args:
{{- if $isSubmit }}
  - {{ $spark.home }}/bin/spark-submit
  - --master={{ $spark.master }}
  - --deploy-mode=client
  - --name={{ include "keyfold.fullname" . }}-compactor
  {{- range $key, $value := $conf }}
  - --conf
  - {{ printf "%s=%v" $key $value | quote }}
  {{- end }}
  - {{ $spark.script }}
  - run
  - /etc/keyfold/compact.json
{{- else }}
  - keyfold
  - compact
  - run
  - /etc/keyfold/compact.json
  - --master
  - {{ ternary $spark.master (printf "local[%d]" (int $spark.localCores)) (eq $spark.mode "kubernetes") | quote }}
  {{- range $key, $value := $conf }}
  - --conf
  - {{ printf "%s=%v" $key $value | quote }}
  {{- end }}
{{- end }}
{{- if eq $compactor.mode "cron" }}
  - --once
{{- end }}
{{- if $compactor.jsonLogs }}
  - --json
{{- end }}
{{- end -}}

{{- define "keyfold.compactorPod" -}}
{{- $compactor := .Values.compactor -}}
{{- $spark := $compactor.spark -}}
{{- $isLoop := eq $compactor.mode "loop" -}}
metadata: {{- include "keyfold.podMetadata" (list . "compactor" $compactor.pod (printf "%s%s" (include "keyfold.compactConfig" .) (ternary (include "keyfold.executorPod" .) "" (eq $spark.mode "kubernetes")))) | nindent 2 }}
spec:
  {{- if not $isLoop }}
  restartPolicy: Never
  {{- end }}
  serviceAccountName: {{ include "keyfold.serviceAccount" (list . $compactor.serviceAccount "compactor") }}
  # Only Spark's driver talks to the Kubernetes API.
  automountServiceAccountToken: {{ include "keyfold.onKubernetes" . | default "false" }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ int $compactor.terminationGracePeriodSeconds }}
  securityContext: {{- include "keyfold.podSecurity" $compactor.runAsUser | nindent 4 }}
  {{- with include "keyfold.pullSecrets" . }}{{ trim . | nindent 2 }}{{ end }}
  {{- with include "keyfold.placement" $compactor.pod }}{{ trim . | nindent 2 }}{{ end }}
  containers:
    - name: compactor
      image: {{ include "keyfold.image" (list . $compactor.image) }}
      imagePullPolicy: {{ $compactor.image.pullPolicy }}
      {{- include "keyfold.compactArguments" . | nindent 6 }}
      env:
        {{- include "keyfold.env" (list . $compactor) | nindent 8 }}
        - {name: SPARK_LOCAL_DIRS, value: /var/data/spark}
        - {name: PYSPARK_PYTHON, value: {{ $spark.python }}}
      ports:
        - {name: metrics, containerPort: {{ $compactor.metrics.port }}, protocol: TCP}
      {{- if $isLoop }}
      startupProbe: {{- include "keyfold.httpProbe" (list $compactor.probes.startup "/health/live" "metrics") | nindent 8 }}
      livenessProbe: {{- include "keyfold.httpProbe" (list $compactor.probes.liveness "/health/live" "metrics") | nindent 8 }}
      readinessProbe: {{- include "keyfold.httpProbe" (list $compactor.probes.readiness "/health/ready" "metrics") | nindent 8 }}
      {{- end }}
      resources: {{- toYaml $compactor.resources | nindent 8 }}
      securityContext: {{- include "keyfold.containerSecurity" . | nindent 8 }}
      volumeMounts:
        {{- include "keyfold.mounts" $compactor | nindent 8 }}
        - {name: scratch, mountPath: /var/data/spark}
        - {name: work, mountPath: {{ $spark.home }}/work-dir}
  volumes:
    {{- include "keyfold.volumes" (list . $compactor "compactor") | nindent 4 }}
    - name: scratch
      emptyDir: {sizeLimit: {{ $compactor.scratchSize }}}
    - name: work
      emptyDir: {sizeLimit: 256Mi}
{{- end -}}
