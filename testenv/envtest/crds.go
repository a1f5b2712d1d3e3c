package envtest

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
)

// How long InstallCRDs waits for definitions and webhooks, and how often it looks, if the options do not set it.
const (
	defaultMaxTime      = 10 * time.Second
	defaultPollInterval = 10 * time.Millisecond
)

// CRDInstallOptions select the definitions to install.
type CRDInstallOptions struct {
	// Scheme is Environment's.
	Scheme *runtime.Scheme
	// Paths are files and folders. Of a folder, files that end in .json, .yaml or .yml are read.
	Paths []string
	// CRDs are definitions made in Go.
	CRDs []*apiextensionsv1.CustomResourceDefinition
	// ErrorIfPathMissing makes a missing path an error; otherwise it is ignored.
	ErrorIfPathMissing bool
	// MaxTime limits the wait for the kinds, which are checked every PollInterval; 10 s and 10 ms if zero.
	MaxTime, PollInterval time.Duration
	// CleanUpAfterUse makes Stop delete the definitions.
	CleanUpAfterUse bool
	// WebhookOptions contain the address of the conversion webhook.
	WebhookOptions WebhookInstallOptions
}

// InstallCRDs creates or updates definitions, and returns them when their kinds can be used.
func InstallCRDs(config *rest.Config, options CRDInstallOptions) (
	[]*apiextensionsv1.CustomResourceDefinition, error) {
	if err := ReadCRDFiles(&options); err != nil {
		return nil, err
	}
	if err := convertByWebhook(options.CRDs, options.Scheme, &options.WebhookOptions); err != nil {
		return nil, err
	}
	if err := CreateCRDs(config, options.CRDs); err != nil {
		return options.CRDs, err
	}
	return options.CRDs, WaitForCRDs(config, options.CRDs, options)
}

// ReadCRDFiles adds the definitions of options.Paths to options.CRDs. The last one of several with the same name
// remains.
func ReadCRDFiles(options *CRDInstallOptions) error {
	documents, err := readManifests(options.Paths, !options.ErrorIfPathMissing)
	if err != nil {
		return err
	}
	all := slices.Clone(options.CRDs)
	for _, document := range documents {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := decodeInto(document, crd); err != nil {
			return fmt.Errorf("envtest: reading a CustomResourceDefinition: %w", err)
		}
		if crd.Kind == "CustomResourceDefinition" && crd.Spec.Names.Kind != "" && crd.Spec.Group != "" {
			all = append(all, crd)
		}
	}
	options.CRDs = nil
	for i, crd := range all {
		if !slices.ContainsFunc(all[i+1:], func(later *apiextensionsv1.CustomResourceDefinition) bool {
			return later.Name == crd.Name
		}) {
			options.CRDs = append(options.CRDs, crd.DeepCopy())
		}
	}
	return nil
}

// CreateCRDs creates or updates definitions.
func CreateCRDs(config *rest.Config, crds []*apiextensionsv1.CustomResourceDefinition) error {
	if len(crds) == 0 {
		return nil
	}
	clients, err := clientset.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("envtest: %w", err)
	}
	definitions, ctx := clients.ApiextensionsV1().CustomResourceDefinitions(), context.Background()
	for _, crd := range crds {
		crd.ResourceVersion = "" // it is another control plane's, if the suite started one before
		created, err := definitions.Create(ctx, crd, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
				now, err := definitions.Get(ctx, crd.Name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				crd.ResourceVersion = now.ResourceVersion
				created, err = definitions.Update(ctx, crd, metav1.UpdateOptions{})
				return err
			})
		}
		if err != nil {
			return fmt.Errorf("envtest: the CustomResourceDefinition %s: %w", crd.Name, err)
		}
		created.DeepCopyInto(crd)
	}
	return nil
}

