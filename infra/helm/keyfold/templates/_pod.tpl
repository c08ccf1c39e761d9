{{/* Common parts of the pods. A service is `.Values.sink`, `.compactor` or `.replica`. */}}

{{/* The restricted Pod Security Standard. (list uid) */}}
{{- define "keyfold.podSecurity" -}}
runAsNonRoot: true
{{- if not (kindIs "invalid" .) }}
runAsUser: {{ int . }}
runAsGroup: {{ int . }}
fsGroup: {{ int . }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "keyfold.containerSecurity" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Where pods run. (list pod) */}}
{{- define "keyfold.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* Metadata of a pod template. (list $ component pod checksum) */}}
{{- define "keyfold.podMetadata" -}}
{{- $ := index . 0 -}}
{{- $pod := index . 2 -}}
{{- range $key, $_ := $pod.labels -}}
{{- if hasPrefix "app.kubernetes.io/" $key }}{{ fail (printf "pod.labels: `%s` is set by the chart" $key) }}{{ end -}}
{{- end -}}
labels:
  {{- include "keyfold.labels" (list $ (index . 1)) | nindent 2 }}
  {{- with $pod.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $annotations := deepCopy (default (dict) $pod.annotations) -}}
{{- with index . 3 }}{{ $_ := set $annotations "keyfold/config" (sha256sum .) }}{{ end }}
{{- with $annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "keyfold.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Environment: the pod's name and address, credentials, and the variables of the values. (list $ service) */}}
{{- define "keyfold.env" -}}
{{- $ := index . 0 -}}
{{- $service := index . 1 -}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
{{ include "keyfold.sharedEnv" . }}
{{- end -}}

{{- define "keyfold.sharedEnv" -}}
{{- $ := index . 0 -}}
{{- $service := index . 1 -}}
- {name: HOME, value: /tmp}
- {name: PYTHONDONTWRITEBYTECODE, value: "1"}
{{- with $.Values.store.region }}
- {name: AWS_REGION, value: {{ . | quote }}}
{{- end }}
{{- with $.Values.store.credentials }}
{{- if .secretName }}
- {name: AWS_ACCESS_KEY_ID, valueFrom: {secretKeyRef: {name: {{ .secretName }}, key: {{ .accessKeyIdKey }}}}}
- {name: AWS_SECRET_ACCESS_KEY, valueFrom: {secretKeyRef: {name: {{ .secretName }}, key: {{ .secretAccessKeyKey }}}}}
{{- end }}
{{- end }}
{{- range $name, $from := $service.secretEnv }}
- {name: {{ $name }}, valueFrom: {secretKeyRef: {name: {{ $from.secretName }}, key: {{ $from.key }}}}}
{{- end }}
{{- range $name, $value := $service.env }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end -}}

{{/* (list $ service component) */}}
{{- define "keyfold.volumes" -}}
{{- $ := index . 0 -}}
{{- $service := index . 1 -}}
- name: config
  configMap: {name: {{ include "keyfold.fullname" $ }}-{{ index . 2 }}}
{{ include "keyfold.sharedVolumes" (list $ $service) }}
{{- end -}}

{{- define "keyfold.sharedVolumes" -}}
- name: tmp
  emptyDir: {sizeLimit: 256Mi}
{{- range $i, $file := (index . 1).secretFiles }}
- name: secret-{{ $i }}
  secret: {secretName: {{ $file.secretName }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{- define "keyfold.mounts" -}}
- {name: config, mountPath: /etc/keyfold, readOnly: true}
{{ include "keyfold.sharedMounts" . }}
{{- end -}}

{{- define "keyfold.sharedMounts" -}}
- {name: tmp, mountPath: /tmp}
{{- range $i, $file := .secretFiles }}
- {name: secret-{{ $i }}, mountPath: {{ $file.mountPath }}, readOnly: true}
{{- end }}
{{- end -}}

{{/* (list probe path port) */}}
{{- define "keyfold.httpProbe" -}}
httpGet: {path: {{ index . 1 }}, port: {{ index . 2 }}}
{{ toYaml (index . 0) }}
{{- end -}}
