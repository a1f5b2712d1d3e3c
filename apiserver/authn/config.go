package authn

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// AnonymousConfig selects the requests without a credential that are accepted as those of Anonymous.
type AnonymousConfig struct {
	Enabled bool `json:"enabled"`
	// Conditions list the paths of these requests, one of which must equal the request's; none means
	// all paths.
	Conditions []AnonymousCondition `json:"conditions"`
}

// AnonymousCondition is one path.
type AnonymousCondition struct {
	Path string `json:"path"`
}

// Paths returns the paths of the conditions.
func (c AnonymousConfig) Paths() []string {
	paths := make([]string, len(c.Conditions))
	for i, condition := range c.Conditions {
		paths[i] = condition.Path
	}
	return paths
}

// configVersions are the versions of apiserver.config.k8s.io that have an AuthenticationConfiguration.
// The fields that are read are the same in all of them.
var configVersions = []string{
	"apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1",
}

// ReadConfig reads the file of --authentication-config: an AuthenticationConfiguration. Only its
// anonymous part is supported, and anything else in it is an error. The result is nil if the file has
// no such part.
// https://kubernetes.io/docs/reference/config-api/apiserver-config.v1/#apiserver-k8s-io-v1-AuthenticationConfiguration
func ReadConfig(path string) (*AnonymousConfig, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("authentication configuration: %w", err)
	}
	anonymous, err := parseConfig(content)
	if err != nil {
		return nil, fmt.Errorf("authentication configuration %s: %w", path, err)
	}
	return anonymous, nil
}

func parseConfig(content []byte) (*AnonymousConfig, error) {
	var file struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		JWT        []json.RawMessage `json:"jwt"`
		Anonymous  *AnonymousConfig  `json:"anonymous"`
	}
	if len(content) == 0 {
		return nil, errors.New("empty config data")
	}
	if err := yaml.UnmarshalStrict(content, &file); err != nil {
		return nil, err
	}
	anonymous := file.Anonymous
	switch {
	case file.Kind != "AuthenticationConfiguration" || !slices.Contains(configVersions, file.APIVersion):
		return nil, fmt.Errorf("is %s %q, not %s AuthenticationConfiguration", file.APIVersion, file.Kind,
			configVersions[0])
	case len(file.JWT) > 0:
		return nil, field.Forbidden(field.NewPath("jwt"),
			"is not supported here: configure one OpenID provider with the --oidc-* flags")
	case anonymous != nil && !anonymous.Enabled && len(anonymous.Conditions) > 0:
		return nil, field.Invalid(field.NewPath("anonymous", "conditions"), anonymous.Conditions,
			"enabled should be set to true when conditions are defined")
	}
	return anonymous, nil
}
