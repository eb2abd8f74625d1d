{{- /* The scheduler's configuration, in the newest API version that its kube-scheduler reads. */}}
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
  # With these times, another replica binds within 20 s after the leader has died. leaseDuration
  # must be above 10 s: an extender stops binding when the lease was not renewed for 10 s.
  leaseDuration: 13s
  renewDeadline: 10s
  retryPeriod: 1s
  resourceLock: leases
  resourceNamespace: {{ .Release.Namespace }}
  resourceName: cgpu-scheduler
{{- if lt $minor 23 }}
# Before 1.23, kube-scheduler also serves health and metrics without TLS. A configuration cannot
# turn that off, and --port=0 has no effect beside one.
healthzBindAddress: 127.0.0.1:10251
metricsBindAddress: 127.0.0.1:10251
{{- end }}
# kube-scheduler writes why a pod fits nowhere before it looks at the next pod. With the default qps
# of 50, pods that fit would wait for pods that do not.
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
