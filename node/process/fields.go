package process

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/process/sandbox"
)

// A pod that asks for something which this runtime does not do is refused: a security setting that is ignored is worse
// than a pod that does not run. A pod asks by the fields of its spec that are set. Each is honoured here, or is the
// business of other parts of the cluster; all others refuse the pod, also fields that Kubernetes will have later.

// fieldSet has fields by the names of their type and of their own in JSON: "Container.image". An ephemeral container
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

// elsewhere are the fields that others act on: the scheduler, controllers, admission, the agent where it admits a pod.
// No image is pulled, which the Event Pulled of each container reports.
var elsewhere = fields(map[string]string{
	"PodSpec": `nodeSelector serviceAccount automountServiceAccountToken nodeName imagePullSecrets affinity
		schedulerName tolerations priorityClassName priority readinessGates preemptionPolicy overhead
		topologySpreadConstraints os schedulingGates schedulingGroup evictionResponders`,
	"Container":             "image imagePullPolicy",
	"ContainerPort":         "name",
	"EphemeralVolumeSource": "volumeClaimTemplate",
	"ObjectFieldSelector":   "apiVersion",
})

// honoured are the fields that the runtime, or the agent for it, acts on. A field that is a structure counts
// together with its own fields.
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

// refusedValues are the values that refuse a pod although their field is honoured: a function returns why, or "".
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

// otherThan refuses all values of a string but some.
func otherThan[T ~string](why string, taken ...T) func(any) string {
	return func(value any) string {
		if slices.Contains(taken, value.(T)) {
			return ""
		}
		return why
	}
}

// allCapabilities stands for every capability.
const allCapabilities = "ALL"

func capabilityName(c corev1.Capability) string {
	return strings.TrimPrefix(strings.ToUpper(string(c)), "CAP_")
}

func unknownCapability(value any) string {
	for _, one := range value.([]corev1.Capability) {
		name := capabilityName(one)
		if _, known := sandbox.CapabilityNumbers[name]; !known && name != allCapabilities {
			return fmt.Sprintf("unknown capability %q", one)
		}
	}
	return ""
}

// maxRefused is how many fields a refusal names.
const maxRefused = 5

// unsupported is why a pod cannot run as its spec has it; "" where it can.
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

// unsupportedContainer is unsupported of a container that has come to a pod later.
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

// find appends the fields below a value that are set and refused.
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
	at := path + "." + jsonName(&field)
	if !honoured[key] {
		*refused = append(*refused, at)
		return
	}
	if why := refusedValues[key]; why != nil {
		if text := why(v.Interface()); text != "" {
			*refused = append(*refused, at+": "+text)
			return
		}
	}
	find(v, at, refused)
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

// isSet reports that a field asks for something: a structure where one of its fields does.
func isSet(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Pointer:
		return !v.IsNil() && (v.Elem().Kind() != reflect.Struct || isSet(v.Elem()))
	case reflect.Slice, reflect.Map:
		return v.Len() > 0
	}
	return !v.IsZero()
}
