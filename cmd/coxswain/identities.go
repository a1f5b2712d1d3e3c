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

// ownIdentities is the largest number of Nodes in one process that have an identity each.
const ownIdentities = 100

// fleet reports whether the Nodes share an identity.
func (f *nodeFlags) fleet() bool { return f.count > ownIdentities && f.runtime != node.Process }

// identity returns the agent's identity for requests that do not concern one Node.
func (f *nodeFlags) identity() certs.Identity {
	if f.fleet() {
		return certs.FleetIdentity
	}
	return certs.NodeIdentity(f.prefix)
}

// identities has the client configurations of a component with its identities: a main one, and others for its parts.
// The functions are nil if the component has one identity only.
type identities struct {
	main       *rest.Config
	controller func(account string) (*rest.Config, error)
	node       func(name string) (*rest.Config, error)
	network    func() (*rest.Config, error)
	// serving issues a serving certificate of a node for hosts; nil if the CA is not in this process.
	serving func(hosts ...string) (pki.Certificate, error)
}

// certify returns a client configuration with a new certificate, for a component in this process.
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

// identities returns the identities of a component in this process.
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

// writeKubeconfig writes a kubeconfig with users, the main one first.
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

// writeComponents writes the kubeconfigs of components in processes of their own.
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

// loadIdentities reads the identities in a kubeconfig, or in kubectl's default kubeconfigs if file is empty.
func loadIdentities(file string) (identities, error) {
	files, err := kubeconfig.Open(file)
	if err != nil {
		return identities{}, fmt.Errorf("--kubeconfig: %w", err)
	}
	var ids identities
	if ids.main, err = files.Config(""); err != nil {
		return ids, fmt.Errorf("--kubeconfig: %w", err)
	}
	lookup := func(id func(string) certs.Identity) func(string) (*rest.Config, error) {
		prefix := id("").User
		for name := range files.Current().AuthInfos {
			if strings.HasPrefix(name, prefix) {
				return func(part string) (*rest.Config, error) { return files.Config(prefix + part) }
			}
		}
		return nil
	}
	ids.controller, ids.node = lookup(certs.ControllerIdentity), lookup(certs.NodeIdentity)
	return ids, nil
}
