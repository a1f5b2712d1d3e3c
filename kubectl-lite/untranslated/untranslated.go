// Package untranslated keeps k8s.io/kubectl from loading its translations. Its commands translate their help
// texts while their packages are initialised, and reading the catalogue takes longer than everything else a
// short command does. Go initialises packages whose imports are ready in the order of their paths, so this
// one, which imports nothing but the catalogue, comes before all of k8s.io/kubectl/pkg/cmd.
package untranslated

import "k8s.io/kubectl/pkg/util/i18n"

func init() {
	// It fails only where the translations have been loaded, which costs time and nothing else.
	_ = i18n.SetLoadTranslationsFunc(func() error { return nil })
}
