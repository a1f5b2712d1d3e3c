// Package configfile reads files of kube-apiserver's flags that hold an object of apiserver.config.k8s.io. Decode is
// strict. A Follower applies a changed file while the server runs; if the new content cannot be used, the last one
// stays in force. The package knows no kind: its callers interpret the files.
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
	var header struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(doc, &header); err != nil {
		return err
	}
	supported := slices.ContainsFunc(versions, func(v string) bool { return header.APIVersion == Group+"/"+v })
	if header.Kind != kind || !supported {
		return fmt.Errorf("is %s %q, not %s/%s %s", header.APIVersion, header.Kind, Group, versions[0], kind)
	}
	faults, err := json.UnmarshalStrict(doc, into)
	if err := errors.Join(append(faults, err)...); err != nil {
		return fmt.Errorf("strict decoding error: %w", err)
	}
	return nil
}
