package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/certs"
	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// signingFlags are the keys that controllers sign with, by kube-controller-manager's names.
type signingFlags struct {
	serviceAccountKey string
	rootCA            string
	tokenKey          []byte // in place of the file serviceAccountKey
	signing           controller.SigningSettings
}

func (f *signingFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.serviceAccountKey, "service-account-private-key-file", "",
		"key that signs the tokens in Secrets of type kubernetes.io/service-account-token; none are made without it")
	fs.StringVar(&f.rootCA, "root-ca-file", "",
		"CAs with which pods verify the API server (default those of the kubeconfig)")
	for _, signer := range []struct {
		name, what string
		pair       *controller.KeyPair
	}{
		{"", "all of Kubernetes' signers that have none of their own", &f.signing.Default},
		{"kube-apiserver-client-", "kubernetes.io/kube-apiserver-client", &f.signing.KubeAPIServerClient},
		{"kubelet-client-", "kubernetes.io/kube-apiserver-client-kubelet", &f.signing.KubeletClient},
		{"kubelet-serving-", "kubernetes.io/kubelet-serving", &f.signing.KubeletServing},
		{"legacy-unknown-", "kubernetes.io/legacy-unknown", &f.signing.LegacyUnknown},
	} {
		fs.StringVar(&signer.pair.CertFile, "cluster-signing-"+signer.name+"cert-file", "",
			"certificate of the CA that signs for "+signer.what)
		fs.StringVar(&signer.pair.KeyFile, "cluster-signing-"+signer.name+"key-file", "", "key of --cluster-signing-"+
			signer.name+"cert-file")
	}
	fs.DurationVar(&f.signing.Duration, "cluster-signing-duration",
		controllers.Settings{}.WithDefaults().Signing.Duration,
		"how long signed certificates are valid, unless the request asks for less")
}

// settings reads the files that do not change while the controllers run.
func (f *signingFlags) settings(s *controllers.Settings) error {
	s.Signing, s.ServiceAccountKey = f.signing, f.tokenKey
	for _, file := range []struct {
		flag, path string
		into       *[]byte
	}{
		{"service-account-private-key-file", f.serviceAccountKey, &s.ServiceAccountKey},
		{"root-ca-file", f.rootCA, &s.RootCA},
	} {
		if file.path == "" {
			continue
		}
		content, err := os.ReadFile(file.path)
		if err != nil {
			return fmt.Errorf("--%s: %w", file.flag, err)
		}
		*file.into = content
	}
	return nil
}

// signingInMemory returns the keys of a server in this process that has no data directory.
func (f *serverFlags) signingInMemory(own *certs.Authorities) (s signingFlags, err error) {
	s.serviceAccountKey = f.authn.signingKeyFile
	if s.serviceAccountKey == "" {
		key, err := own.Tokens()
		if err != nil {
			return s, err
		}
		if s.tokenKey, err = pki.KeyPEM(key); err != nil {
			return s, err
		}
	}
	s.signing = controller.SigningSettings{APIServerNames: f.certificateHosts()}
	nodes, err := own.KubeletServing()
	if err != nil {
		return s, err
	}
	for into, ca := range map[*controller.KeyPair]*pki.CA{&s.signing.Default: own.Cluster,
		&s.signing.KubeletServing: nodes} {
		key, err := ca.KeyPEM()
		if err != nil {
			return s, err
		}
		*into = controller.KeyPair{Cert: ca.PEM(), Key: key}
	}
	return s, nil
}

// signing returns the keys of the server in this process, as the files of its data directory.
func (f *serverFlags) signing(own *certs.Authorities) (signingFlags, error) {
	if _, err := own.KubeletServing(); err != nil { // which makes the files
		return signingFlags{}, err
	}
	in := func(name string) string { return filepath.Join(f.dataDir, "pki", name) }
	pair := func(ca string) controller.KeyPair {
		return controller.KeyPair{CertFile: in(ca + ".crt"), KeyFile: in(ca + ".key")}
	}
	key := f.authn.signingKeyFile
	if key == "" {
		key = in("sa.key")
	}
	return signingFlags{serviceAccountKey: key, signing: controller.SigningSettings{Default: pair(certs.ClusterCA),
		KubeletServing: pair(certs.KubeletServingCA), APIServerNames: f.certificateHosts()}}, nil
}
