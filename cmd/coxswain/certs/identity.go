package certs

import (
	"strconv"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/controllers"
)

// Identity is the user and groups of a client certificate. Each component has an identity of its own, with the rights
// that Kubernetes' bootstrap policy gives it and no others: a controller is a ServiceAccount of kube-system, a node is
// system:node:NAME. A component with several identities has all of them in one kubeconfig.
type Identity struct {
	User   string
	Groups []string
}

var (
	AdminIdentity = Identity{"kubernetes-admin", []string{authz.ClusterAdmins}}
	// SuperAdminIdentity is authorized for everything, regardless of roles and bindings.
	SuperAdminIdentity    = Identity{"kubernetes-super-admin", []string{authn.GroupMasters}}
	KubeletClientIdentity = Identity{authz.KubeletClient, nil}
	ControllersIdentity   = Identity{"system:kube-controller-manager", nil}
	SchedulerIdentity     = Identity{"system:kube-scheduler", nil}
	// NetworkIdentity is that of Services' proxy, network policies and routes.
	NetworkIdentity = Identity{"coxswain:network", nil}
	// IngressIdentity is that of the ingress controller.
	IngressIdentity = Identity{"coxswain:ingress", nil}
	// FleetIdentity is the identity of a process that simulates very many Nodes. One connection and two watches serve
	// all of them, whereas each Node's own identity could read its own objects only. It needs no kubelet's rights,
	// since no program runs on these Nodes.
	FleetIdentity = Identity{"coxswain:simulated-nodes", nil}
)

// ComponentIdentities lists the components with one identity each, by the names of their kubeconfigs.
var ComponentIdentities = []struct {
	Name string
	Identity
}{
	{"scheduler", SchedulerIdentity}, {"network", NetworkIdentity}, {"dns", ControllerIdentity("coredns")},
	{"ingress", IngressIdentity},
}

// ControllersIdentities returns the identities of the controllers' process, the main one first.
func ControllersIdentities() []Identity {
	identities := []Identity{ControllersIdentity}
	for _, account := range controllers.Accounts() {
		identities = append(identities, ControllerIdentity(account))
	}
	return identities
}

// ControllerIdentity returns the identity of a controller, by the name of its ServiceAccount.
func ControllerIdentity(account string) Identity {
	return Identity{"system:serviceaccount:kube-system:" + account,
		[]string{"system:serviceaccounts", "system:serviceaccounts:kube-system"}}
}

// NodeIdentity returns the identity of a Node's agent.
func NodeIdentity(name string) Identity {
	return Identity{"system:node:" + name, []string{"system:nodes"}}
}

// NodeNames returns the names of the Nodes that share a prefix, numbered from 0.
func NodeNames(prefix string, count int) []string {
	names := make([]string, count)
	for i := range names {
		names[i] = prefix + strconv.Itoa(i)
	}
	return names
}
