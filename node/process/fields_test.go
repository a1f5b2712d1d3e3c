package process

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// shownBy names the test that covers an honoured field, or all fields of a type that are not listed by themselves.
var shownBy = map[string]string{
	"PodSpec.volumes":                       "TestVolumes_FollowTheirSources",
	"PodSpec.initContainers":                "TestPod_RunsInitContainersThenSidecarsBesideContainers",
	"PodSpec.containers":                    "TestPrograms_FollowTheirSpec",
	"PodSpec.ephemeralContainers":           "TestPod_RunsEphemeralContainersOnce",
	"PodSpec.restartPolicy":                 "TestPod_RestartPolicyDecidesHowItEnds",
	"PodSpec.terminationGracePeriodSeconds": "TestContainers_EndBySignalWithinTheirGracePeriod",
	"PodSpec.activeDeadlineSeconds":         "TestPod_EndsAtItsDeadline",
	"PodSpec.dnsPolicy":                     "TestResolvConf_FollowsThePolicy",
	"PodSpec.serviceAccountName":            "TestVolumes_RenewTokensBeforeTheyExpire",
	"PodSpec.hostNetwork":                   "TestPrograms_FollowTheirSpec",
	"PodSpec.hostPID":                       "TestPrograms_FollowTheirSpec",
	"PodSpec.hostIPC":                       "TestPrograms_FollowTheirSpec",
	"PodSpec.shareProcessNamespace":         "TestPod_SharesItsPIDNamespace",
	"PodSpec.securityContext":               "TestSetRights_PrefersTheContainersSettings",
	"PodSpec.hostname":                      "TestHostname_FollowsSubdomainAndOverride",
	"PodSpec.subdomain":                     "TestHostname_FollowsSubdomainAndOverride",
	"PodSpec.setHostnameAsFQDN":             "TestHostname_FollowsSubdomainAndOverride",
	"PodSpec.hostnameOverride":              "TestHostname_FollowsSubdomainAndOverride",
	"PodSpec.hostAliases":                   "TestHosts_HaveAliasesWithHostNetworkToo",
	"PodSpec.dnsConfig":                     "TestResolvConf_FollowsThePolicy",
	"PodSpec.enableServiceLinks":            "TestResolve_ReadsAllSources",
	"PodSpec.hostUsers":                     "TestRefusedValues_RejectThePod",
	"PodSpec.resources":                     "TestPodLimits_PreferThePodsResources",

	"PodSecurityContext":                     "TestSetRights_PrefersTheContainersSettings",
	"PodSecurityContext.fsGroup":             "TestVolumes_BelongToTheFSGroup",
	"PodSecurityContext.fsGroupChangePolicy": "TestVolumes_BelongToTheFSGroup",
	"PodSecurityContext.sysctls":             "TestPrograms_SetSysctlsOrAreRejected",
	"PodSecurityContext.appArmorProfile":     "TestRefusedValues_RejectThePod",
	"Sysctl":                                 "TestPrograms_SetSysctlsOrAreRejected",
	"HostAlias":                              "TestHosts_HaveAliasesWithHostNetworkToo",
	"PodDNSConfig":                           "TestResolvConf_FollowsThePolicy",
	"PodDNSConfigOption":                     "TestResolvConf_FollowsThePolicy",
	"SeccompProfile":                         "TestContainer_HasTheSeccompProfileInAllItsCommands",
	"AppArmorProfile":                        "TestRefusedValues_RejectThePod",

	"Container":                          "TestPrograms_FollowTheirSpec",
	"Container.ports":                    "TestHostPorts_ConflictOnSharedAddresses",
	"Container.envFrom":                  "TestResolve_ReadsAllSources",
	"Container.env":                      "TestResolve_ReadsAllSources",
	"Container.resources":                "TestPrograms_AreResizedInPlace",
	"Container.resizePolicy":             "TestResize_RestartsIfThePolicyAsksForIt",
	"Container.restartPolicy":            "TestPod_RunsInitContainersThenSidecarsBesideContainers",
	"Container.restartPolicyRules":       "TestPod_RestartsByTheRulesOfAContainer",
	"Container.livenessProbe":            "TestProber_FollowsThresholdsAndPeriods",
	"Container.readinessProbe":           "TestProber_FollowsThresholdsAndPeriods",
	"Container.startupProbe":             "TestProber_FollowsThresholdsAndPeriods",
	"Container.terminationMessagePolicy": "TestLastLines_AreBounded",
	"Container.securityContext":          "TestSetRights_PrefersTheContainersSettings",
	"Container.stdin":                    "TestPod_IsAdoptedAndAnswers",
	"Container.stdinOnce":                "TestPod_IsAdoptedAndAnswers",
	"Container.tty":                      "TestPod_IsAdoptedAndAnswers",
	"EphemeralContainer":                 "TestPod_LetsADebuggerSeeItsTarget",
	"ContainerPort":                      "TestHostPorts_ConflictOnSharedAddresses",

	"EnvFromSource":         "TestResolve_ReadsAllSources",
	"ConfigMapEnvSource":    "TestResolve_ReadsAllSources",
	"SecretEnvSource":       "TestResolve_ReadsAllSources",
	"LocalObjectReference":  "TestResolve_ReadsAllSources",
	"EnvVar":                "TestResolve_ReadsAllSources",
	"EnvVarSource":          "TestResolve_ReadsAllSources",
	"ObjectFieldSelector":   "TestResolve_ReadsAllSources",
	"ResourceFieldSelector": "TestResolve_ReadsAllSources",
	"ConfigMapKeySelector":  "TestResolve_ReadsAllSources",
	"SecretKeySelector":     "TestResolve_ReadsAllSources",

	"ResourceRequirements":                   "TestPrograms_AreResizedInPlace",
	"ContainerResizePolicy":                  "TestResize_RestartsIfThePolicyAsksForIt",
	"ContainerRestartRule":                   "TestPod_RestartsByTheRulesOfAContainer",
	"ContainerRestartRuleOnExitCodes":        "TestPod_RestartsByTheRulesOfAContainer",
	"VolumeMount":                            "TestPrograms_FollowTheirSpec",
	"VolumeMount.recursiveReadOnly":          "TestContainer_MountsHaveTheirOptions",
	"VolumeMount.bindMountOptions":           "TestContainer_MountsHaveTheirOptions",
	"VolumeMount.mountPropagation":           "TestRefusedValues_RejectThePod",
	"Probe":                                  "TestProber_FollowsThresholdsAndPeriods",
	"Probe.terminationGracePeriodSeconds":    "TestContainers_EndBySignalWithinTheirGracePeriod",
	"ProbeHandler":                           "TestExecProbe_FailsWithItsOutput",
	"Lifecycle":                              "TestHook_WaitsForTheHandler",
	"Lifecycle.stopSignal":                   "TestContainers_EndBySignalWithinTheirGracePeriod",
	"LifecycleHandler":                       "TestHook_WaitsForTheHandler",
	"ExecAction":                             "TestExecProbe_FailsWithItsOutput",
	"HTTPGetAction":                          "TestHTTPProbe_SucceedsFrom200To399",
	"HTTPGetAction.protocol":                 "TestProbe_SupportsHTTP2AndTLS",
	"HTTPHeader":                             "TestHTTPProbe_SucceedsFrom200To399",
	"TCPSocketAction":                        "TestTCPProbe_SucceedsOnOpenPorts",
	"GRPCAction":                             "TestGRPCProbe_ChecksTheService",
	"GRPCAction.mode":                        "TestProbe_SupportsHTTP2AndTLS",
	"SleepAction":                            "TestHook_WaitsForTheHandler",
	"SecurityContext":                        "TestSetRights_PrefersTheContainersSettings",
	"SecurityContext.procMount":              "TestContainer_DoesNotSeeMaskedPaths",
	"SecurityContext.appArmorProfile":        "TestRefusedValues_RejectThePod",
	"SecurityContext.readOnlyRootFilesystem": "TestContainer_WithAReadOnlyRootWritesToVolumesOnly",
	"Capabilities":                           "TestSetRights_PrefersTheContainersSettings",

	"Volume":                             "TestPrograms_FollowTheirSpec",
	"VolumeSource":                       "TestVolumes_FollowTheirSources",
	"VolumeSource.ephemeral":             "TestSetUp_ResolvesClaimsOfThePod",
	"VolumeSource.persistentVolumeClaim": "TestSetUp_ResolvesClaimsOfThePod",
	"HostPathVolumeSource":               "TestHostPath_RejectsHiddenPaths",
	"EmptyDirVolumeSource":               "TestVolumes_BelongToTheFSGroup",
	"EmptyDirVolumeSource.sizeLimit":     "TestStorage_PodsThatExceedTheirLimitsAreEvicted",
	"SecretVolumeSource":                 "TestVolumes_FollowTheirSources",
	"ConfigMapVolumeSource":              "TestVolumes_FollowTheirSources",
	"DownwardAPIVolumeSource":            "TestVolumes_FollowTheirSources",
	"DownwardAPIVolumeFile":              "TestVolumes_FollowTheirSources",
	"KeyToPath":                          "TestVolumes_FollowTheirSources",
	"ProjectedVolumeSource":              "TestVolumes_RenewTokensBeforeTheyExpire",
	"VolumeProjection":                   "TestVolumes_RenewTokensBeforeTheyExpire",
	"SecretProjection":                   "TestVolumes_FollowTheirSources",
	"ConfigMapProjection":                "TestVolumes_FollowTheirSources",
	"DownwardAPIProjection":              "TestVolumes_FollowTheirSources",
	"ServiceAccountTokenProjection":      "TestVolumes_RenewTokensBeforeTheyExpire",
	"PersistentVolumeClaimVolumeSource":  "TestSetUp_ResolvesClaimsOfThePod",
}

