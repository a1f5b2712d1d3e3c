package process

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/process/sandbox"
)

// A pod that asks for anything that this runtime does not do is rejected: ignoring a security setting is worse than not
// running the pod. A pod asks for a feature by setting a field of its spec. Each field is honoured here, or handled by
// another part of the cluster. A pod that sets any other field is rejected, including fields of later Kubernetes
// versions.

// fieldSet is a set of fields by the name of their type and their JSON name: "Container.image". An ephemeral container
// counts as a Container.
type fieldSet map[string]bool

func fields(byType map[string]string) fieldSet {
	set := fieldSet{}
	for owner, names := range byType {
		for name := range strings.FieldsSeq(names) {
			set[owner+"."+name] = true
		}
	}
	return set
}

// elsewhere are the fields that other components handle: the scheduler, controllers, admission, and the agent's
// admission of pods. No image is pulled, which each container's Pulled Event states.
var elsewhere = fields(map[string]string{
	"PodSpec": `nodeSelector serviceAccount automountServiceAccountToken nodeName imagePullSecrets affinity
		schedulerName tolerations priorityClassName priority readinessGates preemptionPolicy overhead
		topologySpreadConstraints os schedulingGates schedulingGroup evictionResponders`,
	"Container":             "image imagePullPolicy",
	"ContainerPort":         "name",
	"EphemeralVolumeSource": "volumeClaimTemplate",
	"ObjectFieldSelector":   "apiVersion",
})

// honoured are the fields that the runtime, or the agent on its behalf, handles. The fields of a structure are listed
// besides the structure itself.
var honoured = fields(map[string]string{
	"PodSpec": `volumes initContainers containers ephemeralContainers restartPolicy terminationGracePeriodSeconds
		activeDeadlineSeconds dnsPolicy serviceAccountName hostNetwork hostPID hostIPC shareProcessNamespace
		securityContext hostname subdomain hostAliases dnsConfig enableServiceLinks setHostnameAsFQDN hostUsers
		hostnameOverride resources`,
	"PodSecurityContext": `runAsUser runAsGroup runAsNonRoot supplementalGroups supplementalGroupsPolicy fsGroup
		sysctls fsGroupChangePolicy seccompProfile appArmorProfile`,
	"Sysctl":             "name value",
	"HostAlias":          "ip hostnames",
	"PodDNSConfig":       "nameservers searches options",
	"PodDNSConfigOption": "name value",
	"SeccompProfile":     "type",
	"AppArmorProfile":    "type",

	"Container": `name command args workingDir ports envFrom env resources resizePolicy restartPolicy
		restartPolicyRules volumeMounts livenessProbe readinessProbe startupProbe lifecycle terminationMessagePath
		terminationMessagePolicy securityContext stdin stdinOnce tty`,
	"EphemeralContainer":              "targetContainerName",
	"ContainerPort":                   "hostPort containerPort protocol hostIP",
	"EnvFromSource":                   "prefix configMapRef secretRef",
	"ConfigMapEnvSource":              "optional",
	"SecretEnvSource":                 "optional",
	"LocalObjectReference":            "name",
	"EnvVar":                          "name value valueFrom",
	"EnvVarSource":                    "fieldRef resourceFieldRef configMapKeyRef secretKeyRef",
	"ObjectFieldSelector":             "fieldPath",
	"ResourceFieldSelector":           "containerName resource divisor",
	"ConfigMapKeySelector":            "key optional",
	"SecretKeySelector":               "key optional",
	"ResourceRequirements":            "limits requests",
	"ContainerResizePolicy":           "resourceName restartPolicy",
	"ContainerRestartRule":            "action exitCodes",
	"ContainerRestartRuleOnExitCodes": "operator values",
	"VolumeMount": `name readOnly recursiveReadOnly mountPath subPath mountPropagation subPathExpr
		bindMountOptions`,
	"Probe": `initialDelaySeconds timeoutSeconds periodSeconds successThreshold failureThreshold
		terminationGracePeriodSeconds`,
	"ProbeHandler":     "exec httpGet tcpSocket grpc",
	"Lifecycle":        "postStart preStop stopSignal",
	"LifecycleHandler": "exec httpGet sleep",
	"ExecAction":       "command",
	"HTTPGetAction":    "path port host scheme httpHeaders protocol",
	"HTTPHeader":       "name value",
	"TCPSocketAction":  "port host",
	"GRPCAction":       "port service mode",
	"SleepAction":      "seconds",
	"SecurityContext": `capabilities privileged runAsUser runAsGroup runAsNonRoot readOnlyRootFilesystem
		allowPrivilegeEscalation procMount seccompProfile appArmorProfile`,
	"Capabilities": "add drop",

	"Volume":                            "name",
	"VolumeSource":                      "hostPath emptyDir secret persistentVolumeClaim downwardAPI configMap projected ephemeral",
	"HostPathVolumeSource":              "path type",
	"EmptyDirVolumeSource":              "medium sizeLimit mode",
	"SecretVolumeSource":                "secretName items defaultMode optional",
	"ConfigMapVolumeSource":             "items defaultMode optional",
	"DownwardAPIVolumeSource":           "items defaultMode",
	"DownwardAPIVolumeFile":             "path fieldRef resourceFieldRef mode",
	"KeyToPath":                         "key path mode",
	"ProjectedVolumeSource":             "sources defaultMode",
	"VolumeProjection":                  "secret downwardAPI configMap serviceAccountToken",
	"SecretProjection":                  "items optional",
	"ConfigMapProjection":               "items optional",
	"DownwardAPIProjection":             "items",
	"ServiceAccountTokenProjection":     "audience expirationSeconds path",
	"PersistentVolumeClaimVolumeSource": "claimName readOnly",
})

