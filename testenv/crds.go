package testenv

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// WithCRDs installs CustomResourceDefinitions. A path is a manifest, or a folder of which all files are read that end
// in .yaml, .yml or .json, without its subfolders; documents of other kinds are left out. StartEnvironment returns when
// the definitions are established: their kinds can be used at once. It is an error if a path has no definition.
func WithCRDs(paths ...string) Option { return withCRDs(manifests{paths: paths}) }

// WithCRDsFrom is WithCRDs for paths of a file system, an embed.FS for example.
func WithCRDsFrom(fsys fs.FS, paths ...string) Option {
	return withCRDs(manifests{fsys: fsys, paths: paths})
}

// WithCRDObjects is WithCRDs for definitions made in Go.
func WithCRDObjects(crds ...*apiextensionsv1.CustomResourceDefinition) Option {
	var m manifests
	for _, crd := range crds {
		m.objects = append(m.objects, asDocument(crd, apiextensionsv1.SchemeGroupVersion.String(),
			"CustomResourceDefinition"))
	}
	return withCRDs(m)
}

func withCRDs(m manifests) Option {
	return func(o *options) { o.crds = append(slices.Clip(o.crds), m) }
}

var definitionsResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
	Resource: "customresourcedefinitions"}

func isDefinition(o *unstructured.Unstructured) bool {
	return o.GetKind() == "CustomResourceDefinition" && o.GroupVersionKind().Group == definitionsResource.Group
}

// installCRDs applies the definitions of the options and waits until they are established.
func (e *Environment) installCRDs() error {
	var crds []*unstructured.Unstructured
	for _, m := range e.options.crds {
		read, err := m.read("CustomResourceDefinition", isDefinition)
		if err != nil {
			return err
		}
		crds = append(crds, read...)
	}
	if len(crds) == 0 {
		return nil
	}
	client, done, err := e.dynamicClient()
	if err != nil {
		return err
	}
	defer done()
	definitions := client.Resource(definitionsResource)
	for i, crd := range crds {
		e.convertByWebhook(crd)
		crds[i], err = definitions.Apply(e.ctx, crd.GetName(), crd,
			metav1.ApplyOptions{FieldManager: "testenv", Force: true})
		if err != nil {
			return fmt.Errorf("installing the CustomResourceDefinition %s: %w", crd.GetName(), err)
		}
	}
	for _, crd := range crds {
		if err := awaitEstablished(e.ctx, definitions, crd); err != nil {
			return fmt.Errorf("waiting for the CustomResourceDefinition %s: %w", crd.GetName(), err)
		}
	}
	return nil
}

// awaitEstablished waits for an applied definition. One whose names another one has is an error.
func awaitEstablished(ctx context.Context, definitions dynamic.ResourceInterface,
	crd *unstructured.Unstructured) error {
	changes, err := definitions.Watch(ctx, metav1.ListOptions{ResourceVersion: crd.GetResourceVersion(),
		FieldSelector: fields.OneTermEqualSelector("metadata.name", crd.GetName()).String()})
	if err != nil {
		return err
	}
	defer changes.Stop()
	for {
		if established(crd) {
			return nil
		}
		if c := condition(crd, "NamesAccepted"); c["status"] == "False" {
			return fmt.Errorf("its names are not accepted: %v", c["message"])
		}
		change, open := <-changes.ResultChan()
		if !open {
			return errors.Join(errors.New("the watch ended"), ctx.Err())
		}
		now, ok := change.Object.(*unstructured.Unstructured)
		if !ok {
			return apierrors.FromObject(change.Object)
		}
		crd = now
	}
}

func established(crd *unstructured.Unstructured) bool {
	return condition(crd, "Established")["status"] == "True"
}

// condition is a definition's condition of that type, empty if there is none.
func condition(crd *unstructured.Unstructured, kind string) map[string]any {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == kind {
			return c
		}
	}
	return nil
}
