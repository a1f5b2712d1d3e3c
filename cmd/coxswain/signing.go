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

// signingFlags configure the keys that controllers sign with. They have kube-controller-manager's names.
type signingFlags struct {
	serviceAccountKey string
	rootCA            string
	tokenKey          []byte // used instead of the file serviceAccountKey
	signing           controller.SigningSettings
}

func (f *signingFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.serviceAccountKey, "service-account-private-key-file", "",
		"key that signs the tokens in Secrets of type kubernetes.io/service-account-token; without it, none are made")
	fs.StringVar(&f.rootCA, "root-ca-file", "",
		"CAs that pods verify the API server with (default the kubeconfig's CAs)")
	for _, signer := range []struct {
		name, signer string
		pair         *controller.KeyPair
	}{
		{"", "Kubernetes' signers without one of their own", &f.signing.Default},
		{"kube-apiserver-client-", "kubernetes.io/kube-apiserver-client", &f.signing.KubeAPIServerClient},
		{"kubelet-client-", "kubernetes.io/kube-apiserver-client-kubelet", &f.signing.KubeletClient},
		{"kubelet-serving-", "kubernetes.io/kubelet-serving", &f.signing.KubeletServing},
		{"legacy-unknown-", "kubernetes.io/legacy-unknown", &f.signing.LegacyUnknown},
	} {
		fs.StringVar(&signer.pair.CertFile, "cluster-signing-"+signer.name+"cert-file", "",
			"certificate of the CA of "+signer.signer)
		fs.StringVar(&signer.pair.KeyFile, "cluster-signing-"+signer.name+"key-file", "", "key of --cluster-signing-"+
			signer.name+"cert-file")
	}
	fs.DurationVar(&f.signing.Duration, "cluster-signing-duration",
		controllers.Settings{}.WithDefaults().Signing.Duration,
		"how long signed certificates are valid, unless the request has a shorter time")
}

// settings sets the controllers' settings. It reads the files that are not reloaded while the controllers run.
func (f *signingFlags) settings(s *controllers.Settings) error {
	s.Signing, s.ServiceAccountKey = f.signing, f.tokenKey
	for _, file := range []struct {
		flag, path string
		target     *[]byte
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
		*file.target = content
	}
	return nil
}

// signingInMemory returns the keys of a server in this process without a data directory.
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
	for pair, ca := range map[*controller.KeyPair]*pki.CA{&s.signing.Default: own.Cluster,
		&s.signing.KubeletServing: nodes} {
		key, err := ca.KeyPEM()
		if err != nil {
			return s, err
		}
		*pair = controller.KeyPair{Cert: ca.PEM(), Key: key}
	}
	return s, nil
}

// signing returns the keys of a server in this process, as files in its data directory.
func (f *serverFlags) signing(own *certs.Authorities) (signingFlags, error) {
	if _, err := own.KubeletServing(); err != nil { // creates the files
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