// refusedValues has checks for values that are rejected although their field is honoured. A check returns the reason,
// or "".
var refusedValues = map[string]func(value any) string{
	"PodSpec.hostUsers": func(value any) string {
		if hostUsers := value.(*bool); !*hostUsers {
			return "the process runtime makes no user namespaces: root would be the machine's"
		}
		return ""
	},
	"SeccompProfile.type": otherThan("the process runtime has no profiles of files",
		corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined),
	"AppArmorProfile.type": otherThan("Cannot enforce AppArmor: the process runtime does not use it",
		corev1.AppArmorProfileTypeUnconfined),
	"SecurityContext.procMount": func(value any) string {
		if *value.(*corev1.ProcMountType) != corev1.DefaultProcMount {
			return "the process runtime always masks /proc"
		}
		return ""
	},
	"VolumeMount.mountPropagation": func(value any) string {
		if *value.(*corev1.MountPropagationMode) != corev1.MountPropagationNone {
			return "the process runtime propagates no mounts"
		}
		return ""
	},
	"EmptyDirVolumeSource.medium": otherThan("the process runtime has no huge pages",
		corev1.StorageMediumDefault, corev1.StorageMediumMemory),
	"ContainerRestartRule.action": otherThan("the process runtime restarts containers one by one",
		corev1.ContainerRestartRuleActionRestart),
	"Capabilities.add":  unknownCapability,
	"Capabilities.drop": unknownCapability,
}

// otherThan returns a check that rejects all values of a string except the allowed ones.
func otherThan[T ~string](reason string, allowed ...T) func(any) string {
	return func(value any) string {
		if slices.Contains(allowed, value.(T)) {
			return ""
		}
		return reason
	}
}

// allCapabilities is the name that stands for every capability.
const allCapabilities = "ALL"

func capabilityName(c corev1.Capability) string {
	return strings.TrimPrefix(strings.ToUpper(string(c)), "CAP_")
}

func unknownCapability(value any) string {
	for _, one := range value.([]corev1.Capability) {
		name := capabilityName(one)
		if _, ok := sandbox.CapabilityNumbers[name]; !ok && name != allCapabilities {
			return fmt.Sprintf("unknown capability %q", one)
		}
	}
	return ""
}

// maxRefused limits the number of fields that a rejection lists.
const maxRefused = 5

// unsupported returns the reason why a pod cannot run as its spec asks; "" if it can.
func unsupported(pod *corev1.Pod) string {
	var refused []string
	find(reflect.ValueOf(pod.Spec), "spec", &refused)
	for key, profile := range pod.Annotations {
		if strings.HasPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) &&
			profile != corev1.DeprecatedAppArmorBetaProfileNameUnconfined {
			refused = append(refused, fmt.Sprintf("metadata.annotations[%s]: Cannot enforce AppArmor: the process "+
				"runtime does not use it", key))
		}
	}
	return join(refused)
}

// unsupportedContainer is like unsupported, for a container that was added to a pod later.
func unsupportedContainer(c *corev1.Container) string {
	var refused []string
	find(reflect.ValueOf(*c), "container "+c.Name, &refused)
	return join(refused)
}

func join(refused []string) string {
	if len(refused) == 0 {
		return ""
	}
	slices.Sort(refused)
	return "Pod requires node features that are not available: " +
		strings.Join(refused[:min(len(refused), maxRefused)], "; ")
}

var corePackage = reflect.TypeFor[corev1.Pod]().PkgPath()

// find appends the paths of rejected fields that are set below a value.
func find(v reflect.Value, path string, refused *[]string) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			find(v.Elem(), path, refused)
		}
	case reflect.Slice:
		for i := 0; i < v.Len() && len(*refused) < maxRefused; i++ {
			find(v.Index(i), fmt.Sprintf("%s[%d]", path, i), refused)
		}
	case reflect.Struct:
		if v.Type().PkgPath() != corePackage {
			return
		}
		for i := range v.NumField() {
			findField(v.Type(), i, v.Field(i), path, refused)
		}
	}
}

func findField(owner reflect.Type, i int, v reflect.Value, path string, refused *[]string) {
	field := owner.Field(i)
	if field.Anonymous {
		find(v, path, refused)
		return
	}
	key := fieldKey(owner, &field)
	if !isSet(v) || elsewhere[key] {
		return
	}
	fieldPath := path + "." + jsonName(&field)
	if !honoured[key] {
		*refused = append(*refused, fieldPath)
		return
	}
	if check := refusedValues[key]; check != nil {
		if reason := check(v.Interface()); reason != "" {
			*refused = append(*refused, fieldPath+": "+reason)
			return
		}
	}
	find(v, fieldPath, refused)
}

func fieldKey(owner reflect.Type, field *reflect.StructField) string {
	name := owner.Name()
	if owner == reflect.TypeFor[corev1.EphemeralContainerCommon]() {
		name = "Container"
	}
	return name + "." + jsonName(field)
}

func jsonName(field *reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return name
}

// isSet reports whether a field asks for anything. A structure does if one of its fields does.
func isSet(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Pointer:
		return !v.IsNil() && (v.Elem().Kind() != reflect.Struct || isSet(v.Elem()))
	case reflect.Slice, reflect.Map:
		return v.Len() > 0
	}
	return !v.IsZero()
}
