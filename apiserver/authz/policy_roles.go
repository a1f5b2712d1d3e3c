package authz

import rbacv1 "k8s.io/api/rbac/v1"

type list = []rbacv1.PolicyRule

// userRoles are for people, and for all users.
var userRoles = []named{
	{name: "cluster-admin", rules: Everything},

	{name: "admin", madeOf: "admin"},
	{name: "edit", madeOf: "edit", isPartOf: "admin"},
	{name: "view", madeOf: "view", isPartOf: "edit"},

	{name: "system:aggregate-to-admin", isPartOf: "admin", rules: list{
		on("create", "authorization.k8s.io", "localsubjectaccessreviews"),
		on(readWrite, "rbac.authorization.k8s.io", "roles rolebindings"),
	}},
	{name: "system:aggregate-to-edit", isPartOf: "edit", rules: list{
		// Reading these amounts to acting as another user.
		on(read, "core", "pods/attach pods/proxy pods/exec pods/portforward secrets services/proxy"),
		on("impersonate", "core", "serviceaccounts"),

		on(write, "core", "pods pods/attach pods/proxy pods/exec pods/portforward"),
		on("create", "core", "pods/eviction"),
		on(write, "core", `replicationcontrollers replicationcontrollers/scale serviceaccounts services services/proxy
			persistentvolumeclaims configmaps secrets events`),
		on("create", "core", "serviceaccounts/token"),
		on(write, "apps", `statefulsets statefulsets/scale daemonsets deployments deployments/scale deployments/rollback
			replicasets replicasets/scale`),
		on(write, "autoscaling", "horizontalpodautoscalers"),
		on(write, "batch", "jobs cronjobs"),
		on(write, "extensions", `daemonsets deployments deployments/scale deployments/rollback ingresses replicasets
			replicasets/scale replicationcontrollers/scale networkpolicies`),
		on(write, "policy", "poddisruptionbudgets"),
		on(write, "networking.k8s.io", "networkpolicies ingresses"),
		on(readWrite, "coordination.k8s.io", "leases"),
		on(write, "resource.k8s.io", "resourceclaims resourceclaimtemplates"),
	}},
	{name: "system:aggregate-to-view", isPartOf: "view", rules: list{
		on(read, "core", `pods replicationcontrollers replicationcontrollers/scale serviceaccounts services services/status
			endpoints persistentvolumeclaims persistentvolumeclaims/status configmaps`),
		on(read, "core", `limitranges resourcequotas bindings events pods/status resourcequotas/status namespaces/status
			replicationcontrollers/status pods/log`),
		// Within a namespace, this grants reading that one.
		on(read, "core", "namespaces"),
		on(read, "discovery.k8s.io", "endpointslices"),
		on(read, "apps", `controllerrevisions statefulsets statefulsets/status statefulsets/scale daemonsets daemonsets/status
			deployments deployments/status deployments/scale replicasets replicasets/status replicasets/scale`),
		on(read, "autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status"),
		on(read, "batch", "jobs cronjobs cronjobs/status jobs/status"),
		on(read, "extensions", `daemonsets daemonsets/status deployments deployments/scale deployments/status ingresses
			ingresses/status replicasets replicasets/scale replicasets/status replicationcontrollers/scale networkpolicies`),
		on(read, "policy", "poddisruptionbudgets poddisruptionbudgets/status"),
		on(read, "networking.k8s.io", "networkpolicies ingresses ingresses/status"),
		on(read, "resource.k8s.io", "resourceclaims resourceclaims/status resourceclaimtemplates"),
	}},

	{name: "system:discovery", rules: list{
		at("get", "/livez /readyz /healthz /version /version/ /openapi /openapi/* /api /api/* /apis /apis/*"),
	}},
	{name: "system:basic-user", rules: list{
		on("create", "authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews"),
		on("create", "authentication.k8s.io", "selfsubjectreviews"),
	}},
	{name: "system:public-info-viewer", rules: list{at("get", "/livez /readyz /healthz /version /version/")}},
	{name: "system:monitoring", rules: list{
		at("get", "/metrics /metrics/slis /livez /readyz /healthz /livez/* /readyz/* /healthz/*"),
		at("get", "/flagz"),
		at("get", "/statusz"),
	}},
	{name: "system:service-account-issuer-discovery", rules: list{
		at("get", "/.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks "+
			"/openid/v1/jwks/"),
	}},
	{name: "system:cluster-trust-bundle-discovery",
		rules: list{on(read, "certificates.k8s.io", "clustertrustbundles")}},

	{name: "system:certificates.k8s.io:certificatesigningrequests:nodeclient", rules: list{
		on("create", "certificates.k8s.io", "certificatesigningrequests/nodeclient"),
	}},
	{name: "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", rules: list{
		on("create", "certificates.k8s.io", "certificatesigningrequests/selfnodeclient"),
	}},
	approver("kube-apiserver-client"),
	approver("kube-apiserver-client-kubelet"),
	approver("kubelet-serving"),
	approver("legacy-unknown"),
}

