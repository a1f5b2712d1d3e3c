package certs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/datadir"
)

// certFile is a certificate and its key: pki/NAME.crt and pki/NAME.key. If leaf.User is empty, the certificate exists
// and keeps its identity.
type certFile struct {
	file, ca string
	leaf     pki.Leaf
}

func (c *certFile) name() string      { return c.file }
func (c *certFile) authority() string { return c.ca }

func (c *certFile) certificates(f *certsFlags) ([]*x509.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(f.pki(c.file)+".crt", f.pki(c.file)+".key")
	if err != nil {
		return nil, err
	}
	return []*x509.Certificate{pair.Leaf}, nil
}

func (c *certFile) good(_ *certsFlags, existing []*x509.Certificate) bool {
	return Identity{c.leaf.User, c.leaf.Groups}.has(existing[0]) && covers(existing[0], c.leaf.Hosts)
}

func (c *certFile) make(f *certsFlags, ca *pki.CA, existing []*x509.Certificate) error {
	leaf := c.leaf
	leaf.Life = f.validity
	for _, cert := range existing {
		if leaf.User == "" { // the certificate keeps its identity
			leaf.User, leaf.Groups = cert.Subject.CommonName, cert.Subject.Organization
			leaf.Client = slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
		}
		leaf.Hosts = append(slices.Clone(leaf.Hosts), hostsOf(cert)...)
	}
	slices.Sort(leaf.Hosts)
	leaf.Hosts = slices.Compact(leaf.Hosts)
	cert, key, err := ca.Issue(leaf)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(f.pki(c.file)), 0o700); err != nil {
		return err
	}
	// The two files are not replaced atomically: readers retry until key and certificate match.
	if err := pki.WriteSecret(f.pki(c.file)+".key", key); err != nil {
		return err
	}
	return pki.WriteSecret(f.pki(c.file)+".crt", cert)
}

// has reports whether a certificate has exactly this user and these groups. The groups of an identity can differ from
// earlier versions.
func (id Identity) has(cert *x509.Certificate) bool {
	return cert.Subject.CommonName == id.User && slices.Equal(cert.Subject.Organization, id.Groups)
}

// kubeconfigFile is a kubeconfig in the data directory. Its current context has the first of the users. Without users,
// the kubeconfig exists and keeps its users.
type kubeconfigFile struct {
	base  string
	users []Identity
}

func (k *kubeconfigFile) name() string              { return k.base + datadir.KubeconfigSuffix }
func (k *kubeconfigFile) authority() string         { return ClusterCA }
func (k *kubeconfigFile) path(f *certsFlags) string { return filepath.Join(f.dir, k.name()) }

func (k *kubeconfigFile) load(f *certsFlags) (*clientcmdapi.Config, error) {
	return clientcmd.LoadFromFile(k.path(f))
}

func (k *kubeconfigFile) certificates(f *certsFlags) ([]*x509.Certificate, error) {
	config, err := k.load(f)
	if err != nil {
		return nil, err
	}
	var certs []*x509.Certificate
	for _, user := range config.AuthInfos {
		pair, err := tls.X509KeyPair(user.ClientCertificateData, user.ClientKeyData)
		if err != nil {
			return nil, err
		}
		certs = append(certs, pair.Leaf)
	}
	if len(certs) == 0 {
		return nil, errors.New("the kubeconfig has no user with a certificate")
	}
	return certs, nil
}

// mainCertificate returns the certificate of the current context's user, or nil if there is none.
func (k *kubeconfigFile) mainCertificate(f *certsFlags) *x509.Certificate {
	config, err := k.load(f)
	if err != nil || config.Contexts[config.CurrentContext] == nil {
		return nil
	}
	user := config.AuthInfos[config.Contexts[config.CurrentContext].AuthInfo]
	if user == nil {
		return nil
	}
	pair, err := tls.X509KeyPair(user.ClientCertificateData, user.ClientKeyData)
	if err != nil {
		return nil
	}
	return pair.Leaf
}

func (k *kubeconfigFile) good(f *certsFlags, existing []*x509.Certificate) bool {
	if f.changed("server") && k.server(f) != f.server {
		return false
	}
	return !slices.ContainsFunc(k.users, func(id Identity) bool {
		return !slices.ContainsFunc(existing, id.has)
	})
}

// server returns the server in the existing kubeconfig, or --server if there is none.
func (k *kubeconfigFile) server(f *certsFlags) string {
	config, err := k.load(f)
	if err != nil {
		return f.server
	}
	for _, cluster := range config.Clusters {
		return cluster.Server
	}
	return f.server
}

func (k *kubeconfigFile) make(f *certsFlags, ca *pki.CA, existing []*x509.Certificate) error {
	users := slices.Clone(k.users)
	if main := k.mainCertificate(f); len(users) == 0 && main != nil {
		users = []Identity{{main.Subject.CommonName, main.Subject.Organization}}
	}
	if len(users) == 0 {
		return errors.New("the kubeconfig's current context names no user with a certificate")
	}
	for _, cert := range existing {
		if !slices.ContainsFunc(users, func(id Identity) bool { return id.User == cert.Subject.CommonName }) {
			users = append(users, Identity{cert.Subject.CommonName, cert.Subject.Organization})
		}
	}
	slices.SortFunc(users[1:], func(a, b Identity) int { return strings.Compare(a.User, b.User) })
	all := make([]pki.User, len(users))
	for i, id := range users {
		cert, key, err := ca.Issue(pki.Leaf{User: id.User, Groups: id.Groups, Client: true, Life: f.validity})
		if err != nil {
			return err
		}
		all[i] = pki.User{Name: id.User, Cert: cert, Key: key}
	}
	server := f.server
	if !f.changed("server") {
		server = k.server(f)
	}
	return pki.WriteSecret(k.path(f), pki.Kubeconfig(server, ca.PEM(), all...))
}

// existing returns the certificates and kubeconfigs in the data directory, sorted by name, including Nodes that the
// flags do not name.
func (f *certsFlags) existing() ([]credential, error) {
	var all []credential
	root := filepath.Join(f.dir, "pki")
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, isCert := strings.CutSuffix(path, ".crt")
		if !isCert {
			return nil
		}
		name, err = filepath.Rel(root, name)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if _, isCA := caNames[name]; isCA {
			return nil
		}
		all = append(all, &certFile{file: name, ca: authorityOf(name)})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("--data-dir: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(f.dir, "*"+datadir.KubeconfigSuffix))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		all = append(all, &kubeconfigFile{base: strings.TrimSuffix(filepath.Base(file), datadir.KubeconfigSuffix)})
	}
	slices.SortFunc(all, func(a, b credential) int { return strings.Compare(a.name(), b.name()) })
	return all, nil
}

// readCertificate reads the first certificate of a PEM file.
func readCertificate(file string) (*x509.Certificate, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(content)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("%s has no certificate", file)
	}
	return x509.ParseCertificate(block.Bytes)
}
