package podspec_test

import (
	"testing"

	"github.com/coxswain-dev/coxswain/api/kindtest"
)

// barePod is a minimal pod. Each test inserts an error at a certain place.
const barePod = `
metadata: {name: web, namespace: default}
spec:
  serviceAccountName: default
  containers:
  - name: main
    image: nginx
  volumes:
  - name: data
    emptyDir: {}
  - name: block
    persistentVolumeClaim: {claimName: c}
`

// inSpec and the functions below add YAML to the pod's spec or to its container, or replace the source of its first
// volume.
func inSpec(yaml string) []string      { return []string{"spec:\n", "spec:\n  " + yaml + "\n"} }
func inContainer(yaml string) []string { return []string{"image: nginx", "image: nginx\n    " + yaml} }
func asVolume(yaml string) []string    { return []string{"emptyDir: {}", yaml} }

func TestPod_ContainerErrorsMatchKubernetes(t *testing.T) {
	t.Parallel()
	const c = "spec.containers[0]."
	kindtest.Create(t, "Pod", barePod, []kindtest.Case{
		{"ports of one name", inContainer("ports: [{name: a, containerPort: 1}, {name: a, containerPort: 2}]"),
			[]string{"Duplicate " + c + "ports[1].name"}},
		{"ports of one host port", inContainer("ports: [{containerPort: 1, hostPort: 5}, {containerPort: 2, " +
			"hostPort: 5}]"), []string{"Duplicate " + c + "ports[1].hostPort"}},
		{"config map key", inContainer("env: [{name: A, valueFrom: {configMapKeyRef: {name: a, key: a b}}}]"),
			[]string{"Invalid " + c + "env[0].valueFrom.configMapKeyRef.key"}},
		{"secret without key", inContainer("env: [{name: A, valueFrom: {secretKeyRef: {name: A}}}]"),
			[]string{"Invalid " + c + "env[0].valueFrom.secretKeyRef.name", "Required " + c +
				"env[0].valueFrom.secretKeyRef.key"}},
		{"no source", inContainer("env: [{name: A, valueFrom: {}}]"), []string{"Invalid " + c + "env[0].valueFrom"}},
		{"file field as a variable",
			inContainer("env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.labels}}}]"),
			[]string{"NotSupported " + c + "env[0].valueFrom.fieldRef.fieldPath"}},
		{"subscript", inContainer(`env: [{name: A, valueFrom: {fieldRef: {fieldPath: "spec.nodeName['a']"}}}]`),
			[]string{"Invalid " + c + "env[0].valueFrom.fieldRef.fieldPath"}},
		{"divisor", inContainer("env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1k}}}]"),
			[]string{"Invalid " + c + "env[0].valueFrom.resourceFieldRef.divisor"}},
		{"resource shown", inContainer("env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.gpu}}}]"),
			[]string{"NotSupported " + c + "env[0].valueFrom.resourceFieldRef.resource"}},
		{"envFrom nothing", inContainer("envFrom: [{}]"), []string{"Invalid " + c + "envFrom"}},
		{"envFrom a bad name", inContainer("envFrom: [{secretRef: {name: A_}}]"),
			[]string{"Invalid " + c + "envFrom[0].secretRef.name"}},
		{"one mount path", inContainer("volumeMounts: [{name: data, mountPath: /a}, {name: block, mountPath: /a}]"),
			[]string{"Invalid " + c + "volumeMounts[1].mountPath"}},
		{"mount and device", inContainer("volumeMounts: [{name: block, mountPath: /a}]\n    volumeDevices: " +
			"[{name: block, devicePath: /b}]"),
			[]string{"Invalid " + c + "volumeMounts[0].name", "Invalid " + c + "volumeDevices[0].name"}},
		{"device that is none", inContainer("volumeDevices: [{name: data, devicePath: /a/../b}]"),
			[]string{"Invalid " + c + "volumeDevices[0].name", "Invalid " + c + "volumeDevices[0].devicePath"}},
		{"propagation", inContainer("volumeMounts: [{name: data, mountPath: /a, mountPropagation: Bidirectional}]"),
			[]string{"Forbidden " + c + "volumeMounts.mountPropagation"}},
		{"recursively read-only", inContainer("volumeMounts: [{name: data, mountPath: /a, recursiveReadOnly: " +
			"Enabled, mountPropagation: HostToContainer}]"),
			[]string{"Forbidden " + c + "volumeMounts.recursiveReadOnly", "Forbidden " + c +
				"volumeMounts.recursiveReadOnly"}},
		{"huge pages", inContainer("resources: {limits: {hugepages-2Mi: 3Mi}}"),
			[]string{"Invalid " + c + "resources.limits[hugepages-2Mi]", "Invalid " + c +
				"resources.requests[hugepages-2Mi]", "Forbidden " + c + "resources"}},
		{"huge pages of no size", inContainer("resources: {limits: {hugepages-1000E: 1, cpu: 1}}"),
			[]string{"Invalid " + c + "resources.limits[hugepages-1000E]", "Invalid " + c +
				"resources.requests[hugepages-1000E]"}},
		{"huge pages requested", inContainer("resources: {requests: {hugepages-2Mi: 2Mi, cpu: 1}}"),
			[]string{"Required " + c + "resources.limits"}},
		{"claim", inContainer("resources: {claims: [{name: a}]}"), []string{"NotFound " + c + "resources.claims[0]"}},
		{"resize policy", inContainer("resizePolicy: [{resourceName: gpu, restartPolicy: NotRequired}, " +
			"{resourceName: cpu, restartPolicy: NotRequired}, {resourceName: cpu, restartPolicy: NotRequired}]"),
			[]string{"NotSupported " + c + "resizePolicy", "Duplicate " + c + "resizePolicy[2]"}},
		{"header", inContainer("livenessProbe: {httpGet: {port: 1, httpHeaders: [{name: 'a b'}]}}"),
			[]string{"Invalid " + c + "livenessProbe.httpGet.httpHeaders"}},
		{"probe times", inContainer(
			"readinessProbe: {exec: {command: []}, periodSeconds: -1, terminationGracePeriodSeconds: 0}"),
			[]string{"Required " + c + "readinessProbe.exec.command", "Invalid " + c + "readinessProbe.periodSeconds",
				"Invalid " + c + "readinessProbe.terminationGracePeriodSeconds", "Invalid " + c +
					"readinessProbe.terminationGracePeriodSeconds"}},
		{"long sleep", inContainer("lifecycle: {preStop: {sleep: {seconds: 31}}}"),
			[]string{"Invalid " + c + "lifecycle.preStop.sleep"}},
		{"escalation", inContainer("securityContext: {privileged: true, allowPrivilegeEscalation: false, " +
			"capabilities: {add: [CAP_SYS_ADMIN]}}"),
			[]string{"Invalid " + c + "securityContext", "Invalid " + c + "securityContext"}},
		{"users", inContainer("securityContext: {runAsUser: -1, runAsGroup: -1}"),
			[]string{"Invalid " + c + "securityContext.runAsUser", "Invalid " + c + "securityContext.runAsGroup"}},
		{"unmasked", inContainer("securityContext: {procMount: Unmasked}"),
			[]string{"Invalid " + c + "securityContext.procMount"}},
		{"seccomp", inContainer("securityContext: {seccompProfile: {type: Localhost}}"),
			[]string{"Required " + c + "securityContext.seccompProfile.localhostProfile"}},
		{"app armor", inContainer("securityContext: {appArmorProfile: {type: Localhost, localhostProfile: ' a'}}"),
			[]string{"Invalid " + c + "securityContext.appArmorProfile.localhostProfile"}},
		{"windows user", inContainer(`securityContext: {windowsOptions: {runAsUserName: 'a\b\c'}}`),
			[]string{"Invalid " + c + "securityContext.windowsOptions.runAsUserName"}},
	})
}