// approver returns a role that may approve requests to one of Kubernetes' own signers.
func approver(signer string) named {
	return named{name: "system:certificates.k8s.io:" + signer + "-approver", rules: list{
		on("approve", "certificates.k8s.io", "signers", "kubernetes.io/"+signer),
	}}
}

// nodeRules are the rights of every kubelet. The Node authorizer restricts them.
var nodeRules = list{
	on("create", "authentication.k8s.io", "tokenreviews"),
	on("create", "authorization.k8s.io", "subjectaccessreviews localsubjectaccessreviews"),
	on(read, "core", "services"),
	on("create get list watch", "core", "nodes"),
	on("update patch", "core", "nodes/status"),
	on("update patch", "core", "nodes"),
	on("create update patch", "core", "events"),
	on(read, "core", "pods"),
	on("create delete", "core", "pods"), // mirror pods
	on("update patch", "core", "pods/status"),
	on("create", "core", "pods/eviction"),
	on(read, "core", "secrets configmaps"),
	on("get", "core", "persistentvolumeclaims persistentvolumes"),
	on("get", "core", "endpoints"),
	on("create get list watch", "certificates.k8s.io", "certificatesigningrequests"),
	on("get create update patch delete", "coordination.k8s.io", "leases"),
	on("get", "storage.k8s.io", "volumeattachments"),
	on("create", "core", "serviceaccounts/token"),
	on("get update patch", "core", "persistentvolumeclaims/status"),
	on(read, "storage.k8s.io", "csidrivers"),
	on("get create update patch delete", "storage.k8s.io", "csinodes"),
	on(read, "node.k8s.io", "runtimeclasses"),
	on("get", "resource.k8s.io", "resourceclaims"),
	on("deletecollection", "resource.k8s.io", "resourceslices"),
	on(read, "certificates.k8s.io", "clustertrustbundles"),
	on("create get list watch", "certificates.k8s.io", "podcertificaterequests"),
	on("get", "core", "serviceaccounts"),
}

