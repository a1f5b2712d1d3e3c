// Package manifests has objects as people write them down: in files and folders of YAML or JSON, or in Go. It reads
// them for programs and tests alike, and installs those that are definitions, whose kinds can be used only when they
// are established. It imports nothing of this project.
//
//	manifests.go    Source: where objects come from
//	definitions.go  CustomResourceDefinitions
package manifests

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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Source is where objects come from: files and folders, or Go. A file may have several documents; of a folder all files
// are read that end in .yaml, .yml or .json, without its subfolders.
type Source struct {
	FS      fs.FS // of the paths; nil is the machine's
	Paths   []string
	Objects []*unstructured.Unstructured
}

// FromGo is a Source of objects of one kind.
func FromGo[T runtime.Object](version schema.GroupVersion, kind string, objects ...T) Source {
	var s Source
	for _, obj := range objects {
		s.Objects = append(s.Objects, asDocument(obj, version.String(), kind))
	}
	return s
}

// Read returns the objects, of those in the paths the ones for which wanted is true. It is an error if one of the paths
// has none; what is their name in it.
func (s Source) Read(what string, wanted func(*unstructured.Unstructured) bool) (
	found []*unstructured.Unstructured, err error) {
	for _, o := range s.Objects {
		found = append(found, o.DeepCopy())
	}
	for _, at := range s.Paths {
		before := len(found)
		files, err := s.Files(at)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", what, err)
		}
		for _, file := range files {
			objects, err := s.Decode(file)
			if err != nil {
				return nil, fmt.Errorf("read %s: %s: %w", what, file, err)
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

// Files are the manifests of a path: the file itself, or those of a folder without its subfolders.
func (s Source) Files(at string) (files []string, err error) {
	stat, list, join := os.Stat, os.ReadDir, filepath.Join
	if s.FS != nil {
		stat = func(name string) (fs.FileInfo, error) { return fs.Stat(s.FS, name) }
		list = func(name string) ([]fs.DirEntry, error) { return fs.ReadDir(s.FS, name) }
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

// Decode reads the documents of a file.
func (s Source) Decode(file string) (objects []*unstructured.Unstructured, err error) {
	read := os.ReadFile
	if s.FS != nil {
		read = func(name string) ([]byte, error) { return fs.ReadFile(s.FS, name) }
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
		panic(fmt.Sprintf("manifests: a %s that is no document: %v", kind, err)) // the API's types all are
	}
	o := &unstructured.Unstructured{Object: content}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	delete(content, "status")
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	return o
}
