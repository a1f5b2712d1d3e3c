package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// WithCRDs installs CustomResourceDefinitions. A path is a manifest, or a folder of which all files are read that end
// in .yaml, .yml or .json, without its subfolders; documents of other kinds are left out. Start returns when the
// definitions are established: their kinds can be used at once. It is an error if a path has no definition.
func WithCRDs(paths ...string) Option {
	return func(o *options) { o.crds = append(slices.Clone(o.crds), paths...) }
}

var definitionsResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
	Resource: "customresourcedefinitions"}

// installCRDs applies the definitions of all paths and waits until they are established.
func installCRDs(ctx context.Context, config *rest.Config, paths []string) error {
	var crds []*unstructured.Unstructured
	for _, path := range paths {
		read, err := readCRDs(path)
		if err != nil {
			return fmt.Errorf("reading CustomResourceDefinitions: %w", err)
		}
		crds = append(crds, read...)
	}
	if len(crds) == 0 {
		return nil
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	definitions := client.Resource(definitionsResource)
	for i, crd := range crds {
		crds[i], err = definitions.Apply(ctx, crd.GetName(), crd,
			metav1.ApplyOptions{FieldManager: "testenv", Force: true})
		if err != nil {
			return fmt.Errorf("installing the CustomResourceDefinition %s: %w", crd.GetName(), err)
		}
	}
	for _, crd := range crds {
		if err := awaitEstablished(ctx, definitions, crd); err != nil {
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

// readCRDs reads the definitions of a file or a folder.
func readCRDs(path string) (crds []*unstructured.Unstructured, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	files := []string{path}
	if info.IsDir() {
		if files, err = manifests(path); err != nil {
			return nil, err
		}
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		read, err := decodeCRDs(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		crds = append(crds, read...)
	}
	if len(crds) == 0 {
		return nil, fmt.Errorf("%s has no CustomResourceDefinition", path)
	}
	return crds, nil
}

// manifests are the files of a folder that hold YAML or JSON.
func manifests(folder string) (files []string, err error) {
	entries, err := os.ReadDir(folder)
	for _, e := range entries {
		if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) && e.Type()&fs.ModeDir == 0 {
			files = append(files, filepath.Join(folder, e.Name()))
		}
	}
	return files, err
}

// decodeCRDs reads the definitions among the documents of a manifest.
func decodeCRDs(data []byte) (crds []*unstructured.Unstructured, err error) {
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		crd := &unstructured.Unstructured{}
		switch err := documents.Decode(&crd.Object); {
		case errors.Is(err, io.EOF):
			return crds, nil
		case err != nil:
			return nil, err
		}
		if crd.GetKind() == "CustomResourceDefinition" && crd.GroupVersionKind().Group == definitionsResource.Group {
			crds = append(crds, crd)
		}
	}
}
