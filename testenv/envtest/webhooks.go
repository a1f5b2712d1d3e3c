package envtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/internal/client/manifests"
	"github.com/coxswain-dev/coxswain/testenv"
)

// WebhookInstallOptions select the webhooks to install, and contain the address of the operator.
type WebhookInstallOptions struct {
	// Paths are files and folders of configurations.
	Paths []string
	// MutatingWebhooks and ValidatingWebhooks are configurations made in Go. The configurations of Paths are added.
	MutatingWebhooks   []*admissionv1.MutatingWebhookConfiguration
	ValidatingWebhooks []*admissionv1.ValidatingWebhookConfiguration
	// IgnoreSchemeConvertible makes the operator convert all definitions, even if Environment.Scheme does not have
	// convertible types for them.
	IgnoreSchemeConvertible bool
	// IgnoreErrorIfPathMissing ignores missing paths.
	IgnoreErrorIfPathMissing bool

	// The operator's address, as webhook.Options of controller-runtime takes it. A host or a port that is set is
	// kept, and the rest is filled in.
	LocalServingHost    string
	LocalServingPort    int
	LocalServingCertDir string
	LocalServingCAData  []byte
	// LocalServingHostExternalName is the host name by which the API server reaches the operator; LocalServingHost
	// if empty.
	LocalServingHostExternalName string

	// MaxTime and PollInterval have no effect: the API server calls a webhook as soon as its configuration is
	// stored.
	MaxTime, PollInterval time.Duration

	server *testenv.WebhookServer
}

// address returns the operator's address for the API server.
func (o *WebhookInstallOptions) address() string {
	host := o.LocalServingHostExternalName
	if host == "" {
		host = o.LocalServingHost
	}
	return net.JoinHostPort(host, strconv.Itoa(o.LocalServingPort))
}

// PrepWithoutInstalling reserves an address for the operator's server, makes its certificate, reads the
// configurations and points them to the address.
func (o *WebhookInstallOptions) PrepWithoutInstalling() error {
	folder, err := os.MkdirTemp("", "envtest-serving-certs-")
	if err != nil {
		return fmt.Errorf("envtest: webhooks: %w", err)
	}
	o.LocalServingCertDir = folder
	var names []string
	for _, name := range []string{o.LocalServingHost, o.LocalServingHostExternalName} {
		if name != "" {
			names = append(names, name)
		}
	}
	if o.server, err = testenv.NewWebhookServer(folder, names...); err != nil {
		return errors.Join(fmt.Errorf("envtest: webhooks: %w", err), o.Cleanup())
	}
	if o.LocalServingHost == "" {
		o.LocalServingHost = o.server.Host
	}
	if o.LocalServingPort == 0 {
		o.LocalServingPort = o.server.Port
	}
	o.LocalServingCAData = o.server.CAData
	if err := o.read(); err != nil {
		return errors.Join(err, o.Cleanup())
	}
	return o.ModifyWebhookDefinitions()
}

// ModifyWebhookDefinitions points the configurations that name a Service to the operator, with the Service's path.
func (o *WebhookInstallOptions) ModifyWebhookDefinitions() error {
	lead := func(client *admissionv1.WebhookClientConfig) {
		client.CABundle = o.LocalServingCAData
		if client.Service != nil && client.Service.Path != nil {
			client.URL = new("https://" + o.address() + "/" + strings.TrimPrefix(*client.Service.Path, "/"))
			client.Service = nil
		}
	}
	for _, c := range o.MutatingWebhooks {
		for i := range c.Webhooks {
			lead(&c.Webhooks[i].ClientConfig)
		}
	}
	for _, c := range o.ValidatingWebhooks {
		for i := range c.Webhooks {
			lead(&c.Webhooks[i].ClientConfig)
		}
	}
	return nil
}

// Install creates or updates the configurations.
func (o *WebhookInstallOptions) Install(config *rest.Config) error {
	if len(o.LocalServingCAData) == 0 {
		if err := o.PrepWithoutInstalling(); err != nil {
			return err
		}
	}
	if len(o.MutatingWebhooks)+len(o.ValidatingWebhooks) == 0 {
		return nil
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("envtest: webhooks: %w", err)
	}
	mutating := clients.AdmissionregistrationV1().MutatingWebhookConfigurations()
	for i, c := range o.MutatingWebhooks {
		if o.MutatingWebhooks[i], err = install(mutating, c); err != nil {
			return fmt.Errorf("envtest: the MutatingWebhookConfiguration %s: %w", c.Name, err)
		}
	}
	validating := clients.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	for i, c := range o.ValidatingWebhooks {
		if o.ValidatingWebhooks[i], err = install(validating, c); err != nil {
			return fmt.Errorf("envtest: the ValidatingWebhookConfiguration %s: %w", c.Name, err)
		}
	}
	return nil
}

