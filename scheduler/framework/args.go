package framework

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/json"
)

// Args are the arguments of a plugin in a profile's pluginConfig.
type Args struct {
	// Raw is the JSON of the arguments; empty if the configuration has none.
	Raw []byte
	// Path is the field path of the arguments, for error messages.
	Path *field.Path
}

// Decode decodes the arguments over the defaults that into holds. An unknown or duplicate field is an
// error.
func (a Args) Decode(into any) error {
	if len(a.Raw) == 0 {
		return nil
	}
	strict, err := json.UnmarshalStrict(a.Raw, into)
	if err == nil {
		err = errors.Join(strict...)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", a.Path, err)
	}
	return nil
}