// componentRoles are for Kubernetes' own components, and for add-ons of a cluster.
var componentRoles = []named{
	{name: "system:node", rules: nodeRules},
	// Not of Kubernetes: a process that simulates very many Nodes.
	{name: "coxswain:simulated-nodes", rules: list{
		eventsRule,
		on(read+" create patch", "core", "nodes"),
		on("patch", "core", "nodes/status"),
		on(read+" create delete", "core", "pods"),
		on("patch", "core", "pods/status"),
		on("get create update", "coordination.k8s.io", "leases"),
		on("create get", "certificates.k8s.io", "certificatesigningrequests"),
		on("create", "certificates.k8s.io", "certificatesigningrequests/nodeserver"),
		on("create", "authentication.k8s.io", "tokenreviews"),
		on("create", "authorization.k8s.io", "subjectaccessreviews"),
	}},
	// Not of Kubernetes: the ingress controller. It may read every Secret, since any may be named by an Ingress.
	{name: "coxswain:ingress", rules: list{
		eventsRule,
		on(read, "networking.k8s.io", "ingresses ingressclasses"),
		on("create", "networking.k8s.io", "ingressclasses"),
		on("update patch", "networking.k8s.io", "ingresses/status"),
		on(read, "core", "services secrets"),
		on(read, "discovery.k8s.io", "endpointslices"),
		on("create", "authentication.k8s.io", "tokenreviews"),
		on("create", "authorization.k8s.io", "subjectaccessreviews"),
	}},
	{name: "system:node-problem-detector", rules: list{
		on("get", "core", "nodes"), on("patch", "core", "nodes/status"), eventsRule,
	}},
	{name: "system:node-bootstrapper", rules: list{
		on("create get list watch", "certificates.k8s.io", "certificatesigningrequests"),
	}},
	{name: "system:node-proxier", rules: list{
		on("list watch", "core", "services endpoints"),
		on(read, "core", "nodes"),
		eventsRule,
		on("list watch", "networking.k8s.io", "servicecidrs"),
		on("list watch", "discovery.k8s.io", "endpointslices"),
	}},
	// Not of Kubernetes: proxy, policies and routes of the pods' network.
	{name: "coxswain:network", rules: list{
		on("list watch", "core", "services nodes pods namespaces"),
		eventsRule,
		on("list watch", "networking.k8s.io", "servicecidrs networkpolicies"),
		on("list watch", "discovery.k8s.io", "endpointslices"),
	}},
	{name: "system:kubelet-api-admin", rules: list{
		on(read, "core", "nodes"),
		on("proxy", "core", "nodes"),
		on("*", "core", "nodes/proxy nodes/metrics nodes/stats nodes/log"),
		on("*", "core", "nodes/configz nodes/healthz nodes/pods"),
	}},
	{name: "system:auth-delegator", rules: list{
		on("create", "authentication.k8s.io", "tokenreviews"),
		on("create", "authorization.k8s.io", "subjectaccessreviews"),
	}},
	{name: "system:kube-aggregator", rules: list{on(read, "core", "services endpoints")}},
	{name: "system:kube-controller-manager", rules: list{
		eventsRule,
		on("create", "coordination.k8s.io", "leases"),
		on("get update", "coordination.k8s.io", "leases", "kube-controller-manager"),
		on("create", "core", "secrets serviceaccounts"),
		on("delete", "core", "secrets"),
		on("get", "core", "namespaces secrets serviceaccounts configmaps"),
		on("update", "core", "secrets serviceaccounts"),
		on("create", "authentication.k8s.io", "tokenreviews"),
		on("create", "authorization.k8s.io", "subjectaccessreviews"),
		on("list watch", "*", "*"), // for the informers that all controllers share
		on("create", "core", "serviceaccounts/token"),
	}},
	{name: "system:kube-dns", rules: list{on("list watch", "core", "endpoints services")}},
	{name: "coxswain:dns", rules: list{
		on("list watch", "core", "services namespaces"),
		on("list watch", "discovery.k8s.io", "endpointslices"),
	}},
	{name: "system:kube-scheduler", rules: list{
		eventsRule,
		on("create", "coordination.k8s.io", "leases"),
		on("get update", "coordination.k8s.io", "leases", "kube-scheduler"),
		on(read, "core", "nodes"),
		on("get list watch delete", "core", "pods"),
		on("create", "core", "pods/binding bindings"),
		on("update patch", "core", "pods/status"),
		on(read, "core", "services replicationcontrollers"),
		on(read, "apps extensions", "replicasets"),
		on(read, "apps", "statefulsets"),
		on(read, "policy", "poddisruptionbudgets"),
		on(read, "core", "persistentvolumeclaims persistentvolumes"),
		on("create", "authentication.k8s.io", "tokenreviews"),
		on("create", "authorization.k8s.io", "subjectaccessreviews"),
		on(read, "storage.k8s.io", "csinodes"),
		on(read, "storage.k8s.io", "volumeattachments"),
		on(read, "core", "namespaces"),
		on(read, "storage.k8s.io", "csidrivers"),
		on(read, "storage.k8s.io", "csistoragecapacities"),
		on(read, "resource.k8s.io", "deviceclasses"),
		on(read+" update patch", "resource.k8s.io", "resourceclaims"),
		on(read+" update patch", "resource.k8s.io", "resourceclaims/status"),
		on("update patch", "resource.k8s.io", "resourceclaims/binding"),
		on(read+" update patch", "core", "pods/finalizers"),
		on(read, "resource.k8s.io", "resourceslices"),
		on(read, "resource.k8s.io", "devicetaintrules"),
	}},
	{name: "system:volume-scheduler", rules: list{
		on(read+" update patch", "core", "persistentvolumes"),
		on(read, "storage.k8s.io", "storageclasses"),
		on(read+" update patch", "core", "persistentvolumeclaims"),
	}},
	{name: "system:persistent-volume-provisioner", rules: list{
		on("get list watch create delete", "core", "persistentvolumes"),
		on(read+" update", "core", "persistentvolumeclaims"),
		on(read, "storage.k8s.io", "storageclasses"),
		on("watch", "core", "events"),
		eventsRule,
	}},
	{name: "system:heapster", rules: list{
		on(read, "core", "events pods nodes namespaces"),
		on(read, "extensions", "deployments"),
	}},
}
