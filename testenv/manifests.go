package testenv

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// manifests is where objects come from: files and folders, or Go.
type manifests struct {
	fsys    fs.FS // of the paths; nil is the machine's
	paths   []string
	objects []*unstructured.Unstructured
}

// read returns the objects for which wanted is true. It is an error if one of the paths has none; what is their name in
// it.
func (m *manifests) read(what string, wanted func(*unstructured.Unstructured) bool) (
	found []*unstructured.Unstructured, err error) {
	for _, o := range m.objects {
		found = append(found, o.DeepCopy())
	}
	for _, at := range m.paths {
		before := len(found)
		files, err := m.files(at)
		if err != nil {
			return nil, fmt.Errorf("reading a %s: %w", what, err)
		}
		for _, file := range files {
			objects, err := m.decode(file)
			if err != nil {
				return nil, fmt.Errorf("reading a %s: %s: %w", what, file, err)
			}
			for _, o := range objects {
				if wanted(o) {
					found = append(found, o)
				}
			}
		}
		if len(found) == before {
			return nil, fmt.Errorf("%s has no %s", at, what)
		}
	}
	return found, nil
}

// files are the manifests of a path: the file itself, or those of a folder without its subfolders.
func (m *manifests) files(at string) (files []string, err error) {
	stat, list, join := os.Stat, os.ReadDir, filepath.Join
	if m.fsys != nil {
		stat = func(name string) (fs.FileInfo, error) { return fs.Stat(m.fsys, name) }
		list = func(name string) ([]fs.DirEntry, error) { return fs.ReadDir(m.fsys, name) }
		join = path.Join
	}
	info, err := stat(at)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{at}, nil
	}
	entries, err := list(at)
	for _, e := range entries {
		if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) && !e.IsDir() {
			files = append(files, join(at, e.Name()))
		}
	}
	return files, err
}

// decode reads the documents of a file.
func (m *manifests) decode(file string) (objects []*unstructured.Unstructured, err error) {
	read := os.ReadFile
	if m.fsys != nil {
		read = func(name string) ([]byte, error) { return fs.ReadFile(m.fsys, name) }
	}
	data, err := read(file)
	if err != nil {
		return nil, err
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		o := &unstructured.Unstructured{}
		switch err := documents.Decode(&o.Object); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, err
		}
		objects = append(objects, o)
	}
}

// asDocument is a Go object as a manifest would have it.
func asDocument(obj runtime.Object, apiVersion, kind string) *unstructured.Unstructured {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		panic(fmt.Sprintf("testenv: a %s that is no document: %v", kind, err)) // the API's types all are
	}
	o := &unstructured.Unstructured{Object: content}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	delete(content, "status")
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	return o
}
