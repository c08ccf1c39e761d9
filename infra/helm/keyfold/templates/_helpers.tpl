{{/* Names, labels, images. */}}

{{- define "keyfold.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels that select pods; they never change in an upgrade. (list $ component) */}}
{{- define "keyfold.selector" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: {{ default $.Chart.Name $.Values.nameOverride }}
app.kubernetes.io/instance: {{ $.Release.Name }}
{{- with index . 1 }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* (list $ component) */}}
{{- define "keyfold.labels" -}}
{{- $ := index . 0 -}}
{{ include "keyfold.selector" . }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: keyfold
app.kubernetes.io/managed-by: {{ $.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $.Chart.Name ($.Chart.Version | replace "+" "_") }}
{{- with $.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* (list $ component name) */}}
{{- define "keyfold.metadata" -}}
{{- $ := index . 0 -}}
metadata:
  name: {{ index . 2 }}
  namespace: {{ $.Release.Namespace }}
  labels: {{- include "keyfold.labels" (list $ (index . 1)) | nindent 4 }}
{{- end -}}

{{/* (list $ image) */}}
{{- define "keyfold.image" -}}
{{- $ := index . 0 -}}
{{- with index . 1 -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* (list $ serviceAccount component) */}}
{{- define "keyfold.serviceAccount" -}}
{{- $ := index . 0 -}}
{{- $component := index . 2 -}}
{{- with index . 1 -}}
{{- if .name -}}
{{ .name }}
{{- else -}}
{{ ternary (printf "%s-%s" (include "keyfold.fullname" $) $component) "default" .create }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "keyfold.restSecret" -}}
{{ default (printf "%s-rest" (include "keyfold.fullname" .)) .Values.sink.rest.tokenSecretName }}
{{- end -}}

{{- define "keyfold.serveSecret" -}}
{{ default (printf "%s-serve" (include "keyfold.fullname" .)) .Values.serve.tokenSecretName }}
{{- end -}}

{{/* A Secret with a token that is generated once, and kept over upgrades. (list $ component name key) */}}
{{- define "keyfold.generatedToken" -}}
{{- $ := index . 0 -}}
{{- $name := index . 2 -}}
{{- $key := index . 3 -}}
apiVersion: v1
kind: Secret
{{ include "keyfold.metadata" (list $ (index . 1) $name) }}
type: Opaque
data:
  {{ $key }}: {{ dig "data" $key (randAlphaNum 40 | b64enc) (default (dict) (lookup "v1" "Secret" $.Release.Namespace $name)) }}
{{- end -}}

{{/* The URL of the logs, for commands that take no configuration. */}}
{{- define "keyfold.url" -}}
{{ printf "s3://%s/%s" (required "store.bucket: missing required value, the bucket of the log" .Values.store.bucket) .Values.store.topicsDir | trimSuffix "/" }}
{{- end -}}

{{/* Whether the compactor creates executor pods. */}}
{{- define "keyfold.onKubernetes" -}}
{{- if and (ne .Values.compactor.mode "off") (eq .Values.compactor.spark.mode "kubernetes") }}true{{ end -}}
{{- end -}}
