package load

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// certificates is the definition of the workloads' custom resources, without descriptions.
//
//go:embed certificates.yaml
var certificates []byte

// descriptionLength is the length of a field's description: it makes a definition as large as cert-manager's own.
const descriptionLength = 400

// definition returns the definition as JSON, for another group, resource and kind, with descriptions of the given
// length. Without withRules it removes the CEL rules.
func definition(group, plural, kind string, descriptionLength int, withRules bool) ([]byte, error) {
	var crd map[string]any
	if err := yaml.Unmarshal(certificates, &crd); err != nil {
		return nil, fmt.Errorf("certificates.yaml: %w", err)
	}
	crd["metadata"] = map[string]any{"name": plural + "." + group}
	spec := crd["spec"].(map[string]any)
	spec["group"], spec["names"] = group, map[string]any{"plural": plural, "kind": kind}
	const sentence = "A description that explains the field to its users. "
	text := strings.Repeat(sentence, descriptionLength/50+1)[:descriptionLength]
	describe(spec["versions"], text, withRules)
	return json.Marshal(crd)
}

// describe adds a description to each schema with a type and, without withRules, removes its rules.
func describe(value any, text string, withRules bool) {
	switch value := value.(type) {
	case map[string]any:
		if _, isSchema := value["type"].(string); isSchema && value["jsonPath"] == nil {
			value["description"] = text
		}
		if !withRules {
			delete(value, "x-kubernetes-validations")
		}
		for _, v := range value {
			describe(v, text, withRules)
		}
	case []any:
		for _, v := range value {
			describe(v, text, withRules)
		}
	}
}
