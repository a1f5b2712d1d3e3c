package podspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/kit/warning"
	"github.com/coxswain-dev/coxswain/api/naming"
)

// WarnPod returns kube-apiserver's warnings about fields of a pod that are allowed but probably unintended. It warns
// only about a new pod: updates are frequent, and come from machines.
func WarnPod(p, old *corev1.Pod) []string {
	if old != nil {
		return nil
	}
	var warnings []string
	if complaints := naming.IsDNS1123Label(p.Name); p.Name != "" && len(complaints) > 0 {
		warnings = append(warnings, fmt.Sprintf("metadata.name: this is used in the Pod's hostname, which can "+
			"result in surprising behavior; a DNS label is recommended: %v", complaints))
	}
	return append(warnings, warnPodSpec(p.Annotations, &p.Spec, nil)...)
}

// WarnWorkloadName warns if the pods of a new object cannot use its name unchanged.
func WarnWorkloadName[T api.Object](obj, old T) []string {
	complaints := naming.IsDNS1123Label(obj.GetName())
	if any(old) != any(*new(T)) || obj.GetName() == "" || len(complaints) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("metadata.name: this is used in Pod names and hostnames, which can result in "+
		"surprising behavior; a DNS label is recommended: %v", complaints)}
}

// WarnChangedTemplate returns warnings about the template at spec.template, unless an update has not changed the spec.
func WarnChangedTemplate[T api.Object](obj, old T, t *corev1.PodTemplateSpec) []string {
	if t == nil || any(old) != any(*new(T)) && old.GetGeneration() == obj.GetGeneration() {
		return nil
	}
	return WarnTemplate(t, field.NewPath("spec", "template"))
}

// podWarnings collects the warnings about a pod's spec.
type podWarnings struct{ warning.List }

// WarnTemplate returns warnings about the template at path.
func WarnTemplate(t *corev1.PodTemplateSpec, path *field.Path) []string {
	return warnPodSpec(t.Annotations, &t.Spec, path)
}

// warnPodSpec returns warnings about a template at path, or about a pod if path is nil.
func warnPodSpec(annotations map[string]string, spec *corev1.PodSpec, path *field.Path) []string {
	var w podWarnings
	specPath := path.Child("spec")
	w.nodeLabels(spec, specPath)
	w.selectors(spec, specPath)
	w.annotations(annotations, spec, path)
	w.volumes(spec.Volumes, specPath.Child("volumes"))
	w.lists(spec, specPath)
	w.fractions(spec.Overhead, specPath.Child("overhead"))
	eachContainer(spec, func(c *corev1.Container, list string, i int) { w.container(c, specPath.Child(list).Index(i)) })
	w.ports(spec, specPath)
	if grace := spec.TerminationGracePeriodSeconds; grace != nil && *grace < 0 {
		w.Add(specPath.Child("terminationGracePeriodSeconds"),
			"must be >= 0; negative values are invalid and will be treated as 1")
	}
	return w.List
}

// DeprecatedNodeLabels has the warning about each label of nodes that another one has replaced.
var DeprecatedNodeLabels = map[string]string{
	"beta.kubernetes.io/arch":                  `deprecated since v1.14; use "kubernetes.io/arch" instead`,
	"beta.kubernetes.io/os":                    `deprecated since v1.14; use "kubernetes.io/os" instead`,
	"failure-domain.beta.kubernetes.io/region": `deprecated since v1.17; use "topology.kubernetes.io/region" instead`,
	"failure-domain.beta.kubernetes.io/zone":   `deprecated since v1.17; use "topology.kubernetes.io/zone" instead`,
	"beta.kubernetes.io/instance-type":         `deprecated since v1.17; use "node.kubernetes.io/instance-type" instead`,
}

