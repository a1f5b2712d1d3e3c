package certs

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/datadir"
)

// instance is the name of one of several processes of a component, such as etcd-1. Its certificates are in the folder
// pki/etcd-1, and its kubeconfig is named after it. It is "" for a component with one process.
type instance string

// or returns the instance's name, or the component's if the component has one process.
func (i instance) or(component string) string {
	if i == "" {
		return component
	}
	return string(i)
}

// source returns the path in the data directory of the instance's own version of a component's file. All instances
// share the CAs and the key of ServiceAccount tokens.
func (i instance) source(file string) string {
	switch base := path.Base(file); {
	case i == "", strings.HasSuffix(base, "ca.crt"), strings.HasSuffix(base, "ca.key"), base == "sa.key":
		return file
	case strings.HasSuffix(base, datadir.KubeconfigSuffix):
		return string(i) + datadir.KubeconfigSuffix
	}
	return "pki/" + string(i) + "/" + strings.TrimPrefix(file, "pki/")
}

// maxReplicas has the components that can have several processes, and their largest number.
var maxReplicas = map[string]int{"etcd": 9, "apiserver": 100, "controllers": 100, "scheduler": 100}

func (c *componentFlags) checkReplicas() error {
	for name, n := range c.replicas {
		limit, ok := maxReplicas[name]
		if !ok {
			return fmt.Errorf("--component-replicas: %q is not one of: %s", name,
				strings.Join(slices.Sorted(maps.Keys(maxReplicas)), ", "))
		}
		if n < 1 || n > limit {
			return fmt.Errorf("--component-replicas: %s must be between 1 and %d", name, limit)
		}
	}
	return nil
}

// instances returns the instances of a component: only "" if --component-replicas does not name it.
func (c *componentFlags) instances(component string) []instance {
	n := c.replicas[component]
	if n == 0 {
		return []instance{""}
	}
	all := make([]instance, n)
	for i := range all {
		all[i] = instance(fmt.Sprintf("%s-%d", component, i+1))
	}
	return all
}

// isInstance reports whether a name is that of an instance, and thus of its folder.
func (c *componentFlags) isInstance(name string) bool {
	for component := range c.replicas {
		if slices.Contains(c.instances(component), instance(name)) {
			return true
		}
	}
	return false
}

// serverCredentials returns the certificates of an API server.
func serverCredentials(i instance, hosts []string) []credential {
	return []credential{
		&certFile{path.Join(string(i), "apiserver"), ClusterCA, pki.Leaf{User: "coxswain-apiserver", Hosts: hosts}},
		&certFile{path.Join(string(i), "apiserver-kubelet-client"), ClusterCA,
			pki.Leaf{User: KubeletClientIdentity.User, Groups: KubeletClientIdentity.Groups, Client: true}},
		&certFile{path.Join(string(i), etcdClient), etcdCA,
			pki.Leaf{User: "kube-apiserver-etcd-client", Client: true}},
		&certFile{path.Join(string(i), FrontProxyClient), frontProxyCA,
			pki.Leaf{User: FrontProxyClient, Client: true}},
	}
}

// etcdClient names the file of an API server's client certificate for etcd.
const etcdClient = "apiserver-etcd-client"

// etcdCredentials returns the certificates of an etcd member.
func etcdCredentials(i instance, hosts []string) []credential {
	return []credential{
		&certFile{path.Join(string(i), "etcd/server"), etcdCA,
			pki.Leaf{User: "etcd-server", Hosts: hosts, Client: true}},
		&certFile{path.Join(string(i), "etcd/peer"), etcdCA,
			pki.Leaf{User: "etcd-peer", Hosts: hosts, Client: true}},
	}
}

// memberHosts returns the names and addresses of the etcd member i, counted from 0. If --etcd-san has a name for each
// member, a certificate contains its member's name only: etcd resolves the names in the certificate of a member that
// connects, and compares the addresses with the member's.
func (f *certsFlags) memberHosts(i int) []string {
	names := f.etcdSANs
	if n := f.components.replicas["etcd"]; n > 0 && len(names) == n {
		names = names[i : i+1]
	}
	return append([]string{"localhost", "127.0.0.1", "::1"}, names...)
}

// authorityOf returns the CA of the certificate with a name below pki, of any instance.
func authorityOf(name string) string {
	switch {
	case path.Base(path.Dir(name)) == "etcd", path.Base(name) == etcdClient:
		return etcdCA
	case path.Base(name) == FrontProxyClient:
		return frontProxyCA
	}
	return ClusterCA
}