func TestPod_VolumeErrorsMatchKubernetes(t *testing.T) {
	t.Parallel()
	const v = "spec.volumes[0]."
	kindtest.Create(t, "Pod", barePod, []kindtest.Case{
		{"same name", []string{"name: block", "name: data"}, []string{"Duplicate spec.volumes[1].name"}},
		{"size", asVolume("emptyDir: {sizeLimit: -1}"), []string{"Forbidden " + v + "emptyDir.sizeLimit"}},
		{"host path", asVolume("hostPath: {path: /a/../b, type: Odd}"),
			[]string{"Invalid " + v + "hostPath.path", "NotSupported " + v + "hostPath.type"}},
		{"git repository", asVolume("gitRepo: {directory: /a}"), []string{"Required " + v + "gitRepo.repository",
			"Invalid " + v + "gitRepo.directory"}},
		{"disk", asVolume("gcePersistentDisk: {pdName: '', partition: 256}"),
			[]string{"Required " + v + "persistentDisk.pdName", "Invalid " + v + "persistentDisk.partition"}},
		{"nfs", asVolume("nfs: {server: '', path: a}"), []string{"Required " + v + "nfs.server", "Invalid " +
			v + "nfs.path"}},
		{"iscsi", asVolume("iscsi: {targetPortal: '', iqn: iqn.bad, lun: 256, chapAuthSession: true}"),
			[]string{"Required " + v + "iscsi.targetPortal", "Invalid " + v + "iscsi.iqn", "Invalid " + v + "iscsi.lun",
				"Required " + v + "iscsi.secretRef"}},
		{"fibre channel", asVolume("fc: {targetWWNs: [a], wwids: [b]}"),
			[]string{"Invalid " + v + "fc.targetWWNs", "Required " + v + "fc.lun"}},
		{"flex", asVolume("flexVolume: {driver: '', options: {kubernetes.io/a: b}}"),
			[]string{"Required " + v + "flexVolume.driver", "Invalid " + v + "flexVolume.options[kubernetes.io/a]"}},
		{"ceph", asVolume("cephfs: {monitors: []}"), []string{"Required " + v + "cephfs.monitors"}},
		{"azure", asVolume("azureDisk: {diskName: d, diskURI: x, kind: Managed}"),
			[]string{"NotSupported " + v + "azureDisk.diskURI"}},
		{"quobyte", asVolume("quobyte: {registry: a, volume: ''}"), []string{"Invalid " + v + "quobyte.registry",
			"Required " + v + "quobyte.volume"}},
		{"csi", asVolume("csi: {driver: a_b, nodePublishSecretRef: {name: ''}}"),
			[]string{"Invalid " + v + "csi.driver", "Required " + v + "csi.nodePublishSecretRef.name"}},
		{"items", asVolume("secret: {secretName: a, items: [{key: '', path: ../a, mode: 4096}]}"),
			[]string{"Required " + v + "secret.items[0].key", "Invalid " + v + "secret.items[0].path", "Invalid " + v +
				"secret.items[0].mode"}},
		{"downward", asVolume("downwardAPI: {items: [{path: a}, {path: ..b, fieldRef: {fieldPath: metadata.name}}]}"),
			[]string{"Required " + v + "downwardAPI", "Invalid " + v + "downwardAPI.path"}},
		{"two projections", asVolume("projected: {sources: [{secret: {name: a}, configMap: {name: ''}}]}"),
			[]string{"Required " + v + "projected.sources[0].configMap.name", "Forbidden " + v +
				"projected.sources[0]"}},
		{"one file twice", asVolume("projected: {sources: [{secret: {name: a, items: [{key: a, path: x}]}}, " +
			"{configMap: {name: b, items: [{key: a, path: x}]}}]}"), []string{"Invalid " + v + "projected"}},
		{"short-lived token",
			asVolume("projected: {sources: [{serviceAccountToken: {path: a, expirationSeconds: 1}}]}"),
			[]string{"Invalid " + v + "projected.sources[0].serviceAccountToken.expirationSeconds"}},
		{"nobody's token", []string{"emptyDir: {}", "projected: {sources: [{serviceAccountToken: {path: a}}]}",
			"serviceAccountName: default", ""}, []string{"Forbidden " + v +
			"projected.sources[0].serviceAccountToken"}},
		{"trust bundle", asVolume("projected: {sources: [{clusterTrustBundle: {name: a, signerName: b, path: c}}]}"),
			[]string{"Invalid " + v + "projected.sources[0].clusterTrustBundle"}},
		{"image", asVolume("image: {reference: '', pullPolicy: Odd}"),
			[]string{"NotSupported " + v + "image.pullPolicy", "Required " + v + "image.reference"}},
		{"ephemeral", asVolume(
			"ephemeral: {volumeClaimTemplate: {metadata: {name: a}, spec: {accessModes: [ReadWriteOnce]}}}"),
			[]string{"Forbidden " + v + "ephemeral.volumeClaimTemplate.metadata.name", "Required " + v +
				"ephemeral.volumeClaimTemplate.spec.resources[storage]"}},
		{"three types", asVolume("emptyDir: {}\n    hostPath: {path: /a}\n    nfs: {server: a, path: /b}"),
			[]string{"Forbidden " + v + "hostPath", "Forbidden " + v + "nfs"}},
	})
}