func (w *podWarnings) nodeLabels(spec *corev1.PodSpec, path *field.Path) {
	if len(spec.NodeSelector) > 0 {
		for _, key := range slices.Sorted(maps.Keys(spec.NodeSelector)) {
			if text, ok := DeprecatedNodeLabels[key]; ok {
				w.Add(path.Child("nodeSelector").Key(key), "%s", text)
			}
		}
	}
	if spec.Affinity != nil && spec.Affinity.NodeAffinity != nil {
		n, fldPath := spec.Affinity.NodeAffinity, path.Child("affinity", "nodeAffinity")
		if required := n.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			for i, term := range required.NodeSelectorTerms {
				w.nodeTerm(term, fldPath.Child("requiredDuringSchedulingIgnoredDuringExecution",
					"nodeSelectorTerms").Index(i))
			}
		}
		for i, term := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			w.nodeTerm(term.Preference, fldPath.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i).Child(
				"preference"))
		}
	}
	for i, c := range spec.TopologySpreadConstraints {
		if text, ok := DeprecatedNodeLabels[c.TopologyKey]; ok {
			w.Add(path.Child("topologySpreadConstraints").Index(i).Child("topologyKey"), "%s is %s",
				c.TopologyKey, text)
		}
	}
}

func (w *podWarnings) nodeTerm(term corev1.NodeSelectorTerm, path *field.Path) {
	for i, e := range term.MatchExpressions {
		if text, ok := DeprecatedNodeLabels[e.Key]; ok {
			w.Add(path.Child("matchExpressions").Index(i).Child("key"), "%s is %s", e.Key, text)
		}
	}
}

// selectors warns about null selectors: they select no pod, although some users expect them to select all.
func (w *podWarnings) selectors(spec *corev1.PodSpec, path *field.Path) {
	const text = "a null labelSelector results in matching no pod"
	for i, c := range spec.TopologySpreadConstraints {
		if c.LabelSelector == nil {
			w.Add(path.Child("topologySpreadConstraints").Index(i).Child("labelSelector"), text)
		}
	}
	terms := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm, path *field.Path) {
		for i, t := range required {
			if t.LabelSelector == nil {
				w.Add(path.Child("requiredDuringSchedulingIgnoredDuringExecution").Index(i).Child("labelSelector"),
					text)
			}
		}
		for i, t := range preferred {
			if t.PodAffinityTerm.LabelSelector == nil {
				w.Add(path.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i).Child("podAffinityTerm",
					"labelSelector"), text)
			}
		}
	}
	if spec.Affinity == nil {
		return
	}
	if a := spec.Affinity.PodAffinity; a != nil {
		terms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution,
			path.Child("affinity", "podAffinity"))
	}
	if a := spec.Affinity.PodAntiAffinity; a != nil {
		terms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution,
			path.Child("affinity", "podAntiAffinity"))
	}
}

// annotations warns about annotations that fields have replaced.
func (w *podWarnings) annotations(annotations map[string]string, spec *corev1.PodSpec, path *field.Path) {
	if len(annotations) == 0 {
		return
	}
	tell := func(key, text string) {
		if _, ok := annotations[key]; ok {
			w.Add(path.Child("metadata", "annotations").Key(key), "%s", text)
		}
	}
	tell("scheduler.alpha.kubernetes.io/critical-pod",
		`non-functional in v1.16+; use the "priorityClassName" field instead`)
	tell("security.alpha.kubernetes.io/sysctls", `non-functional in v1.11+; use the "sysctls" field instead`)
	tell("security.alpha.kubernetes.io/unsafe-sysctls", `non-functional in v1.11+; use the "sysctls" field instead`)
	const seccomp = `non-functional in v1.27+; use the "seccompProfile" field instead`
	security := spec.SecurityContext
	if security == nil || security.SeccompProfile == nil {
		tell(corev1.SeccompPodAnnotationKey, seccomp)
	}
	if !ofContainers(annotations) {
		return
	}
	eachContainer(spec, func(c *corev1.Container, _ string, _ int) {
		if c.SecurityContext == nil || c.SecurityContext.SeccompProfile == nil {
			tell(corev1.SeccompContainerAnnotationKeyPrefix+c.Name, seccomp)
		}
		if profiled := security != nil && security.AppArmorProfile != nil || c.SecurityContext != nil &&
			c.SecurityContext.AppArmorProfile != nil; path != nil && !profiled {
			tell(corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name,
				`deprecated since v1.30; use the "appArmorProfile" field instead`)
		}
	})
}

