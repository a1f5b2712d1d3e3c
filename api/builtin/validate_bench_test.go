package builtin_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/kindtest"
)

// The kinds with the most writes: pods, their workloads and configuration, and heartbeats.
const (
	podOfTwoKilobytes = `
metadata:
  name: web-7d4b9c6f5-x2x9z
  namespace: shop
  labels: {app: web, pod-template-hash: 7d4b9c6f5, part: frontend}
  annotations: {example.com/about: A pod as they are found in clusters}
  ownerReferences:
  - {apiVersion: apps/v1, kind: ReplicaSet, name: web-7d4b9c6f5, uid: 0d3a6a5e-5d6c-4f0c-9d4a-0a8d9f1f2c11, controller: true}
` + podSpec

	podSpec = `
spec:
  serviceAccountName: default
  automountServiceAccountToken: false
  containers:
  - name: web
    image: registry.example.com/shop/web:1.4.2
    args: [--listen=:8080, --log=json, --workers=4]
    ports:
    - {name: http, containerPort: 8080}
    - {name: metrics, containerPort: 9090}
    env:
    - {name: SETTING_00, value: the value of setting number 00}
    - {name: SETTING_01, value: the value of setting number 01}
    - {name: SETTING_02, value: the value of setting number 02}
    - {name: SETTING_03, value: the value of setting number 03}
    - {name: SETTING_04, value: the value of setting number 04}
    - {name: SETTING_05, value: the value of setting number 05}
    - {name: SETTING_06, value: the value of setting number 06}
    - {name: SETTING_07, value: the value of setting number 07}
    - name: PASSWORD
      valueFrom: {secretKeyRef: {name: web, key: password}}
    - name: NODE
      valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
    resources:
      requests: {cpu: 100m, memory: 128Mi}
      limits: {memory: 256Mi}
    readinessProbe: {httpGet: {path: /ready, port: http}, periodSeconds: 5}
    livenessProbe: {tcpSocket: {port: 8080}}
    securityContext: {allowPrivilegeEscalation: false, runAsNonRoot: true, capabilities: {drop: [ALL]}}
    volumeMounts:
    - {name: cache, mountPath: /var/cache/web}
    - {name: settings, mountPath: /etc/web, readOnly: true}
  - name: proxy
    image: registry.example.com/mesh/proxy:2.9
    ports: [{name: mesh, containerPort: 15001}]
    resources: {requests: {cpu: 10m, memory: 32Mi}}
  volumes:
  - {name: cache, emptyDir: {}}
  - {name: settings, configMap: {name: web-settings}}
  tolerations:
  - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 300}
  - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 300}
`

	deploymentOfPods = `
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, part: frontend}}
    spec:
      containers:
      - name: web
        image: registry.example.com/shop/web:1.4.2
        ports: [{name: http, containerPort: 8080}]
        env: [{name: SETTING_00, value: the value of setting number 00}]
        resources: {requests: {cpu: 100m, memory: 128Mi}, limits: {memory: 256Mi}}
        readinessProbe: {httpGet: {path: /ready, port: http}, periodSeconds: 5}
        volumeMounts: [{name: cache, mountPath: /var/cache/web}]
      volumes: [{name: cache, emptyDir: {}}]
`

	settings = `
metadata: {name: web-settings, namespace: shop, labels: {app: web}}
data: {color: blue, level: info, listen: ":8080", workers: "4"}
`

	serviceOfPods = `
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  selector: {app: web}
  clusterIP: 10.96.0.17
  clusterIPs: [10.96.0.17]
  ports:
  - {name: http, port: 80, targetPort: http}
  - {name: metrics, port: 9090}
`

	beatingNode = `
metadata:
  name: node-1
  labels: {kubernetes.io/hostname: node-1, kubernetes.io/os: linux, kubernetes.io/arch: amd64, topology.kubernetes.io/zone: a}
spec: {podCIDR: 10.244.1.0/24, podCIDRs: [10.244.1.0/24]}
status:
  capacity: {cpu: "4", memory: 8Gi, pods: "110"}
  allocatable: {cpu: "4", memory: 8Gi, pods: "110"}
  addresses: [{type: InternalIP, address: 10.0.0.1}, {type: Hostname, address: node-1}]
  conditions:
  - {type: Ready, status: "True", reason: KubeletReady}
  - {type: MemoryPressure, status: "False"}
  - {type: DiskPressure, status: "False"}
`

	beat = `
metadata: {name: node-1, namespace: kube-node-lease}
spec: {holderIdentity: node-1, leaseDurationSeconds: 40, renewTime: "2026-01-02T03:04:05.000000Z"}
`
)

// BenchmarkValidate measures validation and warnings of a valid object's create and update. The update changes a
// label.
func BenchmarkValidate(b *testing.B) {
	for _, c := range []struct{ kind, object string }{
		{"Pod", podOfTwoKilobytes}, {"apps/v1 Deployment", deploymentOfPods}, {"ConfigMap", settings},
		{"v1 Service", serviceOfPods}, {"Node", beatingNode}, {"Lease", beat},
	} {
		r := kindtest.Of(b, c.kind)
		obj := kindtest.Decode(b, r, c.object)
		obj.SetUID("0d3a6a5e-5d6c-4f0c-9d4a-0a8d9f1f2c12")
		obj.SetResourceVersion("7")
		obj.SetCreationTimestamp(metav1.NewTime(time.Unix(1767323045, 0)))
		obj.SetManagedFields([]metav1.ManagedFieldsEntry{{
			Manager: "kubectl", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: r.GroupVersion().String(),
			FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{}}`)},
		}})
		changed := obj.DeepCopyObject().(api.Object)
		changed.SetLabels(map[string]string{"app": "shop"})

		b.Run(r.Kind+"/create", func(b *testing.B) {
			benchmarkChecks(b, func() field.ErrorList { return validateWrite(r, obj, nil) })
		})
		b.Run(r.Kind+"/update", func(b *testing.B) {
			benchmarkChecks(b, func() field.ErrorList { return validateWrite(r, changed, obj) })
		})
		if r.Status != nil && r.Status.Validate != nil {
			b.Run(r.Kind+"/status", func(b *testing.B) {
				benchmarkChecks(b, func() field.ErrorList { return r.Status.Validate(changed, obj) })
			})
		}
		if r.Warnings != nil {
			b.Run(r.Kind+"/warnings", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					r.Warnings(obj, nil)
				}
			})
		}
	}
}

func benchmarkChecks(b *testing.B, check func() field.ErrorList) {
	b.ReportAllocs()
	for b.Loop() {
		if errs := check(); len(errs) > 0 {
			b.Fatal(errs)
		}
	}
}

// validateWrite makes the checks that the server makes for a write. old is nil for a create.
func validateWrite(r *api.Resource, obj, old api.Object) field.ErrorList {
	errs := r.ValidateMetadata(obj, old)
	if r.Validate != nil {
		errs = append(errs, r.Validate(obj)...)
	}
	if old == nil && r.ValidateCreate != nil {
		errs = append(errs, r.ValidateCreate(obj)...)
	}
	if old != nil && r.ValidateUpdate != nil {
		errs = append(errs, r.ValidateUpdate(obj, old)...)
	}
	return errs
}
