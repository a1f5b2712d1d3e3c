// Package untranslated keeps k8s.io/kubectl from loading its translations. The packages of its commands translate their
// help texts while they are initialised, and reading the catalogue takes longer than the rest of a short command. Of
// the packages with initialised imports, Go initialises the one with the first path. This package imports only the
// catalogue and therefore comes before all of k8s.io/kubectl/pkg/cmd.
package untranslated

import "k8s.io/kubectl/pkg/util/i18n"

func init() {
	// It only fails if the translations are loaded already, which costs time but has no other effect.
	_ = i18n.SetLoadTranslationsFunc(func() error { return nil })
}
