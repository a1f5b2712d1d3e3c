package podspec_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/kindtest"
)

const soundPod = `
metadata: {name: web, namespace: default}
spec:
  containers:
  - name: main
    image: nginx:1.29
    ports:
    - {name: http, containerPort: 80}
    env:
    - {name: A, value: b}
    - name: NODE
      valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
    resources:
      limits: {cpu: "1", memory: 1Gi}
      requests: {cpu: 500m}
    readinessProbe:
      httpGet: {path: /ready, port: http}
    livenessProbe:
      tcpSocket: {port: 80}
    volumeMounts:
    - {name: config, mountPath: /etc/config}
  initContainers:
  - {name: setup, image: busybox}
  - {name: proxy, image: envoy, restartPolicy: Always}
  volumes:
  - name: config
    configMap: {name: web}
  tolerations:
  - {key: a, operator: Exists, effect: NoSchedule}
  topologySpreadConstraints:
  - {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}
`

func TestPod_ValidateRejects(t *testing.T) {
	t.Parallel()
	kindtest.Create(t, "Pod", soundPod, []kindtest.Case{
		{"no container name", []string{"name: main", "name: ''"}, []string{"Required spec.containers[0].name"}},
		{"bad container name", []string{"name: main", "name: Main"}, []string{"Invalid spec.containers[0].name"}},
		{"same names", []string{"name: setup", "name: main"}, []string{"Duplicate spec.initContainers[0].name"}},
		{"no image", []string{"image: nginx:1.29", "image: ''"}, []string{"Required spec.containers[0].image"}},
		{"image with space", []string{"image: nginx:1.29", "image: ' nginx'"},
			[]string{"Invalid spec.containers[0].image"}},
		{"port 0", []string{"containerPort: 80", "containerPort: 0"},
			[]string{"Required spec.containers[0].ports[0].containerPort"}},
		{"port too high", []string{"containerPort: 80", "containerPort: 65536"},
			[]string{"Invalid spec.containers[0].ports[0].containerPort"}},
		{"port name", []string{"name: http,", "name: a_b,"}, []string{"Invalid spec.containers[0].ports[0].name"}},
		{"port protocol", []string{"containerPort: 80", "containerPort: 80, protocol: ICMP"},
			[]string{"NotSupported spec.containers[0].ports[0].protocol"}},
		{"env without name", []string{"name: A,", "name: '',"}, []string{"Required spec.containers[0].env[0].name"}},
		{"env with value and source", []string{"- name: NODE", "- name: NODE\n      value: x"},
			[]string{"Invalid spec.containers[0].env[1].valueFrom"}},
		{"unknown field", []string{"spec.nodeName", "spec.color"},
			[]string{"Invalid spec.containers[0].env[1].valueFrom.fieldRef.fieldPath"}},
		{"request above limit", []string{"cpu: 500m", "cpu: '2'"},
			[]string{"Invalid spec.containers[0].resources.requests"}},
		{"negative request", []string{"cpu: 500m", "cpu: -1"},
			[]string{"Invalid spec.containers[0].resources.requests[cpu]"}},
		{"unknown resource", []string{"cpu: 500m", "gpu: 1"},
			[]string{"Invalid spec.containers[0].resources.requests[gpu]",
				"Invalid spec.containers[0].resources.requests[gpu]"}},
		{"extended resource without limit", []string{"cpu: 500m", "x.io/gpu: 1"},
			[]string{"Required spec.containers[0].resources.limits"}},
		{"two handlers", []string{"tcpSocket: {port: 80}", "tcpSocket: {port: 80}\n      exec: {command: [a]}"},
			[]string{"Forbidden spec.containers[0].livenessProbe.tcpSocket"}},
		{"no handler", []string{"tcpSocket: {port: 80}", "periodSeconds: 3"},
			[]string{"Required spec.containers[0].livenessProbe"}},
		{"liveness threshold", []string{"tcpSocket: {port: 80}", "tcpSocket: {port: 80}\n      successThreshold: 2"},
			[]string{"Invalid spec.containers[0].livenessProbe.successThreshold"}},
		{"probe port", []string{"tcpSocket: {port: 80}", "tcpSocket: {port: 0}"},
			[]string{"Invalid spec.containers[0].livenessProbe.tcpSocket.port"}},
		{"mount of nothing", []string{"{name: config, mountPath", "{name: other, mountPath"},
			[]string{"NotFound spec.containers[0].volumeMounts[0].name"}},
		{"mount without path", []string{"mountPath: /etc/config", "mountPath: ''"},
			[]string{"Required spec.containers[0].volumeMounts[0].mountPath"}},
		{"sub path upwards", []string{"mountPath: /etc/config", "mountPath: /etc/config, subPath: ../a"},
			[]string{"Invalid spec.containers[0].volumeMounts.subPath"}},
		{"two volume types", []string{"configMap: {name: web}", "configMap: {name: web}\n    emptyDir: {}"},
			[]string{"Forbidden spec.volumes[0].configMap", "NotFound spec.containers[0].volumeMounts[0].name"}},
		{"volume mode", []string{"configMap: {name: web}", "configMap: {name: web, defaultMode: 4096}"},
			[]string{"Invalid spec.volumes[0].configMap.defaultMode",
				"NotFound spec.containers[0].volumeMounts[0].name"}},
		{"init container with a probe", []string{"image: busybox", "image: busybox, livenessProbe: {tcpSocket: " +
			"{port: 1}}"}, []string{"Forbidden spec.initContainers[0].livenessProbe"}},
		{"toleration operator", []string{"operator: Exists", "operator: Sure"},
			[]string{"NotSupported spec.tolerations[0].operator"}},
		{"toleration effect", []string{"effect: NoSchedule", "effect: Never"},
			[]string{"NotSupported spec.tolerations[0].effect"}},
		{"spread skew", []string{"maxSkew: 1", "maxSkew: 0"},
			[]string{"Invalid spec.topologySpreadConstraints[0].maxSkew"}},
		{"spread without key", []string{"topologyKey: zone", "topologyKey: ''"},
			[]string{"Required spec.topologySpreadConstraints[0].topologyKey"}},
		{"restart policy", []string{"spec:", "spec:\n  restartPolicy: Often"},
			[]string{"NotSupported spec.restartPolicy"}},
		{"dns policy", []string{"spec:", "spec:\n  dnsPolicy: None"}, []string{"Required spec.dnsConfig"}},
		{"deadline", []string{"spec:", "spec:\n  activeDeadlineSeconds: 0"},
			[]string{"Invalid spec.activeDeadlineSeconds"}},
		{"hostname", []string{"spec:", "spec:\n  hostname: a.b"}, []string{"Invalid spec.hostname"}},
		{"node selector", []string{"spec:", "spec:\n  nodeSelector: {a: b c}"}, []string{"Invalid spec.nodeSelector"}},
		{"affinity without terms", []string{"spec:", "spec:\n  affinity: {nodeAffinity: " +
			"{requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}}}"},
			[]string{"Required spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"}},
		{"several at once", []string{"name: main", "name: ''", "image: nginx:1.29", "image: ''"},
			[]string{"Required spec.containers[0].name", "Required spec.containers[0].image"}},
	})
}

