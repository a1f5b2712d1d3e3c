package load

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// certificates is the definition of the custom resources of the workloads, without descriptions.
//
//go:embed certificates.yaml
var certificates []byte

// described is how long the descriptions are that a definition gets: with them it is as large as cert-manager's own.
const described = 400

// definition is the definition as JSON, with descriptions of a length, under another name. The name is that of a
// resource, without its group. withRules keeps the rules in CEL.
func definition(group, plural, kind string, describe int, withRules bool) ([]byte, error) {
	var crd map[string]any
	if err := yaml.Unmarshal(certificates, &crd); err != nil {
		return nil, fmt.Errorf("certificates.yaml: %w", err)
	}
	crd["metadata"] = map[string]any{"name": plural + "." + group}
	spec := crd["spec"].(map[string]any)
	spec["group"], spec["names"] = group, map[string]any{"plural": plural, "kind": kind}
	text := strings.Repeat("A description that explains the field to its users. ", describe/50+1)[:describe]
	dress(spec["versions"], text, withRules)
	return json.Marshal(crd)
}

// dress gives each schema with a type a description, and takes its rules unless it keeps them.
func dress(value any, text string, withRules bool) {
	switch value := value.(type) {
	case map[string]any:
		if _, isSchema := value["type"].(string); isSchema && value["jsonPath"] == nil {
			value["description"] = text
		}
		if !withRules {
			delete(value, "x-kubernetes-validations")
		}
		for _, v := range value {
			dress(v, text, withRules)
		}
	case []any:
		for _, v := range value {
			dress(v, text, withRules)
		}
	}
}
