package authz

import (
	"reflect"
	"slices"
	"strings"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// The roles and bindings of every cluster, equal to the ones of Kubernetes v1.37 with its default features.
// Clients, charts and audits name them, so they must not differ.
// https://kubernetes.io/docs/reference/access-authn-authz/rbac/#default-roles-and-role-bindings

// Policy is a set of roles and bindings. The one that Bootstrap returns is shared and must not be changed.
type Policy struct {
	ClusterRoles        []*rbacv1.ClusterRole
	ClusterRoleBindings []*rbacv1.ClusterRoleBinding
	Roles               []*rbacv1.Role
	RoleBindings        []*rbacv1.RoleBinding
}

// ClusterAdmins is a group of administrators. A ClusterRoleBinding with this name binds it to cluster-admin, so its
// rights come from RBAC and can be revoked; the rights of system:masters cannot.
const ClusterAdmins = "coxswain:cluster-admins"

// KubeletClient is the API server's user in requests to kubelets.
const KubeletClient = authn.KubeletClient

// Bootstrap returns the policy that every cluster has. The rules of aggregated roles are filled in, so that they
// also apply if no controller does so.
var Bootstrap = sync.OnceValue(func() *Policy {
	p := &Policy{}
	for _, r := range slices.Concat(userRoles, componentRoles) {
		p.ClusterRoles = append(p.ClusterRoles, r.clusterRole())
	}
	for name, list := range controllerRoles {
		name = controllerPrefix + name
		p.ClusterRoles = append(p.ClusterRoles, named{name: name, rules: list}.clusterRole())
		account := strings.TrimPrefix(name, controllerPrefix)
		p.ClusterRoleBindings = append(p.ClusterRoleBindings, bind(name, "kube-system/"+account))
	}
	for role, subjects := range clusterBindings {
		p.ClusterRoleBindings = append(p.ClusterRoleBindings, bind(role, strings.Fields(subjects)...))
	}
	admins := bind("cluster-admin", "group:"+ClusterAdmins)
	admins.Name = ClusterAdmins // so that it can be revoked without the binding of system:masters
	p.ClusterRoleBindings = append(p.ClusterRoleBindings, admins)
	slices.SortFunc(p.ClusterRoles, func(a, b *rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(p.ClusterRoleBindings, func(a, b *rbacv1.ClusterRoleBinding) int {
		return strings.Compare(a.Name, b.Name)
	})
	for _, r := range namespaceRoles {
		p.Roles = append(p.Roles, &rbacv1.Role{ObjectMeta: bootstrapMeta(r.namespace, r.name), Rules: r.rules})
		p.RoleBindings = append(p.RoleBindings, r.binding())
	}
	p.aggregate()
	return p
})

// aggregate fills in the rules of aggregated roles, as the clusterrole-aggregation controller does. They may be
// parts of other aggregated roles.
func (p *Policy) aggregate() {
	for range p.ClusterRoles {
		changed := false
		for _, r := range p.ClusterRoles {
			if r.AggregationRule == nil {
				continue
			}
			label := ""
			for key := range r.AggregationRule.ClusterRoleSelectors[0].MatchLabels {
				label = key
			}
			var list []rbacv1.PolicyRule
			for _, part := range p.ClusterRoles {
				if part == r || part.Labels[label] == "" {
					continue
				}
				for _, rule := range part.Rules {
					if !slices.ContainsFunc(list, func(o rbacv1.PolicyRule) bool {
						return reflect.DeepEqual(o, rule)
					}) {
						list = append(list, rule)
					}
				}
			}
			if len(list) != len(r.Rules) {
				r.Rules, changed = list, true
			}
		}
		if !changed {
			return
		}
	}
}

// named is a ClusterRole in the tables: its rules, or the label of the roles that it aggregates, and the label that
// makes another role aggregate it.
type named struct {
	name             string
	rules            []rbacv1.PolicyRule
	madeOf, isPartOf string
}

const (
	controllerPrefix = "system:controller:"
	aggregateTo      = "rbac.authorization.k8s.io/aggregate-to-"
)

func (n named) clusterRole() *rbacv1.ClusterRole {
	r := &rbacv1.ClusterRole{ObjectMeta: bootstrapMeta("", n.name), Rules: n.rules}
	if n.isPartOf != "" {
		r.Labels[aggregateTo+n.isPartOf] = "true"
	}
	if n.madeOf != "" {
		r.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
			{MatchLabels: map[string]string{aggregateTo + n.madeOf: "true"}},
		}}
	}
	return r
}

func bootstrapMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name,
		Labels:      map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
}

// on returns a rule for resources. Verbs, groups ("core" for the core group), resources and names are separated by
// spaces.
func on(verbs, groups, resources string, names ...string) rbacv1.PolicyRule {
	in := words(groups)
	for i := range in {
		if in[i] == "core" {
			in[i] = ""
		}
	}
	slices.Sort(in)
	slices.Sort(names)
	return rbacv1.PolicyRule{Verbs: words(verbs), APIGroups: in, Resources: words(resources), ResourceNames: names}
}

// at returns a rule for paths.
func at(verbs, paths string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: words(verbs), NonResourceURLs: words(paths)}
}

func words(text string) []string {
	list := strings.Fields(text)
	slices.Sort(list)
	return list
}

const (
	read      = "get list watch"
	write     = "create update patch delete deletecollection"
	readWrite = read + " " + write
)

// eventsRule lets a component write Events.
var eventsRule = on("create update patch", "core events.k8s.io", "events")

// bind returns a ClusterRoleBinding to the role with its own name. Subjects are "group:NAME", "user:NAME" or
// "NAMESPACE/NAME" for a service account.
func bind(role string, subjects ...string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: bootstrapMeta("", role),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   subjectsOf(subjects),
	}
}

func subjectsOf(list []string) []rbacv1.Subject {
	var subjects []rbacv1.Subject
	for _, text := range list {
		if name, ok := strings.CutPrefix(text, "group:"); ok {
			subjects = append(subjects, rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: name})
		} else if name, ok := strings.CutPrefix(text, "user:"); ok {
			subjects = append(subjects, rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name})
		} else {
			namespace, name, _ := strings.Cut(text, "/")
			subjects = append(subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace,
				Name: name})
		}
	}
	return subjects
}

// clusterBindings maps roles to their subjects. system:node has none: the Node authorizer decides about kubelets.
var clusterBindings = map[string]string{
	"cluster-admin":                           "group:system:masters",
	"system:basic-user":                       "group:system:authenticated",
	"system:discovery":                        "group:system:authenticated",
	"system:kube-controller-manager":          "user:system:kube-controller-manager",
	"system:kube-dns":                         "kube-system/kube-dns",
	"system:kube-scheduler":                   "user:system:kube-scheduler",
	"system:kubelet-api-admin":                "user:" + KubeletClient,
	"system:monitoring":                       "group:system:monitoring",
	"system:node":                             "",
	"coxswain:dns":                            "kube-system/coredns",
	"coxswain:ingress":                        "user:coxswain:ingress",
	"coxswain:network":                        "user:coxswain:network",
	"coxswain:simulated-nodes":                "user:coxswain:simulated-nodes",
	"system:node-proxier":                     "user:system:kube-proxy",
	"system:public-info-viewer":               "group:system:authenticated group:system:unauthenticated",
	"system:service-account-issuer-discovery": "group:system:serviceaccounts",
	"system:cluster-trust-bundle-discovery":   "group:system:serviceaccounts",
	"system:volume-scheduler":                 "user:system:kube-scheduler",
}