// WaitForCRDs returns when discovery lists the kinds of all definitions.
func WaitForCRDs(config *rest.Config, crds []*apiextensionsv1.CustomResourceDefinition,
	options CRDInstallOptions) error {
	waiting := map[schema.GroupVersion][]string{}
	for _, crd := range crds {
		for _, version := range crd.Spec.Versions {
			gv := schema.GroupVersion{Group: crd.Spec.Group, Version: version.Name}
			if version.Served {
				waiting[gv] = append(waiting[gv], crd.Spec.Names.Plural)
			}
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("envtest: %w", err)
	}
	err = poll(options.PollInterval, options.MaxTime, func() bool {
		for gv, resources := range waiting {
			list, err := client.ServerResourcesForGroupVersion(gv.String())
			if err != nil {
				return false
			}
			for _, r := range list.APIResources {
				resources = slices.DeleteFunc(resources, func(name string) bool { return name == r.Name })
			}
			if waiting[gv] = resources; len(resources) > 0 {
				return false
			}
			delete(waiting, gv)
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("envtest: waiting for the kinds %v: %w", waiting, err)
	}
	return nil
}

// poll waits until a condition holds.
func poll(interval, patience time.Duration, holds func() bool) error {
	if interval == 0 {
		interval = defaultPollInterval
	}
	if patience == 0 {
		patience = defaultMaxTime
	}
	return wait.PollUntilContextTimeout(context.Background(), interval, patience, true,
		func(context.Context) (bool, error) { return holds(), nil })
}

// UninstallCRDs deletes definitions. Missing ones are no error.
func UninstallCRDs(config *rest.Config, options CRDInstallOptions) error {
	if err := ReadCRDFiles(&options); err != nil {
		return err
	}
	clients, err := clientset.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("envtest: %w", err)
	}
	for _, crd := range options.CRDs {
		err := clients.ApiextensionsV1().CustomResourceDefinitions().Delete(context.Background(), crd.Name,
			metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("envtest: the CustomResourceDefinition %s: %w", crd.Name, err)
		}
	}
	return nil
}

// convertByWebhook points the conversion of definitions with convertible Go types to the webhook server, and
// removes the conversion of all others: the API server would reject one without an address.
func convertByWebhook(crds []*apiextensionsv1.CustomResourceDefinition, types *runtime.Scheme,
	hooks *WebhookInstallOptions) error {
	if len(hooks.LocalServingCAData) == 0 {
		return nil
	}
	if types == nil {
		types = scheme.Scheme
	}
	for _, crd := range crds {
		kind := schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}
		if crd.Spec.PreserveUnknownFields {
			continue
		}
		if !hooks.IgnoreSchemeConvertible && !convertible(types, kind) {
			crd.Spec.Conversion = nil
			continue
		}
		crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
			Strategy: apiextensionsv1.WebhookConverter,
			Webhook: &apiextensionsv1.WebhookConversion{
				ConversionReviewVersions: []string{"v1", "v1beta1"},
				ClientConfig: &apiextensionsv1.WebhookClientConfig{
					URL: new("https://" + hooks.address() + "/convert"), CABundle: hooks.LocalServingCAData},
			},
		}
	}
	return nil
}

// convertible reports whether one version of a kind is a Hub and all others can be converted to it and from it. The
// interfaces are controller-runtime's, recognized by the names of their methods.
func convertible(types *runtime.Scheme, kind schema.GroupKind) bool {
	hubs, spokes, others := 0, 0, 0
	for _, gv := range types.VersionsForGroupKind(kind) {
		if gv.Version == runtime.APIVersionInternal {
			continue
		}
		obj, err := types.New(gv.WithKind(kind.Kind))
		has := func(method string) bool { return err == nil && reflect.ValueOf(obj).MethodByName(method).IsValid() }
		switch {
		case has("Hub"):
			hubs++
		case has("ConvertTo") && has("ConvertFrom"):
			spokes++
		default:
			others++
		}
	}
	return hubs == 1 && spokes > 0 && others == 0
}
