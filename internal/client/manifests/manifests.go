// Package manifests reads objects as people write them: in files and folders of YAML or JSON, or in Go. Programs
// and tests use it. It also installs CustomResourceDefinitions and waits until they are established, since their
// kinds can be used only then. It imports no other package of this project.
//
//	manifests.go    Source: files, folders and Go objects
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

// Source names objects: in files and folders, or in Go. A file may contain several documents. Of a folder, all
// files that end in .yaml, .yml or .json are read, without its subfolders.
type Source struct { // the file system of the paths; nil is the machine's
	FS      fs.FS // of the paths; nil is the machine's
	Paths   []string
	Objects []*unstructured.Unstructured
}

// FromGo returns a Source of objects of one kind.
func FromGo[T runtime.Object](version schema.GroupVersion, kind string, objects ...T) Source {
	var s Source
	for _, obj := range objects {
		s.Objects = append(s.Objects, asDocument(obj, version.String(), kind))
	}
	return s
}

// Read returns all Go objects, and the objects in the paths that match accepts. noun names such an object in
// errors. It is an error if one of the paths has none.
func (s Source) Read(noun string, match func(*unstructured.Unstructured) bool) (
	found []*unstructured.Unstructured, err error) {
	for _, o := range s.Objects {
		found = append(found, o.DeepCopy())
	}
	for _, target := range s.Paths {
		before := len(found)
		files, err := s.Files(target)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", noun, err)
		}
		for _, file := range files {
			objects, err := s.Decode(file)
			if err != nil {
				return nil, fmt.Errorf("read %s: %s: %w", noun, file, err)
			}
			for _, o := range objects {
				if match(o) {
					found = append(found, o)
				}
			}
		}
		if len(found) == before {
			return nil, fmt.Errorf("%s has no %s", target, noun)
		}
	}
	return found, nil
}

// Files returns the manifests of a path: the file itself, or the files of a folder without its subfolders.
func (s Source) Files(target string) (files []string, err error) {
	stat, list, join := os.Stat, os.ReadDir, filepath.Join
	if s.FS != nil {
		stat = func(name string) (fs.FileInfo, error) { return fs.Stat(s.FS, name) }
		list = func(name string) ([]fs.DirEntry, error) { return fs.ReadDir(s.FS, name) }
		join = path.Join
	}
	info, err := stat(target)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{target}, nil
	}
	entries, err := list(target)
	for _, e := range entries {
		if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) && !e.IsDir() {
			files = append(files, join(target, e.Name()))
		}
	}
	return files, err
}

// Decode reads all documents of a file.
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

// asDocument converts a Go object to the document that a manifest would contain.
func asDocument(obj runtime.Object, apiVersion, kind string) *unstructured.Unstructured {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		panic(fmt.Sprintf("manifests: a %s that is no document: %v", kind, err)) // the API's types all are
	} // all types of the API are documents
	o := &unstructured.Unstructured{Object: content}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	delete(content, "status")
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	return o
}
