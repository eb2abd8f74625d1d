{{- define "cgpu.labels" -}}
app.kubernetes.io/name: cgpu
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{- define "cgpu.selector" -}}
app.kubernetes.io/name: cgpu
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "cgpu.image" -}}
{{- if regexMatch ":[^/]*$|@" .Values.image.repository -}}
{{- fail (printf "image.repository=%s: expected no tag and no digest; the tag goes into image.tag" .Values.image.repository) -}}
{{- end -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* "true" if the driver for claims is installed, else empty. */}}
{{- define "cgpu.claims" -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- if eq (toString .Values.dra.enabled) "auto" -}}
{{- /* From 1.36 on several claims can share a device without a feature gate. */ -}}
{{- semverCompare ">=1.36-0" $version | ternary "true" "" -}}
{{- else if .Values.dra.enabled -}}
{{- if semverCompare "<1.34-0" $version -}}
{{- fail (printf "dra.enabled=true: claims need Kubernetes 1.34 or later, and this is %s: leave it out, or set false" $version) -}}
{{- end -}}
true
{{- end -}}
{{- end }}

{{- /* The security context of containers that need no capabilities and write no files. */}}
{{- define "cgpu.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "cgpu.account" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "cgpu.pullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The affinity that spreads replicas over different nodes if possible. */}}
{{- define "cgpu.apart" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
  - weight: 100
    podAffinityTerm:
      topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels: {{- include "cgpu.selector" . | nindent 10 }}
{{- end }}
