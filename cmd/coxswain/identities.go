package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/kubeconfig"
	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/node"
)

// Every component is a user of its own, with the rights that Kubernetes' bootstrap policy gives it and
// no others: each controller is a ServiceAccount of kube-system, each node is system:node:NAME. The
// users are client certificates of our CA; a component with several users has them in one kubeconfig.

// identity is a user for whom a client certificate is made.
type identity struct {
	user   string
	groups []string
}

var (
	adminIdentity = identity{"kubernetes-admin", []string{authz.ClusterAdmins}}
	// superAdminIdentity may do everything, whatever roles and bindings exist.
	superAdminIdentity  = identity{"kubernetes-super-admin", []string{authn.GroupMasters}}
	kubeletClient       = identity{authz.KubeletClient, nil}
	controllersIdentity = identity{"system:kube-controller-manager", nil}
	schedulerIdentity   = identity{"system:kube-scheduler", nil}
	ingressIdentity     = identity{"coxswain:ingress", nil}
	networkIdentity     = identity{"coxswain:network", nil} // of proxy, policies and routes
	dnsIdentity         = controllerIdentity("coredns")
)

// partIdentities are those of components that have one each, by the names of their kubeconfigs.
var partIdentities = []struct {
	name string
	identity
}{
	{"scheduler", schedulerIdentity}, {"network", networkIdentity}, {"dns", dnsIdentity}, {"ingress", ingressIdentity},
}

func controllerIdentity(account string) identity {
	return identity{"system:serviceaccount:kube-system:" + account,
		[]string{"system:serviceaccounts", "system:serviceaccounts:kube-system"}}
}

// fleetIdentity is the identity of a process that simulates very many Nodes. One connection and two
// watches serve them all, whereas a Node's own identity could only see its own objects. No kubelet's
// rights are at stake: no program runs on them.
var fleetIdentity = identity{"coxswain:simulated-nodes", nil}

// ownIdentities is the largest number of Nodes of one process that each have an identity of their own.
const ownIdentities = 100

// fleet reports that the Nodes share an identity.
func (f *nodeFlags) fleet() bool { return f.count > ownIdentities && f.runtime != node.Process }

// identity is the agent's identity for requests that are not a Node's.
func (f *nodeFlags) identity() identity {
	if f.fleet() {
		return fleetIdentity
	}
	return nodeIdentity(f.prefix)
}

func nodeIdentity(name string) identity {
	return identity{"system:node:" + name, []string{"system:nodes"}}
}

// identities are the identities of a component: the main one, and those of its parts. They are nil if
// the component has one identity for all its parts.
type identities struct {
	main       *rest.Config
	controller func(account string) (*rest.Config, error)
	node       func(name string) (*rest.Config, error)
	network    func() (*rest.Config, error)
	// serving makes a serving certificate of a node for hosts; nil if the CA of these is not in this process.
	serving func(hosts ...string) (pki.Certificate, error)
}

// certify makes a client configuration for a component in this process.
func (r *running) certify(id identity) (*rest.Config, error) {
	cert, key, err := r.own.cluster.Client(id.user, id.groups...)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host:               r.url,
		TLSClientConfig:    rest.TLSClientConfig{CAData: r.roots, CertData: cert, KeyData: key},
		DisableCompression: true, // over loopback it only costs CPU
	}, nil
}

// identities returns those of a component in this process.
func (r *running) identities(main identity) (identities, error) {
	config, err := r.certify(main)
	ids := identities{
		main:       config,
		controller: func(account string) (*rest.Config, error) { return r.certify(controllerIdentity(account)) },
		node:       func(name string) (*rest.Config, error) { return r.certify(nodeIdentity(name)) },
		network:    func() (*rest.Config, error) { return r.certify(networkIdentity) },
		serving:    r.own.servingOfNode,
	}
	if main.user == fleetIdentity.user {
		ids.node = nil // one identity for all Nodes
	}
	return ids, err
}

// writeKubeconfig writes a kubeconfig for users; the first is the main one.
func (r *running) writeKubeconfig(name string, ids ...identity) error {
	users := make([]pki.User, len(ids))
	for i, id := range ids {
		cert, key, err := r.own.cluster.Client(id.user, id.groups...)
		if err != nil {
			return err
		}
		users[i] = pki.User{Name: id.user, Cert: cert, Key: key}
	}
	return pki.WriteSecret(filepath.Join(r.dir, name+".kubeconfig"), pki.Kubeconfig(r.url, r.roots, users...))
}

// writeComponents writes the kubeconfigs of components that are processes of their own.
func (r *running) writeComponents(n *nodeFlags) error {
	all := []identity{controllersIdentity}
	for _, account := range controllers.Accounts() {
		all = append(all, controllerIdentity(account))
	}
	if err := r.writeKubeconfig("controllers", all...); err != nil {
		return err
	}
	for _, c := range partIdentities {
		if err := r.writeKubeconfig(c.name, c.identity); err != nil {
			return err
		}
	}
	all = nil
	if n.fleet() {
		return r.writeKubeconfig("node", fleetIdentity)
	}
	for _, name := range n.names() {
		all = append(all, nodeIdentity(name))
	}
	if len(all) == 0 {
		return nil
	}
	return r.writeKubeconfig("node", all...)
}

// loadIdentities reads a kubeconfig, or those at kubectl's usual places.
func loadIdentities(file string) (identities, error) {
	files, err := kubeconfig.Open(file)
	if err != nil {
		return identities{}, fmt.Errorf("--kubeconfig: %w", err)
	}
	var ids identities
	if ids.main, err = files.Config(""); err != nil {
		return ids, fmt.Errorf("--kubeconfig: %w", err)
	}
	of := func(id func(string) identity) func(string) (*rest.Config, error) {
		prefix := id("").user
		for name := range files.Current().AuthInfos {
			if strings.HasPrefix(name, prefix) {
				return func(part string) (*rest.Config, error) { return files.Config(prefix + part) }
			}
		}
		return nil
	}
	ids.controller, ids.node = of(controllerIdentity), of(nodeIdentity)
	return ids, nil
}
