//go:build e2e && linux

package network

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// The controller is a pod with a service account that has the role coxswain:ingress, behind a Service of type NodePort.
func TestIngress_TwoHostsWithTLS(t *testing.T) {
	s := share(t)
	service := s.ingressController()
	roots := x509.NewCertPool()
	ingress := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "shops"},
		Spec: networkingv1.IngressSpec{IngressClassName: ptr.To("coxswain")}}
	for _, shop := range []string{"tea", "coffee"} {
		s.server(shop, shop)
		s.service(shop, shop, nil)
		host := shop + ".example.com"
		s.certificate(shop, host, roots)
		ingress.Spec.TLS = append(ingress.Spec.TLS, networkingv1.IngressTLS{Hosts: []string{host}, SecretName: shop})
		ingress.Spec.Rules = append(ingress.Spec.Rules, networkingv1.IngressRule{Host: host,
			IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
				Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: ptr.To(networkingv1.PathTypePrefix),
					Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: shop,
						Port: networkingv1.ServiceBackendPort{Name: "http"}}}}}}}})
	}
	_, err := s.client.NetworkingV1().Ingresses(s.name).Create(t.Context(), ingress, metav1.CreateOptions{})
	require.NoError(t, err)

	for i, shop := range []string{"tea", "coffee"} {
		address := net.JoinHostPort(s.machines[i].address, fmt.Sprint(service.Spec.Ports[1].NodePort))
		client := s.browser(address, roots)
		s.eventually(shop+" is served by its host's certificate", func() error {
			body, err := body(client, "https://"+shop+".example.com/hostname")
			if err == nil && body != shop {
				err = fmt.Errorf("%q answers", body)
			}
			return err
		})
		said, err := body(client, "https://"+shop+".example.com/header/X-Forwarded-Proto")
		require.NoError(t, err)
		require.Equal(t, "https", said)
	}
	s.eventually("the Ingress says where it is served", func() error {
		i, err := s.client.NetworkingV1().Ingresses(s.name).Get(t.Context(), "shops", metav1.GetOptions{})
		if err == nil && len(i.Status.LoadBalancer.Ingress) == 0 {
			err = fmt.Errorf("its status is %v", i.Status)
		}
		return err
	})
}

// ingressController runs the controller in the test's namespace.
func (s *space) ingressController() *corev1.Service {
	s.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "ingress"}}
	_, err := s.client.CoreV1().ServiceAccounts(s.name).Create(s.Context(), account, metav1.CreateOptions{})
	require.NoError(s, err)
	_, err = s.client.RbacV1().ClusterRoleBindings().Create(s.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "coxswain:ingress"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: s.name, Name: "ingress"}},
	}, metav1.CreateOptions{})
	require.NoError(s, err)
	service := s.service("ingress", "ingress", func(spec *corev1.ServiceSpec) {
		nodePort(spec)
		spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "https", Port: 443}}
	})
	spec := program("ingress", "--publish-service", s.name+"/ingress", "--publish-address", "192.0.2.1")
	spec.ServiceAccountName, spec.AutomountServiceAccountToken = "ingress", ptr.To(true)
	c := &spec.Containers[0]
	c.Command[0] = "/coxswain/coxswain"
	c.VolumeMounts = []corev1.VolumeMount{{Name: "coxswain", MountPath: "/coxswain"}}
	c.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt(10254)}}}
	spec.Volumes = []corev1.Volume{{Name: "coxswain", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: filepath.Dir(coxswain)}}}}
	s.run("ingress", "ingress", spec)
	return service
}

// certificate creates a Secret with a self-signed certificate for a host, and adds it to the pool.
func (s *space) certificate(name, host string, trusted *x509.CertPool) {
	s.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(s, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: host},
		DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(s, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(s, err)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	trusted.AppendCertsFromPEM(text)
	_, err = s.client.CoreV1().Secrets(s.name).Create(s.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: text, corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{
			Type: "PRIVATE KEY", Bytes: private})},
	}, metav1.CreateOptions{})
	require.NoError(s, err)
}

// browser returns a client on the last machine that connects to an address for every host, and trusts only these
// certificates.
func (s *space) browser(at string, roots *x509.CertPool) *http.Client {
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, protocol, _ string) (net.Conn, error) {
			return s.machines[len(s.machines)-1].dial(ctx, protocol, at)
		},
	}
	s.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 5 * time.Second}
}

func body(client *http.Client, url string) (string, error) {
	response, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return string(text), err
}
