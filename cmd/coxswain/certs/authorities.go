package certs

import (
	"crypto"
	"path/filepath"
	"sync"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
)

// Authorities holds the CAs and the token key of a control plane. They are in the folder pki of a data directory, where
// missing ones are created, or only in memory. The functions return the same CA or key, or error, on each call.
type Authorities struct {
	dir string // the data directory; "" for memory
	// Cluster signs the API server's certificate and the certificates of its clients.
	Cluster    *pki.CA
	FrontProxy func() (*pki.CA, error)
	// KubeletServing signs the nodes' serving certificates. No client of the API server trusts it.
	KubeletServing func() (*pki.CA, error)
	// Tokens signs ServiceAccount tokens.
	Tokens func() (crypto.Signer, error)
}

// OpenAuthorities opens or creates the authorities of a data directory, or creates them in memory if dir is empty.
func OpenAuthorities(dir string) (*Authorities, error) {
	a := &Authorities{dir: dir}
	a.FrontProxy = sync.OnceValues(func() (*pki.CA, error) { return a.openCA(frontProxyCA) })
	a.KubeletServing = sync.OnceValues(func() (*pki.CA, error) { return a.openCA(KubeletServingCA) })
	a.Tokens = sync.OnceValues(a.openTokenKey)
	var err error
	a.Cluster, err = a.openCA(ClusterCA)
	return a, err
}

func (a *Authorities) openCA(name string) (*pki.CA, error) {
	if a.dir == "" {
		return pki.NewNamedCA(caNames[name])
	}
	return pki.OpenNamedCA(filepath.Join(a.dir, "pki", name), caNames[name])
}

// NodeServing returns a serving certificate for a Node of this process.
func (a *Authorities) NodeServing(hosts ...string) (pki.Certificate, error) {
	ca, err := a.KubeletServing()
	if err != nil {
		return nil, err
	}
	return ca.Serving(hosts...)
}

func (a *Authorities) openTokenKey() (crypto.Signer, error) {
	if a.dir == "" {
		return pki.NewKey()
	}
	file := filepath.Join(a.dir, "pki", "sa.key")
	if err := pki.EnsureKey(file); err != nil {
		return nil, err
	}
	return authn.ReadSigningKey(file)
}
