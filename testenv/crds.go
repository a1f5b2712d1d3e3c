package testenv

import (
	"io/fs"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/coxswain-dev/coxswain/internal/client/manifests"
)

// WithCRDs installs CustomResourceDefinitions. A path is a manifest, or a folder: then all files that end in .yaml,
// .yml or .json are read, without its subfolders. Documents of other kinds are ignored. StartEnvironment returns
// when the definitions are established, so that their kinds can be used at once. It is an error if a path has no
// definition.
func WithCRDs(paths ...string) Option { return withCRDs(manifests.Source{Paths: paths}) }

// WithCRDsFrom is WithCRDs for paths of a file system, an embed.FS for example.
func WithCRDsFrom(fsys fs.FS, paths ...string) Option {
	return withCRDs(manifests.Source{FS: fsys, Paths: paths})
}

// WithCRDObjects is WithCRDs for definitions made in Go.
func WithCRDObjects(crds ...*apiextensionsv1.CustomResourceDefinition) Option {
	return withCRDs(manifests.FromGo(apiextensionsv1.SchemeGroupVersion, manifests.Definition, crds...))
}

func withCRDs(m manifests.Source) Option {
	return func(o *options) { o.crds = append(slices.Clip(o.crds), m) }
}

// installCRDs applies the definitions of the options and waits until they are established.
func (e *Environment) installCRDs() error {
	var crds []*unstructured.Unstructured
	for _, m := range e.options.crds {
		read, err := m.Read(manifests.Definition, manifests.IsDefinition)
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
	for _, crd := range crds {
		e.convertByWebhook(crd)
	}
	return manifests.InstallDefinitions(e.ctx, client, "testenv", crds)
}