// refused are the fields that reject a pod with any value.
var refused = fields(map[string]string{
	"PodSpec":               "runtimeClassName resourceClaims",
	"PodSecurityContext":    "seLinuxOptions windowsOptions seLinuxChangePolicy",
	"SecurityContext":       "seLinuxOptions windowsOptions",
	"SeccompProfile":        "localhostProfile",
	"AppArmorProfile":       "localhostProfile",
	"Container":             "volumeDevices",
	"EnvVarSource":          "fileKeyRef",
	"ResourceRequirements":  "claims",
	"LifecycleHandler":      "tcpSocket",
	"ProjectedVolumeSource": "defaultUser", "ConfigMapVolumeSource": "defaultUser", "SecretVolumeSource": "defaultUser",
	"DownwardAPIVolumeSource": "defaultUser", "DownwardAPIVolumeFile": "user", "KeyToPath": "user",
	"ServiceAccountTokenProjection": "user",
	"VolumeProjection":              "clusterTrustBundle podCertificate",
	"VolumeSource": `gcePersistentDisk awsElasticBlockStore gitRepo nfs iscsi glusterfs rbd flexVolume cinder cephfs
		flocker fc azureFile vsphereVolume quobyte azureDisk photonPersistentDisk portworxVolume scaleIO storageos csi
		image`,
})

