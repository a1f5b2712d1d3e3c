package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/apiserver/proxy"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/certs"
)

// kubeletFlags configure the API server's connections to nodes.
type kubeletFlags struct {
	caFile, certFile, keyFile string
	addressTypes              []string
	changed                   func(flag string) bool
}

func (f *kubeletFlags) add(fs *pflag.FlagSet) {
	f.changed = fs.Changed
	fs.StringVar(&f.caFile, "kubelet-certificate-authority", "",
		"CAs of the nodes' serving certificates; if set to \"\", certificates are not verified (default our own, "+
			"pki/kubelet-serving-ca.crt and, for certificates of earlier versions, pki/ca.crt)")
	fs.StringVar(&f.certFile, "kubelet-client-certificate", "",
		"client certificate for requests to nodes, instead of one from our own CA")
	fs.StringVar(&f.keyFile, "kubelet-client-key", "", "key of --kubelet-client-certificate")
	for _, t := range proxy.DefaultKubeletAddressTypes {
		f.addressTypes = append(f.addressTypes, string(t))
	}
	fs.StringSliceVar(&f.addressTypes, "kubelet-preferred-address-types", f.addressTypes,
		"types of a node's addresses to connect to, the preferred one first")
}

func (f *kubeletFlags) options(own *certs.Authorities) (proxy.KubeletOptions, error) {
	var o proxy.KubeletOptions
	for _, t := range f.addressTypes {
		o.AddressTypes = append(o.AddressTypes, corev1.NodeAddressType(t))
	}
	switch {
	case f.caFile != "":
		pem, err := os.ReadFile(f.caFile)
		if err != nil {
			return o, fmt.Errorf("--kubelet-certificate-authority: %w", err)
		}
		if o.CAs = x509.NewCertPool(); !o.CAs.AppendCertsFromPEM(pem) {
			return o, fmt.Errorf("--kubelet-certificate-authority: %s has no certificates", f.caFile)
		}
	case !f.changed("kubelet-certificate-authority"):
		ca, err := own.KubeletServing()
		if err != nil {
			return o, err
		}
		o.CAs = ca.Pool()
		o.CAs.AddCert(own.Cluster.Certificate()) // issued by an earlier version
	}
	cert, err := f.certificate(own.Cluster)
	o.Certificate = &cert
	return o, err
}

func (f *kubeletFlags) certificate(ca *pki.CA) (tls.Certificate, error) {
	if f.certFile != "" {
		cert, err := tls.LoadX509KeyPair(f.certFile, f.keyFile)
		if err != nil {
			return cert, fmt.Errorf("--kubelet-client-certificate: %w", err)
		}
		return cert, nil
	}
	cert, key, err := ca.Client(certs.KubeletClientIdentity.User, certs.KubeletClientIdentity.Groups...)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}
