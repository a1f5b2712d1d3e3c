package api

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/naming"
)

func nodes() *Resource {
	return &Resource{
		Version: "v1", Kind: "Node", Plural: "nodes",
		ShortNames: []string{"no"},
		New:        func() Object { return &corev1.Node{} },
		NewList:    func() runtime.Object { return &corev1.NodeList{} },

		Default:        with(defaultNode),
		ValidateName:   naming.NameIsDNSSubdomain,
		Validate:       checked(validateNode),
		ValidateUpdate: checked2(validateNodeUpdate),
		// A kubelet registers with its status, so a create keeps it.
		Status: &Status{
			Copy:     with2(func(to, from *corev1.Node) { to.Status = *from.Status.DeepCopy() }),
			Reset:    func(Object) {},
			Metadata: AllMetadata,
			Validate: checked2(validateNodeStatus),
		},
		Parts:     []Subresource{proxyTo("NodeProxyOptions")},
		Fields:    []string{"spec.unschedulable"},
		FieldZero: map[string]string{"spec.unschedulable": "false"},

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Status", "string", "The status of the node"),
			column("Roles", "string", "The roles of the node"),
			ageColumn,
			column("Version", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["kubeletVersion"]),
			wide("Internal-IP", "string", corev1.NodeStatus{}.SwaggerDoc()["addresses"]),
			wide("External-IP", "string", corev1.NodeStatus{}.SwaggerDoc()["addresses"]),
			wide("OS-Image", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["osImage"]),
			wide("Kernel-Version", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["kernelVersion"]),
			wide("Container-Runtime", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["containerRuntimeVersion"]),
		},
		Cells: row(nodeCells),
	}
}

// defaultNode keeps the single and the plural form of the pod network alike.
func defaultNode(n *corev1.Node) {
	roundResources(n.Status.Capacity)
	if n.Status.Allocatable == nil && len(n.Status.Capacity) > 0 {
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	}
	roundResources(n.Status.Allocatable)
	switch {
	case n.Spec.PodCIDR != "" && len(n.Spec.PodCIDRs) == 0:
		n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
	case n.Spec.PodCIDR == "" && len(n.Spec.PodCIDRs) > 0:
		n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	}
}

func nodeCells(n *corev1.Node) []any {
	info := &n.Status.NodeInfo
	return []any{
		n.Name, nodeStatusCell(n), joinOrNone(nodeRoles(n)), age(n.CreationTimestamp), info.KubeletVersion,
		nodeAddress(n, corev1.NodeInternalIP), nodeAddress(n, corev1.NodeExternalIP),
		orUnknown(info.OSImage), orUnknown(info.KernelVersion), orUnknown(info.ContainerRuntimeVersion),
	}
}

func orUnknown(s string) string {
	if s == "" {
		return unknown
	}
	return s
}

func nodeStatusCell(n *corev1.Node) string {
	status := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			status = "NotReady"
			if c.Status == corev1.ConditionTrue {
				status = "Ready"
			}
		}
	}
	if n.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	return status
}

// nodeRoles come from the labels node-role.kubernetes.io/<role> and kubernetes.io/role=<role>.
func nodeRoles(n *corev1.Node) []string {
	var roles []string
	for key, value := range n.Labels {
		role, found := strings.CutPrefix(key, "node-role.kubernetes.io/")
		if key == "kubernetes.io/role" {
			role, found = value, true
		}
		if found && role != "" && !slices.Contains(roles, role) {
			roles = append(roles, role)
		}
	}
	slices.Sort(roles)
	return roles
}

func nodeAddress(n *corev1.Node, kind corev1.NodeAddressType) string {
	for _, a := range n.Status.Addresses {
		if a.Type == kind {
			return a.Address
		}
	}
	return none
}

// validateNode checks a node. Kubernetes' path of taints begins with metadata.
func validateNode(n *corev1.Node) field.ErrorList {
	errs := validateTaints(n.Spec.Taints, field.NewPath("metadata", "taints"))
	errs = append(errs, validateNodeResources(&n.Status)...)
	path, v6 := field.NewPath("spec", "podCIDRs"), 0
	for i, cidr := range n.Spec.PodCIDRs {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validCIDR(path.Index(i), cidr)...)
		if strings.Contains(cidr, ":") {
			v6++
		}
	}
	if count := len(n.Spec.PodCIDRs); count > 2 || (count == 2 && v6 != 1) {
		errs = append(errs, field.Invalid(path, n.Spec.PodCIDRs, "may specify no more than one CIDR for each IP family"))
	}
	var before seen
	for i, cidr := range n.Spec.PodCIDRs {
		if field.Enough(errs) {
			break
		}
		if repeated(&before, n.Spec.PodCIDRs[:i], cidr) {
			errs = append(errs, field.Duplicate(path.Index(i), cidr))
		}
	}
	return errs
}

func validateTaints(taints []corev1.Taint, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	var before seen
	for i := range taints {
		if field.Enough(errs) {
			break
		}
		t, at := &taints[i], path.Index(i)
		errs = append(errs, qualifiedName(at.Child("key"), t.Key)...)
		if complaints := naming.IsValidLabelValue(t.Value); len(complaints) > 0 {
			errs = append(errs, field.Invalid(at.Child("value"), t.Value, strings.Join(complaints, ";")))
		}
		errs = append(errs, taintEffect(t.Effect, at.Child("effect"))...)
		if repeatedBy(&before, taints[:i], taintKey(t), taintKey) {
			duplicate := field.Duplicate(at, t)
			duplicate.Detail = "taints must be unique by key and effect pair"
			errs = append(errs, duplicate)
		}
	}
	return errs
}

// taintKey is what tells a node's taints apart, as Taint.MatchTaint does.
func taintKey(t *corev1.Taint) [2]string { return [2]string{t.Key, string(t.Effect)} }

func validateNodeResources(s *corev1.NodeStatus) field.ErrorList {
	var errs field.ErrorList
	for _, name := range sortedNames(s.Capacity) {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validateQuantity(name, s.Capacity[name], field.NewPath("status", "capacity", string(name)))...)
	}
	for _, name := range sortedNames(s.Allocatable) {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validateQuantity(name, s.Allocatable[name], field.NewPath("status", "allocatable", string(name)))...)
	}
	return errs
}

// validateNodeUpdate lets taints and schedulability change; the pod network and the
// provider's identity are set once.
func validateNodeUpdate(n, old *corev1.Node) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	if len(old.Spec.PodCIDRs) > 0 && !slices.Equal(n.Spec.PodCIDRs, old.Spec.PodCIDRs) {
		errs = append(errs, field.Forbidden(path.Child("podCIDRs"), "node updates may not change podCIDR except from \"\" to valid"))
	}
	if old.Spec.ProviderID != "" && n.Spec.ProviderID != old.Spec.ProviderID {
		errs = append(errs, field.Forbidden(path.Child("providerID"), "node updates may not change providerID except from \"\" to valid"))
	}
	if !equality.Semantic.DeepEqual(n.Spec.ConfigSource, old.Spec.ConfigSource) && n.Spec.ConfigSource != nil {
		errs = append(errs, field.Forbidden(path.Child("configSource"), "configSource is not supported"))
	}
	return errs
}

func validateNodeStatus(n, _ *corev1.Node) field.ErrorList {
	errs := validateNodeResources(&n.Status)
	path := field.NewPath("status", "addresses")
	var before seen
	for i, a := range n.Status.Addresses {
		if field.Enough(errs) {
			break
		}
		if repeated(&before, n.Status.Addresses[:i], a) {
			errs = append(errs, field.Duplicate(path.Index(i), a))
		}
	}
	return errs
}
