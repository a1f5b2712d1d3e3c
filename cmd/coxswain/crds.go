package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
	Resource: "customresourcedefinitions"}

// installCRDs applies the CustomResourceDefinitions of manifests and of folders of manifests, and returns when their
// kinds are served.
func installCRDs(ctx context.Context, config *rest.Config, paths []string) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	var names []string
	for _, path := range paths {
		crds, err := readCRDs(path)
		if err != nil {
			return err
		}
		if len(crds) == 0 {
			return fmt.Errorf("%s has no CustomResourceDefinition", path)
		}
		for _, crd := range crds {
			o := metav1.ApplyOptions{FieldManager: "coxswain", Force: true}
			if _, err := client.Resource(definitions).Apply(ctx, crd.GetName(), crd, o); err != nil {
				return err
			}
			names = append(names, crd.GetName())
		}
	}
	for _, name := range names {
		served := func(ctx context.Context) (bool, error) {
			crd, err := client.Resource(definitions).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			return isTrue(crd, "Established"), isRejected(crd)
		}
		if err := wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, time.Minute, true, served); err != nil {
			return fmt.Errorf("%s is not served: %w", name, err)
		}
	}
	return nil
}

func isTrue(crd *unstructured.Unstructured, condition string) bool {
	return conditionOf(crd, condition)["status"] == "True"
}

// isRejected returns why a definition cannot have its names.
func isRejected(crd *unstructured.Unstructured) error {
	if c := conditionOf(crd, "NamesAccepted"); c["status"] == "False" {
		return fmt.Errorf("its names are not accepted: %v", c["message"])
	}
	return nil
}

func conditionOf(crd *unstructured.Unstructured, kind string) map[string]any {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == kind {
			return c
		}
	}
	return nil
}

// readCRDs reads the definitions of a manifest, or of all manifests directly in a folder; other documents are left out.
func readCRDs(path string) (crds []*unstructured.Unstructured, err error) {
	files := []string{path}
	if entries, err := os.ReadDir(path); err == nil {
		files = nil
		for _, e := range entries {
			if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) && !e.IsDir() {
				files = append(files, filepath.Join(path, e.Name()))
			}
		}
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096); ; {
			crd := &unstructured.Unstructured{}
			if err := documents.Decode(&crd.Object); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			if crd.GetKind() == "CustomResourceDefinition" && crd.GroupVersionKind().Group == definitions.Group {
				crds = append(crds, crd)
			}
		}
	}
	return crds, nil
}
