package main

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/datadir"
)

// instance is one of several processes of a component, such as etcd-1, whose certificates are in the folder pki/etcd-1
// and whose kubeconfig has its name; "" is a component that there is once.
type instance string

// or is the instance's name, or that of the component that there is once.
func (i instance) or(component string) string {
	if i == "" {
		return component
	}
	return string(i)
}

// source is where in the data directory the instance's own version of a component's file is. CAs and the key of
// service accounts' tokens are common to all.
func (i instance) source(file string) string {
	switch base := path.Base(file); {
	case i == "", strings.HasSuffix(base, "ca.crt"), strings.HasSuffix(base, "ca.key"), base == "sa.key":
		return file
	case strings.HasSuffix(base, datadir.KubeconfigSuffix):
		return string(i) + datadir.KubeconfigSuffix
	}
	return "pki/" + string(i) + "/" + strings.TrimPrefix(file, "pki/")
}

// replicated are the components of which there may be several, and how many of each at most.
var replicated = map[string]int{"etcd": 9, "apiserver": 100, "controllers": 100, "scheduler": 100}

func (c *componentFlags) checkReplicas() error {
	for name, n := range c.replicas {
		most, ok := replicated[name]
		if !ok {
			return fmt.Errorf("--component-replicas: %q is not one of: %s", name,
				strings.Join(slices.Sorted(maps.Keys(replicated)), ", "))
		}
		if n < 1 || n > most {
			return fmt.Errorf("--component-replicas: %s must be between 1 and %d", name, most)
		}
	}
	return nil
}

// instances are those of a component: "" alone if --component-replicas does not name it.
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

// isInstance reports whether the folder of one of several processes of a component has that name.
func (c *componentFlags) isInstance(name string) bool {
	for component := range c.replicas {
		if slices.Contains(c.instances(component), instance(name)) {
			return true
		}
	}
	return false
}

// serverCredentials are those of an API server.
func serverCredentials(at instance, hosts []string) []credential {
	return []credential{
		&certFile{path.Join(string(at), "apiserver"), clusterCA, pki.Leaf{User: "coxswain-apiserver", Hosts: hosts}},
		&certFile{path.Join(string(at), "apiserver-kubelet-client"), clusterCA,
			pki.Leaf{User: kubeletClient.user, Groups: kubeletClient.groups, Client: true}},
		&certFile{path.Join(string(at), etcdClient), etcdCA,
			pki.Leaf{User: "kube-apiserver-etcd-client", Client: true}},
		&certFile{path.Join(string(at), frontProxyClient), frontProxyCA,
			pki.Leaf{User: frontProxyClient, Client: true}},
	}
}

// etcdClient names the file of the certificate by which an API server is a client of etcd.
const etcdClient = "apiserver-etcd-client"

// etcdCredentials are those of a member of etcd.
func etcdCredentials(at instance, hosts []string) []credential {
	return []credential{
		&certFile{path.Join(string(at), "etcd/server"), etcdCA,
			pki.Leaf{User: "etcd-server", Hosts: hosts, Client: true}},
		&certFile{path.Join(string(at), "etcd/peer"), etcdCA,
			pki.Leaf{User: "etcd-peer", Hosts: hosts, Client: true}},
	}
}

// memberHosts are the names and addresses of the member i of etcd, counted from 0. If there is a name for each member,
// it has its own alone: others look up the names of a member that connects to them.
func (f *certsFlags) memberHosts(i int) []string {
	names := f.etcdSANs
	if n := f.components.replicas["etcd"]; n > 0 && len(names) == n {
		names = names[i : i+1]
	}
	return append([]string{"localhost", "127.0.0.1", "::1"}, names...)
}

// authorityOf is the CA of the certificate with a name below pki, whichever instance it is of.
func authorityOf(name string) string {
	switch {
	case path.Base(path.Dir(name)) == "etcd", path.Base(name) == etcdClient:
		return etcdCA
	case path.Base(name) == frontProxyClient:
		return frontProxyCA
	}
	return clusterCA
}