// fieldsOfSpec calls each once for every field that a spec can have, with the type that has it. It does not descend
// into fields that other components handle or that are rejected as a whole.
func fieldsOfSpec(each func(owner reflect.Type, field reflect.StructField, key string)) {
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(t reflect.Type) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || t.PkgPath() != corePackage || seen[t] {
			return
		}
		seen[t] = true
		for i := range t.NumField() {
			f := t.Field(i)
			key := fieldKey(t, &f)
			if !f.Anonymous {
				each(t, f, key)
			}
			if f.Anonymous || !elsewhere[key] && !refused[key] {
				walk(f.Type)
			}
		}
	}
	walk(reflect.TypeFor[corev1.PodSpec]())
}

func TestFields_AreHonouredRefusedOrElsewhere(t *testing.T) {
	t.Parallel()
	names, all := testNames(t), fieldSet{}
	fieldsOfSpec(func(owner reflect.Type, _ reflect.StructField, key string) {
		all[key] = true
		classes := 0
		for _, in := range []fieldSet{honoured, elsewhere, refused} {
			if in[key] {
				classes++
			}
		}
		require.Equal(t, 1, classes, "%s: a field is honoured, not the runtime's business, or refused", key)
		if honoured[key] {
			test := shownBy[key]
			if test == "" {
				test = shownBy[strings.Split(key, ".")[0]]
			}
			require.NotEmpty(t, test, "%s: a field that is honoured has a test that shows it", key)
			require.True(t, names[test], "%s: there is no %s", key, test)
		}
	})
	for _, class := range []fieldSet{honoured, elsewhere, refused} {
		for key := range maps.Keys(class) {
			require.True(t, all[key], "%s is no field of Kubernetes' any more", key)
		}
	}
	for key := range refusedValues {
		require.True(t, honoured[key], key)
	}
}

// testNames returns the names of all tests of the node agent.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names, pattern := map[string]bool{}, regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range pattern.FindAllSubmatch(text, -1) {
			names[string(m[1])] = true
		}
		return err
	}))
	return names
}

// Each rejected field is set in a spec by itself, at the first place where it can occur.
func TestRefusedFields_RejectThePod(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	fieldsOfSpec(func(owner reflect.Type, field reflect.StructField, key string) {
		if !refused[key] {
			return
		}
		found[key] = true
		v := reflect.New(owner).Elem()
		fill(v.FieldByName(field.Name))
		var list []string
		find(v, "spec", &list)
		require.Equal(t, []string{"spec." + jsonName(&field)}, list, key)
	})
	require.Len(t, found, len(refused))
	require.Empty(t, unsupported(&corev1.Pod{}))
}

// fill sets a value to anything that is not zero.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64, reflect.Int:
		v.SetInt(1)
	}
}