func TestPod_DefaultsMatchKubernetes(t *testing.T) {
	t.Parallel()
	p := kindtest.Decode(t, kindtest.Of(t, "Pod"), soundPod).(*corev1.Pod)
	c := p.Spec.Containers[0]
	require.Equal(t, corev1.RestartPolicyAlways, p.Spec.RestartPolicy)
	require.Equal(t, corev1.DNSClusterFirst, p.Spec.DNSPolicy)
	require.Equal(t, ptr.To[int64](30), p.Spec.TerminationGracePeriodSeconds)
	require.Equal(t, "default-scheduler", p.Spec.SchedulerName)
	require.Equal(t, &corev1.PodSecurityContext{}, p.Spec.SecurityContext)
	require.Equal(t, ptr.To(true), p.Spec.EnableServiceLinks)
	require.Nil(t, p.Spec.Priority)
	require.Equal(t, corev1.PullIfNotPresent, c.ImagePullPolicy)
	require.Equal(t, corev1.PullAlways, p.Spec.InitContainers[0].ImagePullPolicy)
	require.Equal(t, corev1.ProtocolTCP, c.Ports[0].Protocol)
	require.Equal(t, "500m", c.Resources.Requests.Cpu().String())
	require.Equal(t, "1Gi", c.Resources.Requests.Memory().String(), "what is limited is requested")
	require.EqualValues(t, 10, c.LivenessProbe.PeriodSeconds)
	require.EqualValues(t, 3, c.LivenessProbe.FailureThreshold)
	require.Equal(t, corev1.URISchemeHTTP, c.ReadinessProbe.HTTPGet.Scheme)
	require.Equal(t, "v1", c.Env[1].ValueFrom.FieldRef.APIVersion)
	require.Equal(t, ptr.To[int32](0o644), p.Spec.Volumes[0].ConfigMap.DefaultMode)
}

func TestPod_PullPolicyFollowsTheTag(t *testing.T) {
	t.Parallel()
	r := kindtest.Of(t, "Pod")
	for image, want := range map[string]corev1.PullPolicy{
		"nginx":                       corev1.PullAlways,
		"nginx:latest":                corev1.PullAlways,
		"nginx:1":                     corev1.PullIfNotPresent,
		"host:5000/nginx":             corev1.PullAlways,
		"host:5000/nginx:1":           corev1.PullIfNotPresent,
		"nginx@sha256:0123":           corev1.PullIfNotPresent,
		"host:5000/a/b:latest@sha:01": corev1.PullAlways,
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: image}}}}
		r.Default(p)
		require.Equal(t, want, p.Spec.Containers[0].ImagePullPolicy, image)
	}
}

func BenchmarkPod_DefaultAndValidate(b *testing.B) {
	r := kindtest.Of(b, "Pod")
	sound := kindtest.Decode(b, r, soundPod)
	b.ReportAllocs()
	for b.Loop() {
		obj := sound.DeepCopyObject().(api.Object)
		r.Default(obj)
		if errs := r.Validate(obj); len(errs) > 0 {
			b.Fatal(errs)
		}
	}
}