// ofContainers reports whether the key of an annotation contains the name of a container.
func ofContainers(annotations map[string]string) bool {
	for key := range annotations {
		if strings.HasPrefix(key, corev1.SeccompContainerAnnotationKeyPrefix) ||
			strings.HasPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) {
			return true
		}
	}
	return false
}

// volumes warns about volume types that are no longer supported, and about paths that are hidden by a service
// account's token.
func (w *podWarnings) volumes(volumes []corev1.Volume, path *field.Path) {
	tokens := map[string]bool{}
	for i := range volumes {
		v, idxPath := &volumes[i].VolumeSource, path.Index(i)
		for _, old := range []struct {
			name string
			set  bool
			text string
		}{
			{"photonPersistentDisk", v.PhotonPersistentDisk != nil, "deprecated in v1.11, non-functional in v1.16+"},
			{"gitRepo", v.GitRepo != nil, "deprecated in v1.11, and disabled by default in v1.33+"},
			{"scaleIO", v.ScaleIO != nil, "deprecated in v1.16, non-functional in v1.22+"},
			{"flocker", v.Flocker != nil, "deprecated in v1.22, non-functional in v1.25+"},
			{"storageOS", v.StorageOS != nil, "deprecated in v1.22, non-functional in v1.25+"},
			{"quobyte", v.Quobyte != nil, "deprecated in v1.22, non-functional in v1.25+"},
			{"glusterfs", v.Glusterfs != nil, "deprecated in v1.25, non-functional in v1.26+"},
			{"cephfs", v.CephFS != nil, "deprecated in v1.28, non-functional in v1.31+"},
			{"rbd", v.RBD != nil, "deprecated in v1.28, non-functional in v1.31+"},
		} {
			if old.set {
				w.Add(idxPath.Child(old.name), "%s", old.text)
			}
		}
		if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
			w.List = append(w.List, WarnClaimSpec(&v.Ephemeral.VolumeClaimTemplate.Spec,
				idxPath.Child("ephemeral", "volumeClaimTemplate", "spec"))...)
		}
		if v.Projected != nil {
			for _, source := range v.Projected.Sources {
				if source.ServiceAccountToken != nil {
					tokens[source.ServiceAccountToken.Path] = true
				}
			}
		}
	}
	if len(tokens) == 0 {
		return
	}
	for i := range volumes {
		if p := volumes[i].Projected; p != nil {
			w.hiddenByToken(p.Sources, tokens, path.Index(i).Child("projected", "sources"))
		}
	}
}

func (w *podWarnings) hiddenByToken(sources []corev1.VolumeProjection, tokens map[string]bool, path *field.Path) {
	warn := func(fldPath *field.Path, name string) {
		if tokens[name] {
			w.Add(fldPath, "has duplicated path with ServiceAccountToken %q", name)
		}
	}
	for _, s := range sources {
		if s.ConfigMap != nil {
			for i, item := range s.ConfigMap.Items {
				warn(path.Child("configMap").Index(i), item.Path)
			}
		}
		if s.Secret != nil {
			for i, item := range s.Secret.Items {
				warn(path.Child("secrets").Index(i), item.Path)
			}
		}
		if s.DownwardAPI != nil {
			for i, item := range s.DownwardAPI.Items {
				warn(path.Child("downwardAPI").Index(i), item.Path)
			}
		}
		if s.ClusterTrustBundle != nil {
			warn(path.Child("ClusterTrustBundle"), s.ClusterTrustBundle.Path)
		}
	}
}