// configurations is the client of one kind of configurations.
type configurations[T any] interface {
	Create(ctx context.Context, c T, o metav1.CreateOptions) (T, error)
	Get(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	Update(ctx context.Context, c T, o metav1.UpdateOptions) (T, error)
}

// install creates a configuration, or updates the existing one.
func install[T metav1.Object](client configurations[T], c T) (T, error) {
	ctx := context.Background()
	c.SetResourceVersion("") // it is another control plane's, if the suite started one before
	created, err := client.Create(ctx, c, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return created, err
	}
	now, err := client.Get(ctx, c.GetName(), metav1.GetOptions{})
	if err != nil {
		return c, err
	}
	c.SetResourceVersion(now.GetResourceVersion())
	return client.Update(ctx, c, metav1.UpdateOptions{})
}

// WaitForWebhooks returns when the configurations can be read. That is at once.
func WaitForWebhooks(config *rest.Config, mutating []*admissionv1.MutatingWebhookConfiguration,
	validating []*admissionv1.ValidatingWebhookConfiguration, _ WebhookInstallOptions) error {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("envtest: webhooks: %w", err)
	}
	ctx, api := context.Background(), clients.AdmissionregistrationV1()
	for _, c := range mutating {
		if _, err := api.MutatingWebhookConfigurations().Get(ctx, c.Name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("envtest: webhooks: %w", err)
		}
	}
	for _, c := range validating {
		if _, err := api.ValidatingWebhookConfigurations().Get(ctx, c.Name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("envtest: webhooks: %w", err)
		}
	}
	return nil
}

// Cleanup removes the certificate, and releases the port.
func (o *WebhookInstallOptions) Cleanup() error {
	if o.server != nil {
		o.server.Close()
		o.server = nil
	}
	if o.LocalServingCertDir == "" {
		return nil
	}
	return os.RemoveAll(o.LocalServingCertDir)
}

// read adds the configurations of Paths.
func (o *WebhookInstallOptions) read() error {
	documents, err := readManifests(o.Paths, o.IgnoreErrorIfPathMissing)
	if err != nil {
		return err
	}
	for _, document := range documents {
		var err error
		switch document.GetKind() {
		case "MutatingWebhookConfiguration":
			c := &admissionv1.MutatingWebhookConfiguration{}
			err = decodeInto(document, c)
			o.MutatingWebhooks = append(o.MutatingWebhooks, c)
		case "ValidatingWebhookConfiguration":
			c := &admissionv1.ValidatingWebhookConfiguration{}
			err = decodeInto(document, c)
			o.ValidatingWebhooks = append(o.ValidatingWebhooks, c)
		default:
			continue
		}
		if err == nil && document.GetAPIVersion() != admissionv1.SchemeGroupVersion.String() {
			err = fmt.Errorf("a %s of %s: there is only v1", document.GetKind(), document.GetAPIVersion())
		}
		if err != nil {
			return fmt.Errorf("envtest: reading a webhook configuration: %w", err)
		}
	}
	return nil
}

// readManifests reads the documents of files and folders.
func readManifests(paths []string, mayBeMissing bool) (documents []*unstructured.Unstructured, err error) {
	var source manifests.Source
	for _, path := range paths {
		files, err := source.Files(path)
		if errors.Is(err, fs.ErrNotExist) && mayBeMissing {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("envtest: %w", err)
		}
		for _, file := range files {
			if !slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(file)) {
				continue
			}
			read, err := source.Decode(file)
			if err != nil {
				return nil, fmt.Errorf("envtest: %s: %w", file, err)
			}
			documents = append(documents, read...)
		}
	}
	return documents, nil
}

// decodeInto converts a document to a Go object.
func decodeInto(document *unstructured.Unstructured, obj any) error {
	text, err := json.Marshal(document.Object)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, obj)
}