func TestPod_SpecErrorsMatchKubernetes(t *testing.T) {
	t.Parallel()
	const affinity = "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]."
	kindtest.Create(t, "Pod", barePod, []kindtest.Case{
		{"sysctls", inSpec(
			"hostNetwork: true\n  securityContext: {sysctls: [{name: 'A', value: b}, {name: net.ipv4.x, value: b}]}"),
			[]string{"Invalid spec.securityContext.sysctls[0].name", "Invalid spec.securityContext.sysctls[1].name"}},
		{"users of its own", inSpec("hostUsers: false\n  hostNetwork: true\n  hostPID: true"),
			[]string{"Forbidden spec.hostNetwork", "Forbidden spec.HostPID"}},
		{"shared processes", inSpec("shareProcessNamespace: true\n  hostPID: true"),
			[]string{"Invalid spec.securityContext.shareProcessNamespace"}},
		{"windows", inSpec("os: {name: windows}\n  hostPID: true\n  securityContext: {runAsUser: 1}"),
			[]string{"Forbidden spec.hostPID", "Forbidden spec.securityContext.runAsUser"}},
		{"linux", inSpec("os: {name: linux}\n  securityContext: {windowsOptions: {}}"),
			[]string{"Forbidden spec.securityContext.windowsOptions"}},
		{"another system", inSpec("os: {name: plan9}"), []string{"NotSupported spec.os"}},
		{"host process", inSpec("securityContext: {windowsOptions: {hostProcess: true}}"),
			[]string{"Invalid spec.hostNetwork"}},
		{"dns", inSpec("dnsConfig: {nameservers: [a], searches: [a_b, A], options: [{}]}"),
			[]string{"Invalid spec.dnsConfig.nameservers[0]", "Invalid spec.dnsConfig.searches[1]",
				"Required spec.dnsConfig.options[0]"}},
		{"host aliases", inSpec("hostAliases: [{ip: a, hostnames: [A]}]"),
			[]string{"Invalid spec.hostAliases[0].ip", "Invalid spec.hostAliases[0].hostnames[0]"}},
		{"gates", inSpec("readinessGates: [{conditionType: 'a b'}]\n  schedulingGates: [{name: a}, {name: a}]"),
			[]string{"Invalid spec.readinessGates[0].conditionType", "Duplicate spec.schedulingGates[1]"}},
		{"bound and gated", inSpec("nodeName: n\n  schedulingGates: [{name: a}]"), []string{"Forbidden spec.nodeName"}},
		{"overhead", inSpec("overhead: {cpu: -1, gpu: 1}"), []string{"Invalid spec.overhead.limits[cpu]",
			"Invalid spec.overhead.limits[gpu]", "Invalid spec.overhead.limits[gpu]"}},
		{"resources of the pod", inSpec("resources: {requests: {cpu: 2, ephemeral-storage: 1}, limits: {cpu: 1}}"),
			[]string{"Invalid spec.resources.requests", "NotSupported spec.resources.requests[ephemeral-storage]"}},
		{"claims", inSpec("resourceClaims: [{name: a}, {name: a, resourceClaimName: b, resourceClaimTemplateName: c}]"),
			[]string{"Invalid spec.resourceClaims[0]", "Duplicate spec.resourceClaims[1].name",
				"Invalid spec.resourceClaims[1]"}},
		{"affinity term", inSpec("affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: " +
			"[{namespaces: [A], matchLabelKeys: [a], topologyKey: ''}]}}"),
			[]string{"Invalid " + affinity + "namespace", "Forbidden " + affinity + "matchLabelKeys", "Required " +
				affinity + "topologyKey",
				"Invalid " + affinity + "topologyKey", "Invalid " + affinity + "topologyKey"}},
		{"affinity weight", inSpec("affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: " +
			"[{weight: 0, preference: {matchFields: [{key: a, operator: In, values: [b]}]}}]}}"),
			[]string{"Invalid spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight",
				"Invalid spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchFields[0].key"}},
		{"spread", inSpec("topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: " +
			"ScheduleAnyway, minDomains: 0, matchLabelKeys: [b], nodeTaintsPolicy: Odd}]"),
			[]string{"Invalid spec.topologySpreadConstraints[0].minDomains",
				"Invalid spec.topologySpreadConstraints[0].minDomains",
				"NotSupported spec.topologySpreadConstraints[0].nodeTaintsPolicy",
				"Forbidden spec.topologySpreadConstraints[0].matchLabelKeys"}},
		{"tolerations", inSpec(
			"tolerations: [{operator: Equal}, {key: a, operator: Exists, value: b, tolerationSeconds: 1}]"),
			[]string{"Invalid spec.tolerations[0].operator", "Invalid spec.tolerations[1].effect",
				"Invalid spec.tolerations[1].operator"}},
		{"ephemeral containers", inSpec("ephemeralContainers: [{name: main, image: a, ports: [{containerPort: " +
			"1}], targetContainerName: x}]"),
			[]string{"Duplicate spec.ephemeralContainers[0].name",
				"NotFound spec.ephemeralContainers[0].targetContainerName",
				"Forbidden spec.ephemeralContainers[0].ports", "Forbidden spec.ephemeralContainers"}},
		{"annotations", []string{"namespace: default", "namespace: default, annotations: " +
			"{controller.kubernetes.io/pod-deletion-cost: '+1', kubernetes.io/config.mirror: a}"},
			[]string{"Invalid metadata.annotations[controller.kubernetes.io/pod-deletion-cost]",
				"Invalid metadata.annotations[kubernetes.io/config.mirror]"}},
	})
}

