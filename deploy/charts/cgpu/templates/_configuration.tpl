{{- /* The newest version of the scheduler's configuration that the cluster's kube-scheduler reads. */}}
{{- define "cgpu.configuration" -}}
{{- $minor := (semver .Capabilities.KubeVersion.Version).Minor | int -}}
{{- $version := "v1" -}}
{{- if lt $minor 22 -}}
{{- $version = "v1beta1" -}}
{{- else if lt $minor 23 -}}
{{- $version = "v1beta2" -}}
{{- else if lt $minor 25 -}}
{{- $version = "v1beta3" -}}
{{- end -}}
apiVersion: kubescheduler.config.k8s.io/{{ $version }}
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  # With these, another replica binds within 20 s after a leader has died. The extender of a leader
  # binds nothing from 10 s after its last renewal on.
  leaseDuration: 13s
  renewDeadline: 10s
  retryPeriod: 1s
  resourceLock: leases
  resourceNamespace: {{ .Release.Namespace }}
  resourceName: cgpu-scheduler
{{- if lt $minor 23 }}
# Before 1.23 they are served without TLS too. That cannot be turned off here, and --port=0 counts
# only without a file.
healthzBindAddress: 127.0.0.1:10251
metricsBindAddress: 127.0.0.1:10251
{{- end }}
# Why a pod fits nowhere is written before the next pod is looked at. At the usual 50 a second, pods
# that fit would wait for those that do not.
clientConnection: {qps: 200, burst: 400}
percentageOfNodesToScore: 100
profiles:
- schedulerName: cgpu-scheduler
- schedulerName: ack-co-scheduler
extenders:
- urlPrefix: http://127.0.0.1:32766/gpushare-scheduler
  filterVerb: filter
  prioritizeVerb: prioritize
  preemptVerb: preempt
  bindVerb: bind
  weight: 1000
  nodeCacheCapable: true
  ignorable: false
  httpTimeout: 30s
{{- if not .Values.scheduler.podsWithoutGpus }}
  managedResources:
  - {name: aliyun.com/gpu-mem, ignoredByScheduler: false}
  - {name: aliyun.com/gpu-core.percentage, ignoredByScheduler: false}
  - {name: aliyun.com/gpu, ignoredByScheduler: false}
{{- end }}
{{- end }}
