package core

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/resourcelist"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

func nodes() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Version: "v1", Kind: "Node", Plural: "nodes",
			ShortNames: []string{"no"},
		},
		Storage: api.Storage{
			BindsTokens: true,
			New:         func() api.Object { return &corev1.Node{} },
			NewList:     func() runtime.Object { return &corev1.NodeList{} },
			Fields:      []string{"spec.unschedulable"},
			FieldZero:   map[string]string{"spec.unschedulable": "false"},
		},
		Strategy: api.Strategy{
			Default:        api.Typed(defaultNode),
			ValidateName:   naming.NameIsDNSSubdomain,
			Validate:       api.Check(validateNode),
			ValidateUpdate: api.CheckUpdate(validateNodeUpdate),
			// A kubelet registers its node together with the status, so a create keeps the status.
			Status: &api.Status{
				Copy:     api.Typed2(func(dst, src *corev1.Node) { dst.Status = *src.Status.DeepCopy() }),
				Reset:    func(api.Object) {},
				Metadata: api.AllMetadata,
				Validate: api.CheckUpdate(validateNodeStatus),
			},
			Subresources: []api.Subresource{proxyTo("NodeProxyOptions")},
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Status", "string", "The status of the node"),
				table.Column("Roles", "string", "The roles of the node"),
				table.Age,
				table.Column("Version", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["kubeletVersion"]),
				table.Wide("Internal-IP", "string", corev1.NodeStatus{}.SwaggerDoc()["addresses"]),
				table.Wide("External-IP", "string", corev1.NodeStatus{}.SwaggerDoc()["addresses"]),
				table.Wide("OS-Image", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["osImage"]),
				table.Wide("Kernel-Version", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["kernelVersion"]),
				table.Wide("Container-Runtime", "string",
					corev1.NodeSystemInfo{}.SwaggerDoc()["containerRuntimeVersion"]),
			},
			Cells: api.Row(nodeCells),
		},
	}
}

// defaultNode keeps podCIDR and podCIDRs consistent.
func defaultNode(n *corev1.Node) {
	resourcelist.Round(n.Status.Capacity)
	if n.Status.Allocatable == nil && len(n.Status.Capacity) > 0 {
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	}
	resourcelist.Round(n.Status.Allocatable)
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
		n.Name, nodeStatusCell(n), table.JoinOrNone(nodeRoles(n)), table.AgeOf(n.CreationTimestamp),
		info.KubeletVersion, nodeAddress(n, corev1.NodeInternalIP), nodeAddress(n, corev1.NodeExternalIP),
		orUnknown(info.OSImage), orUnknown(info.KernelVersion), orUnknown(info.ContainerRuntimeVersion),
	}
}

func orUnknown(s string) string {
	if s == "" {
		return table.Unknown
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

// nodeRoles returns the roles from the labels node-role.kubernetes.io/<role> and kubernetes.io/role=<role>.
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
	return table.None
}

// validateNode checks a node. As in Kubernetes, the path of taints begins with metadata.
func validateNode(n *corev1.Node) field.ErrorList {
	errs := validateTaints(n.Spec.Taints, field.NewPath("metadata", "taints"))
	errs = append(errs, validateNodeResources(&n.Status)...)
	path, v6 := field.NewPath("spec", "podCIDRs"), 0
	for i, cidr := range n.Spec.PodCIDRs {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validate.CIDR(path.Index(i), cidr)...)
		if strings.Contains(cidr, ":") {
			v6++
		}
	}
	if count := len(n.Spec.PodCIDRs); count > 2 || (count == 2 && v6 != 1) {
		errs = append(errs,
			field.Invalid(path, n.Spec.PodCIDRs, "may specify no more than one CIDR for each IP family"))
	}
	var before validate.Seen
	for i, cidr := range n.Spec.PodCIDRs {
		if field.Enough(errs) {
			break
		}
		if validate.Repeated(&before, n.Spec.PodCIDRs[:i], cidr) {
			errs = append(errs, field.Duplicate(path.Index(i), cidr))
		}
	}
	return errs
}

func validateTaints(taints []corev1.Taint, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	var before validate.Seen
	for i := range taints {
		if field.Enough(errs) {
			break
		}
		t, idxPath := &taints[i], path.Index(i)
		errs = append(errs, validate.QualifiedName(idxPath.Child("key"), t.Key)...)
		if complaints := naming.IsValidLabelValue(t.Value); len(complaints) > 0 {
			errs = append(errs, field.Invalid(idxPath.Child("value"), t.Value, strings.Join(complaints, ";")))
		}
		errs = append(errs, podspec.ValidateTaintEffect(t.Effect, idxPath.Child("effect"))...)
		if validate.RepeatedBy(&before, taints[:i], taintKey(t), taintKey) {
			duplicate := field.Duplicate(idxPath, t)
			duplicate.Detail = "taints must be unique by key and effect pair"
			errs = append(errs, duplicate)
		}
	}
	return errs
}

// taintKey returns a taint's identity, as in Taint.MatchTaint.
func taintKey(t *corev1.Taint) [2]string { return [2]string{t.Key, string(t.Effect)} }

func validateNodeResources(s *corev1.NodeStatus) field.ErrorList {
	var errs field.ErrorList
	for _, name := range resourcelist.SortedNames(s.Capacity) {
		if field.Enough(errs) {
			break
		}
		errs = append(errs,
			resourcelist.ValidateQuantity(name, s.Capacity[name],
				field.NewPath("status", "capacity", string(name)))...)
	}
	for _, name := range resourcelist.SortedNames(s.Allocatable) {
		if field.Enough(errs) {
			break
		}
		errs = append(errs,
			resourcelist.ValidateQuantity(name, s.Allocatable[name],
				field.NewPath("status", "allocatable", string(name)))...)
	}
	return errs
}

// validateNodeUpdate allows changes of taints and schedulability. The pod network and the provider ID may be set once.
func validateNodeUpdate(n, old *corev1.Node) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	if len(old.Spec.PodCIDRs) > 0 && !slices.Equal(n.Spec.PodCIDRs, old.Spec.PodCIDRs) {
		errs = append(errs,
			field.Forbidden(path.Child("podCIDRs"), "node updates may not change podCIDR except from \"\" to valid"))
	}
	if old.Spec.ProviderID != "" && n.Spec.ProviderID != old.Spec.ProviderID {
		errs = append(errs, field.Forbidden(path.Child("providerID"), "node updates may not change providerID "+
			"except from \"\" to valid"))
	}
	if !equality.Semantic.DeepEqual(n.Spec.ConfigSource, old.Spec.ConfigSource) && n.Spec.ConfigSource != nil {
		errs = append(errs, field.Forbidden(path.Child("configSource"), "configSource is not supported"))
	}
	return errs
}

func validateNodeStatus(n, _ *corev1.Node) field.ErrorList {
	errs := validateNodeResources(&n.Status)
	path := field.NewPath("status", "addresses")
	var before validate.Seen
	for i, a := range n.Status.Addresses {
		if field.Enough(errs) {
			break
		}
		if validate.Repeated(&before, n.Status.Addresses[:i], a) {
			errs = append(errs, field.Duplicate(path.Index(i), a))
		}
	}
	return errs
}
