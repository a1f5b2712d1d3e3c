// Package configfile reads files of kube-apiserver's flags that hold an object of apiserver.config.k8s.io. Decode is
// strict; a Follower puts a changed file in force while the server runs, and leaves what was in force if the new one
// cannot be used. The package knows no kind: its callers say what a file means.
package configfile

import (
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Group is the API group of the kinds.
const Group = "apiserver.config.k8s.io"

// maxSize bounds a file, in bytes.
const maxSize = 4 << 20

// Decode decodes an object in YAML or JSON, which must be of the kind in one of the versions. A field that is unknown
// or given twice is an error.
func Decode(content []byte, kind string, versions []string, into any) error {
	switch {
	case len(content) == 0:
		return errors.New("empty config data")
	case len(content) > maxSize:
		return fmt.Errorf("has more than %d bytes", maxSize)
	}
	doc, err := yaml.YAMLToJSONStrict(content)
	if err != nil {
		return fmt.Errorf("strict decoding error: %w", err)
	}
	var is struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(doc, &is); err != nil {
		return err
	}
	known := slices.ContainsFunc(versions, func(v string) bool { return is.APIVersion == Group+"/"+v })
	if is.Kind != kind || !known {
		return fmt.Errorf("is %s %q, not %s/%s %s", is.APIVersion, is.Kind, Group, versions[0], kind)
	}
	faults, err := json.UnmarshalStrict(doc, into)
	if err := errors.Join(append(faults, err)...); err != nil {
		return fmt.Errorf("strict decoding error: %w", err)
	}
	return nil
}
