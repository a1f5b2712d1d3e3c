package testenv

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/internal/client/manifests"
)

// WebhookServer is the address where the operator under test serves its webhooks. The fields are the same as in
// controller-runtime's webhook.Options:
//
//	hooks := webhook.NewServer(webhook.Options{
//		Host: env.Webhooks.Host, Port: env.Webhooks.Port, CertDir: env.Webhooks.CertDir,
//	})
//
// The API server calls a webhook when a request needs it: requests for kinds with a webhook fail until the operator
// serves.
type WebhookServer struct {
	// Host and Port are a reserved address: no other process can listen on it.
	Host string
	Port int
	// CertDir contains the certificate and its key, tls.crt and tls.key, until the environment stops.
	CertDir string
	// CAData is the certificate authority, in PEM, with which the API server verifies the operator's certificate.
	CAData []byte

	reserved *port
}

// URL returns the URL of the webhook with a path.
func (w *WebhookServer) URL(path string) string {
	return fmt.Sprintf("https://%s:%d/%s", w.Host, w.Port, strings.TrimPrefix(path, "/"))
}

// Close releases the port. An Environment closes its own server.
func (w *WebhookServer) Close() { w.reserved.close() }

// WithWebhooks makes the API server call the webhooks of the operator under test at Environment.Webhooks. The paths
// are read as in WithCRDs. The MutatingWebhookConfigurations and ValidatingWebhookConfigurations in them are
// installed. Where they name a Service, they lead to the operator instead, with the same path, and so do the
// conversions of definitions. Without a path the operator gets an address, and no configuration is installed.
func WithWebhooks(paths ...string) Option { return withWebhooks(manifests.Source{Paths: paths}) }

// WithWebhooksFrom is WithWebhooks for paths of a file system, an embed.FS for example.
func WithWebhooksFrom(fsys fs.FS, paths ...string) Option {
	return withWebhooks(manifests.Source{FS: fsys, Paths: paths})
}

// WithMutatingWebhooks is WithWebhooks for configurations made in Go.
func WithMutatingWebhooks(configurations ...*admissionv1.MutatingWebhookConfiguration) Option {
	return withWebhooks(manifests.FromGo(admissionv1.SchemeGroupVersion, "MutatingWebhookConfiguration",
		configurations...))
}

// WithValidatingWebhooks is WithWebhooks for configurations made in Go.
func WithValidatingWebhooks(configurations ...*admissionv1.ValidatingWebhookConfiguration) Option {
	return withWebhooks(manifests.FromGo(admissionv1.SchemeGroupVersion, "ValidatingWebhookConfiguration",
		configurations...))
}

// WithConversion makes the operator under test convert the versions of these definitions ("sites.example.com"), at
// the path /convert. It overrides their manifests: kustomize often adds the conversion only later.
func WithConversion(definitions ...string) Option {
	return func(o *options) {
		o.webhooks = true
		o.converted = append(slices.Clip(o.converted), definitions...)
	}
}

func withWebhooks(m manifests.Source) Option {
	return func(o *options) {
		o.webhooks = true
		o.webhookConfigs = append(slices.Clip(o.webhookConfigs), m)
	}
}

// newWebhookServer reserves an address for the operator's server.
func (e *Environment) newWebhookServer() (*WebhookServer, error) {
	folder, err := e.files()
	if err != nil {
		return nil, err
	}
	folder = filepath.Join(folder, "webhooks")
	if err := os.Mkdir(folder, 0o700); err != nil {
		return nil, err
	}
	return NewWebhookServer(folder)
}

// NewWebhookServer reserves an address for an operator's webhooks without an Environment, for another cluster that
// can reach this machine. The certificate is written to a folder. It is valid for loopback and for the given names
// and addresses. The caller must Close the server.
func NewWebhookServer(certDir string, names ...string) (*WebhookServer, error) {
	// Both ends verify the certificate by the machine's clock, which may differ from the environment's. It
	// therefore has a CA of its own.
	ca, err := pki.NewNamedCA("testenv-webhooks")
	if err != nil {
		return nil, err
	}
	w := &WebhookServer{Host: "127.0.0.1", CertDir: certDir, CAData: ca.PEM()}
	cert, key, err := ca.Issue(pki.Leaf{User: "testenv-webhooks",
		Hosts: append([]string{w.Host, "localhost"}, names...)})
	if err != nil {
		return nil, err
	}
	for name, content := range map[string][]byte{"tls.crt": cert, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(w.CertDir, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	if w.reserved, err = newPort(); err != nil {
		return nil, err
	}
	w.Port = w.reserved.number
	return w, nil
}

// webhookResources are the kinds of webhook configurations.
var webhookResources = map[string]schema.GroupVersionResource{
	"MutatingWebhookConfiguration":   admissionv1.SchemeGroupVersion.WithResource("mutatingwebhookconfigurations"),
	"ValidatingWebhookConfiguration": admissionv1.SchemeGroupVersion.WithResource("validatingwebhookconfigurations"),
}

func isWebhookConfiguration(o *unstructured.Unstructured) bool {
	_, ok := webhookResources[o.GetKind()]
	return ok && o.GroupVersionKind().Group == admissionv1.GroupName
}

// installWebhooks applies the configurations of the options.
func (e *Environment) installWebhooks() error {
	if len(e.options.webhookConfigs) == 0 {
		return nil
	}
	client, done, err := e.dynamicClient()
	if err != nil {
		return err
	}
	defer done()
	for _, m := range e.options.webhookConfigs {
		configurations, err := m.Read("webhook configuration", isWebhookConfiguration)
		if err != nil {
			return err
		}
		for _, c := range configurations {
			hooks, _, _ := unstructured.NestedSlice(c.Object, "webhooks")
			for _, hook := range hooks {
				if hook, ok := hook.(map[string]any); ok {
					e.lead(hook, "")
				}
			}
			c.Object["webhooks"] = hooks
			_, err := client.Resource(webhookResources[c.GetKind()]).Apply(e.ctx, c.GetName(), c,
				metav1.ApplyOptions{FieldManager: "testenv", Force: true})
			if err != nil {
				return fmt.Errorf("install %s %s: %w", c.GetKind(), c.GetName(), err)
			}
		}
	}
	return nil
}

// convertByWebhook makes the operator convert a definition's versions, if the definition has a conversion webhook.
func (e *Environment) convertByWebhook(crd *unstructured.Unstructured) {
	if e.Webhooks == nil {
		return
	}
	conversion, _, _ := unstructured.NestedMap(crd.Object, "spec", "conversion")
	if slices.Contains(e.options.converted, crd.GetName()) {
		conversion = map[string]any{"strategy": "Webhook",
			"webhook": map[string]any{"conversionReviewVersions": []any{"v1"}}}
	}
	hook, ok := conversion["webhook"].(map[string]any)
	if conversion["strategy"] != "Webhook" || !ok {
		return
	}
	e.lead(hook, "/convert")
	// conversion was read from there, so this cannot fail.
	_ = unstructured.SetNestedMap(crd.Object, conversion, "spec", "conversion")
}

// lead points the clientConfig of a webhook to the operator, unless it has a URL already. path is the default path.
func (e *Environment) lead(hook map[string]any, path string) {
	client, _ := hook["clientConfig"].(map[string]any)
	if _, hasURL := client["url"]; hasURL {
		return
	}
	if named, ok, _ := unstructured.NestedString(client, "service", "path"); ok {
		path = named
	}
	hook["clientConfig"] = map[string]any{"url": e.Webhooks.URL(path),
		"caBundle": base64.StdEncoding.EncodeToString(e.Webhooks.CAData)}
}
