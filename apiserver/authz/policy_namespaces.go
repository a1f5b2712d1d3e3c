package authz

import rbacv1 "k8s.io/api/rbac/v1"

// inNamespace is a Role and the subjects that are bound to it. The binding has the same name, unless bindingName is
// set.
type inNamespace struct {
	namespace, name string
	rules           []rbacv1.PolicyRule
	bindingName     string
	subjects        []string
}

func (r inNamespace) binding() *rbacv1.RoleBinding {
	name := r.bindingName
	if name == "" {
		name = r.name
	}
	return &rbacv1.RoleBinding{
		ObjectMeta: bootstrapMeta(r.namespace, name),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: r.name},
		Subjects:   subjectsOf(r.subjects),
	}
}

var namespaceRoles = []inNamespace{
	{
		namespace: "kube-system", name: "extension-apiserver-authentication-reader",
		rules:       list{on(read, "core", "configmaps", "extension-apiserver-authentication")},
		bindingName: "system::extension-apiserver-authentication-reader",
		subjects:    []string{"user:system:kube-controller-manager", "user:system:kube-scheduler"},
	},
	{
		namespace: "kube-system", name: "system:controller:bootstrap-signer",
		rules:    list{on(read, "core", "secrets")},
		subjects: []string{"kube-system/bootstrap-signer"},
	},
	{
		namespace: "kube-system", name: "system:controller:cloud-provider",
		rules:    list{on("create get list watch", "core", "configmaps")},
		subjects: []string{"kube-system/cloud-provider"},
	},
	{
		namespace: "kube-system", name: "system:controller:cluster-dns-controller", // not Kubernetes'
		rules: list{
			on("create", "core", "services"),
			on("update", "core", "services/finalizers"),
			on("create update delete", "discovery.k8s.io", "endpointslices"),
		},
		subjects: []string{"kube-system/cluster-dns-controller"},
	},
	{
		namespace: "kube-system", name: "system:controller:token-cleaner",
		rules:    list{on(read+" delete", "core", "secrets"), eventsRule},
		subjects: []string{"kube-system/token-cleaner"},
	},
	{
		namespace: "kube-system", name: "system::leader-locking-kube-controller-manager",
		rules: list{
			on("watch", "core", "configmaps"),
			on("get update", "core", "configmaps", "kube-controller-manager"),
			on("get watch list create update", "coordination.k8s.io", "leases"),
		},
		subjects: []string{"user:system:kube-controller-manager", "kube-system/kube-controller-manager",
			"kube-system/leader-election-controller"},
	},
	{
		namespace: "kube-system", name: "system::leader-locking-kube-scheduler",
		rules: list{
			on("watch", "core", "configmaps"),
			on("get update", "core", "configmaps", "kube-scheduler"),
		},
		subjects: []string{"user:system:kube-scheduler", "kube-system/kube-scheduler"},
	},
	{
		namespace: "kube-public", name: "system:controller:bootstrap-signer",
		rules: list{
			on(read, "core", "configmaps"),
			on("update", "core", "configmaps", "cluster-info"),
			eventsRule,
		},
		subjects: []string{"kube-system/bootstrap-signer"},
	},
}