func TestRefusedValues_RejectThePod(t *testing.T) {
	t.Parallel()
	seccomp := func(kind corev1.SeccompProfileType) *corev1.SeccompProfile { return &corev1.SeccompProfile{Type: kind} }
	for name, c := range map[string]struct {
		change func(pod *corev1.Pod, c *corev1.Container)
		want   string // the end of the refusal; "" is none
	}{
		"nothing": {func(*corev1.Pod, *corev1.Container) {}, ""},
		"a user namespace": {func(p *corev1.Pod, _ *corev1.Container) { p.Spec.HostUsers = ptr.To(false) },
			"spec.hostUsers: the process runtime makes no user namespaces: root would be the machine's"},
		"the machine's users": {func(p *corev1.Pod, _ *corev1.Container) { p.Spec.HostUsers = ptr.To(true) }, ""},
		"a file's profile": {func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{
				SeccompProfile: seccomp(corev1.SeccompProfileTypeLocalhost)}
		}, "spec.securityContext.seccompProfile.type: the process runtime has no profiles of files"},
		"the default profile": {func(_ *corev1.Pod, c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{
				SeccompProfile: seccomp(corev1.SeccompProfileTypeRuntimeDefault)}
		}, ""},
		"AppArmor": {func(_ *corev1.Pod, c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{AppArmorProfile: &corev1.AppArmorProfile{
				Type: corev1.AppArmorProfileTypeRuntimeDefault}}
		}, "spec.containers[0].securityContext.appArmorProfile.type: Cannot enforce AppArmor: the process runtime does " +
			"not use it"},
		"no AppArmor": {func(_ *corev1.Pod, c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{AppArmorProfile: &corev1.AppArmorProfile{
				Type: corev1.AppArmorProfileTypeUnconfined}}
		}, ""},
		"AppArmor by annotation": {func(p *corev1.Pod, _ *corev1.Container) {
			p.Annotations = map[string]string{corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + "c": "localhost/x"}
		}, "Cannot enforce AppArmor: the process runtime does not use it"},
		"all of /proc": {func(_ *corev1.Pod, c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{ProcMount: ptr.To(corev1.UnmaskedProcMount)}
		}, "spec.containers[0].securityContext.procMount: the process runtime always masks /proc"},
		"the usual of /proc": {func(_ *corev1.Pod, c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{ProcMount: ptr.To(corev1.DefaultProcMount)}
		}, ""},
		"mount propagation": {func(_ *corev1.Pod, c *corev1.Container) {
			c.VolumeMounts = []corev1.VolumeMount{{Name: "a"},
				{Name: "v", MountPropagation: ptr.To(corev1.MountPropagationHostToContainer)}}
		}, "spec.containers[0].volumeMounts[1].mountPropagation: the process runtime propagates no mounts"},
		"no mount propagation": {func(_ *corev1.Pod, c *corev1.Container) {
			c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPropagation: ptr.To(corev1.MountPropagationNone)}}
		}, ""},
		"huge pages": {func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumHugePages}}}}
		}, "spec.volumes[0].emptyDir.medium: the process runtime has no huge pages"},
		"a rule for all containers": {func(_ *corev1.Pod, c *corev1.Container) {
			c.RestartPolicyRules = []corev1.ContainerRestartRule{{
				Action: corev1.ContainerRestartRuleActionRestartAllContainers}}
		}, "spec.containers[0].restartPolicyRules[0].action: the process runtime restarts containers one by one"},
		"a capability that there is not": {func(_ *corev1.Pod, c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{
				Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_BIND_SERVICE", "NET_ADMINS"}}}
		}, `spec.containers[0].securityContext.capabilities.add: unknown capability "NET_ADMINS"`},
		"two": {func(p *corev1.Pod, c *corev1.Container) {
			p.Spec.RuntimeClassName, p.Spec.HostUsers = ptr.To("kata"), ptr.To(false)
		}, "spec.hostUsers: the process runtime makes no user namespaces: root would be the machine's; " +
			"spec.runtimeClassName"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
		c.change(pod, &pod.Spec.Containers[0])
		why := unsupported(pod)
		if c.want == "" {
			require.Empty(t, why, name)
			continue
		}
		require.True(t, strings.HasPrefix(why, "Pod requires node features that are not available: "), name)
		require.True(t, strings.HasSuffix(why, c.want), "%s: %s", name, why)
		if spec := pod.Spec.Containers[0]; strings.Contains(c.want, "containers[0]") {
			require.NotEmpty(t, unsupportedContainer(&spec), "%s: also of an ephemeral container", name)
			pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
				EphemeralContainerCommon: corev1.EphemeralContainerCommon(spec)}}
			pod.Spec.Containers = slices.Delete(pod.Spec.Containers, 0, 1)
			require.Contains(t, unsupported(pod), "spec.ephemeralContainers[0].", name)
		}
	}
}
