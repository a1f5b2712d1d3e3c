package admission

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// Config contains each plugin's configuration from an AdmissionConfiguration, by the plugin's name, as JSON.
type Config map[string]json.RawMessage

// ReadConfig reads the file of --admission-control-config-file: an AdmissionConfiguration of
// apiserver.config.k8s.io/v1. It contains the configuration of each plugin, or names a file with it by a path
// relative to itself.
func ReadConfig(path string) (Config, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("admission configuration: %w", err)
	}
	var file struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Plugins    []struct {
			Name          string          `json:"name"`
			Path          string          `json:"path"`
			Configuration json.RawMessage `json:"configuration"`
		} `json:"plugins"`
	}
	if err := yaml.UnmarshalStrict(content, &file); err != nil {
		return nil, fmt.Errorf("admission configuration %s: %w", path, err)
	}
	if file.APIVersion != "apiserver.config.k8s.io/v1" || file.Kind != "AdmissionConfiguration" {
		return nil, fmt.Errorf("admission configuration %s: is %s %q, not apiserver.config.k8s.io/v1 "+
			"AdmissionConfiguration", path, file.APIVersion, file.Kind)
	}
	config := Config{}
	for _, p := range file.Plugins {
		if _, err := (Options{Enable: []string{p.Name}}).Names(); err != nil {
			return nil, fmt.Errorf("admission configuration %s: %w", path, err)
		}
		config[p.Name] = p.Configuration
		if p.Path == "" {
			continue
		}
		if !filepath.IsAbs(p.Path) {
			p.Path = filepath.Join(filepath.Dir(path), p.Path)
		}
		if content, err = os.ReadFile(p.Path); err != nil {
			return nil, fmt.Errorf("admission configuration of %s: %w", p.Name, err)
		}
		if config[p.Name], err = yaml.YAMLToJSON(content); err != nil {
			return nil, fmt.Errorf("admission configuration of %s: %w", p.Name, err)
		}
	}
	return config, nil
}

// into decodes a plugin's configuration, if it has one.
func (c Config) into(plugin string, config any) error {
	if len(c[plugin]) == 0 {
		return nil
	}
	return json.Unmarshal(c[plugin], config)
}