func TestPod_TemplateMayOmitFieldsThatAPodRequires(t *testing.T) {
	t.Parallel()
	const sound = `
metadata: {name: web, namespace: default}
spec:
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec:
      hostNetwork: true
      containers: [{name: main, image: ' nginx', ports: [{containerPort: 80}]}]
      volumes: [{name: i, image: {reference: '', pullPolicy: Always}}]
`
	kindtest.Create(t, "Deployment", sound, []kindtest.Case{
		{"another port of the node", []string{"containerPort: 80", "containerPort: 80, hostPort: 81"},
			[]string{"Invalid spec.template.spec.containers[0].ports[0].hostPort"}},
		{"annotation", []string{"labels: {a: b}}",
			"labels: {a: b}, annotations: {controller.kubernetes.io/pod-deletion-cost: x}}"},
			[]string{"Invalid spec.template.annotations[controller.kubernetes.io/pod-deletion-cost]"}},
	})
}

func TestPod_CertificateProjectionRejects(t *testing.T) {
	t.Parallel()
	const pod = `
metadata: {name: p, namespace: n}
spec:
  containers: [{name: c, image: i}]
  volumes: [{name: v, projected: {sources: [{podCertificate: {signerName: example.com/signer, keyType: ED25519, credentialBundlePath: c.pem}}]}}]
`
	const path = "spec.volumes[0].projected.sources[0].podCertificate"
	kindtest.Create(t, "Pod", pod, []kindtest.Case{
		{"signer", []string{"example.com/signer", "example"}, []string{"Invalid " + path + ".signerName"}},
		{"key", []string{"ED25519", "RSA2048"}, []string{"NotSupported " + path + ".keyType"}},
		{"no files", []string{", credentialBundlePath: c.pem", ""}, []string{"Required " + path}},
		{"one file twice", []string{"credentialBundlePath: c.pem", "keyPath: c.pem, certificateChainPath: c.pem"},
			[]string{"Invalid " + "spec.volumes[0].projected"}},
		{"file", []string{"c.pem", "/c.pem"}, []string{"Invalid " + path + ".credentialBundlePath"}},
		{"short", []string{"ED25519", "ED25519, maxExpirationSeconds: 60"},
			[]string{"Invalid " + path + ".maxExpirationSeconds"}},
		{"notes", []string{"ED25519", "ED25519, userAnnotations: {a: b}"},
			[]string{"Invalid " + path + ".userAnnotations"}},
	})
}