// lists warns about repeated entries, and about secrets without a name.
func (w *podWarnings) lists(spec *corev1.PodSpec, path *field.Path) {
	var ips validate.Seen
	for i, alias := range spec.HostAliases {
		fldPath := path.Child("hostAliases").Index(i).Child("ip")
		if validate.RepeatedBy(&ips, spec.HostAliases[:i], alias.IP, func(a *corev1.HostAlias) string { return a.IP }) {
			w.Add(fldPath, "duplicate ip %q", alias.IP)
		}
		w.Address(fldPath, alias.IP)
	}
	var before validate.Seen
	for i, secret := range spec.ImagePullSecrets {
		fldPath := path.Child("imagePullSecrets").Index(i).Child("name")
		if validate.Repeated(&before, spec.ImagePullSecrets[:i], secret) {
			w.Add(fldPath, "duplicate name %q", secret.Name)
		}
		if secret.Name == "" {
			w.Add(fldPath, "invalid empty name %q", secret.Name)
		}
	}
	if spec.DNSConfig != nil {
		for i, server := range spec.DNSConfig.Nameservers {
			w.Address(path.Child("dnsConfig", "nameservers").Index(i), server)
		}
	}
}

// fractions warns about fractions of a byte.
func (w *podWarnings) fractions(list corev1.ResourceList, path *field.Path) {
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if q, ok := list[name]; ok && q.MilliValue()%1000 != 0 {
			w.Add(path.Key(string(name)), "fractional byte value %q is invalid, must be an integer", q.String())
		}
	}
}

func (w *podWarnings) container(c *corev1.Container, path *field.Path) {
	w.fractions(c.Resources.Limits, path.Child("resources", "limits"))
	w.fractions(c.Resources.Requests, path.Child("resources", "requests"))
	var names validate.Seen
	for i, env := range c.Env {
		if !validate.RepeatedBy(&names, c.Env[:i], env.Name, func(e *corev1.EnvVar) string { return e.Name }) {
			continue
		}
		// X="$(X)…" extends the earlier value.
		before := "$(" + env.Name + ")"
		if env.ValueFrom != nil || env.Value == before || !strings.Contains(env.Value, before) {
			w.Add(path.Child("env").Index(i), "hides previous definition of %q, which may be dropped when using apply",
				env.Name)
		}
	}
}

// ports warns about repeated ports, in one container or in two.
func (w *podWarnings) ports(spec *corev1.PodSpec, path *field.Path) {
	type number struct {
		port     int32
		protocol corev1.Protocol
	}
	seen, earlier := map[number]bool{}, make([]knownPort, 0, 8)
	eachContainer(spec, func(c *corev1.Container, list string, container int) {
		for i := range c.Ports {
			port, idxPath := &c.Ports[i], path.Child(list).Index(container).Child("ports").Index(i)
			if port.HostIP != "" && port.HostPort == 0 {
				w.Add(idxPath, "hostIP set without hostPort: %+v", *port)
			}
			if n := (number{port.ContainerPort, port.Protocol}); seen[n] {
				w.portAgain(port, earlier, path, idxPath)
			} else {
				seen[n] = true
			}
			earlier = append(earlier, knownPort{port, list, container, i})
		}
	})
}

// knownPort is a port with its position: index i of a container in a list.
type knownPort struct {
	*corev1.ContainerPort
	list         string
	container, i int
}

func (w *podWarnings) portAgain(port *corev1.ContainerPort, earlier []knownPort, path, fldPath *field.Path) {
	for _, other := range earlier {
		if port.ContainerPort != other.ContainerPort.ContainerPort || port.Protocol != other.Protocol {
			continue
		}
		there := path.Child(other.list).Index(other.container).Child("ports").Index(other.i)
		switch {
		case port.HostIP == other.HostIP && port.HostPort == other.HostPort:
			w.Add(fldPath, "duplicate port definition with %s", there.String())
		case port.HostPort == 0 || other.HostPort == 0:
			w.Add(fldPath, "overlapping port definition with %s", there.String())
		case port.HostPort == other.HostPort && (port.HostIP == "") != (other.HostIP == ""):
			w.Add(fldPath, "dangerously ambiguous port definition with %s", there.String())
		}
	}
}
