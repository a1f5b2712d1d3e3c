package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/certs"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/kubeconfig"
	"github.com/coxswain-dev/coxswain/node"
)

// ownIdentities is the largest number of Nodes of one process that each have an identity of their own.
const ownIdentities = 100

// fleet reports that the Nodes share an identity.
func (f *nodeFlags) fleet() bool { return f.count > ownIdentities && f.runtime != node.Process }

// identity is the agent's identity for requests that are not a Node's.
func (f *nodeFlags) identity() certs.Identity {
	if f.fleet() {
		return certs.FleetIdentity
	}
	return certs.NodeIdentity(f.prefix)
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
func (r *running) certify(id certs.Identity) (*rest.Config, error) {
	cert, key, err := r.own.Cluster.Client(id.User, id.Groups...)
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
func (r *running) identities(main certs.Identity) (identities, error) {
	config, err := r.certify(main)
	ids := identities{
		main:       config,
		controller: func(account string) (*rest.Config, error) { return r.certify(certs.ControllerIdentity(account)) },
		node:       func(name string) (*rest.Config, error) { return r.certify(certs.NodeIdentity(name)) },
		network:    func() (*rest.Config, error) { return r.certify(certs.NetworkIdentity) },
		serving:    r.own.NodeServing,
	}
	if main.User == certs.FleetIdentity.User {
		ids.node = nil // one identity for all Nodes
	}
	return ids, err
}

// writeKubeconfig writes a kubeconfig for users; the first is the main one.
func (r *running) writeKubeconfig(name string, ids ...certs.Identity) error {
	users := make([]pki.User, len(ids))
	for i, id := range ids {
		cert, key, err := r.own.Cluster.Client(id.User, id.Groups...)
		if err != nil {
			return err
		}
		users[i] = pki.User{Name: id.User, Cert: cert, Key: key}
	}
	return pki.WriteSecret(filepath.Join(r.dir, name+".kubeconfig"), pki.Kubeconfig(r.url, r.roots, users...))
}

// writeComponents writes the kubeconfigs of components that are processes of their own.
func (r *running) writeComponents(n *nodeFlags) error {
	if err := r.writeKubeconfig("controllers", certs.ControllersIdentities()...); err != nil {
		return err
	}
	for _, c := range certs.ComponentIdentities {
		if err := r.writeKubeconfig(c.Name, c.Identity); err != nil {
			return err
		}
	}
	if n.fleet() {
		return r.writeKubeconfig("node", certs.FleetIdentity)
	}
	var all []certs.Identity
	for _, name := range n.names() {
		all = append(all, certs.NodeIdentity(name))
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
	of := func(id func(string) certs.Identity) func(string) (*rest.Config, error) {
		prefix := id("").User
		for name := range files.Current().AuthInfos {
			if strings.HasPrefix(name, prefix) {
				return func(part string) (*rest.Config, error) { return files.Config(prefix + part) }
			}
		}
		return nil
	}
	ids.controller, ids.node = of(certs.ControllerIdentity), of(certs.NodeIdentity)
	return ids, nil
}
