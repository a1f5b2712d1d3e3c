package main

import (
	"crypto"
	"path/filepath"
	"sync"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
)

// authorities are what a control plane signs with. They are in the folder pki of a data directory, made there when
// they are missing, or in this process's memory alone.
type authorities struct {
	dir        string // the data directory; "" for memory
	cluster    *pki.CA
	frontProxy func() (*pki.CA, error)
	// kubeletServing signs nodes' serving certificates. No client of the API server trusts it.
	kubeletServing func() (*pki.CA, error)
	tokens         func() (crypto.Signer, error) // signs service account tokens
}

func openAuthorities(dir string) (*authorities, error) {
	a := &authorities{dir: dir}
	a.frontProxy = sync.OnceValues(func() (*pki.CA, error) { return a.openCA(frontProxyCA) })
	a.kubeletServing = sync.OnceValues(func() (*pki.CA, error) { return a.openCA(kubeletServingCA) })
	a.tokens = sync.OnceValues(a.openTokenKey)
	var err error
	a.cluster, err = a.openCA(clusterCA)
	return a, err
}

func (a *authorities) openCA(name string) (*pki.CA, error) {
	if a.dir == "" {
		return pki.NewNamedCA(caNames[name])
	}
	return pki.OpenNamedCA(filepath.Join(a.dir, "pki", name), caNames[name])
}

// servingOfNode returns a serving certificate for a node of this process.
func (a *authorities) servingOfNode(hosts ...string) (pki.Certificate, error) {
	ca, err := a.kubeletServing()
	if err != nil {
		return nil, err
	}
	return ca.Serving(hosts...)
}

func (a *authorities) openTokenKey() (crypto.Signer, error) {
	if a.dir == "" {
		return pki.NewKey()
	}
	file := filepath.Join(a.dir, "pki", "sa.key")
	if err := pki.EnsureKey(file); err != nil {
		return nil, err
	}
	return authn.ReadSigningKey(file)
}
