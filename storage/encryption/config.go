package encryption

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Configuration is an EncryptionConfiguration of apiserver.config.k8s.io/v1.
// https://kubernetes.io/docs/reference/config-api/apiserver-config.v1/#apiserver-config-k8s-io-v1-EncryptionConfiguration
type Configuration struct {
	metav1.TypeMeta `json:",inline"`
	Resources       []ResourceConfiguration `json:"resources"`
}

// ResourceConfiguration configures how objects of resources are stored. The first provider writes, all providers read.
type ResourceConfiguration struct {
	// Resources are "secrets", "deployments.apps", "*." for the core group, "*.apps" for a group, "*.*" for all.
	Resources []string                `json:"resources"`
	Providers []ProviderConfiguration `json:"providers"`
}

// ProviderConfiguration is one provider. Exactly one of its fields is set.
type ProviderConfiguration struct {
	AESGCM    *Keys     `json:"aesgcm,omitempty"`
	AESCBC    *Keys     `json:"aescbc,omitempty"`
	Secretbox *Keys     `json:"secretbox,omitempty"`
	Identity  *struct{} `json:"identity,omitempty"`
	KMS       *KMS      `json:"kms,omitempty"`
}

// Keys are the keys of a provider. The first key writes, all keys read.
type Keys struct {
	Keys []Key `json:"keys"`
}

// Key is a key with the name that stored documents contain.
type Key struct {
	Name   string `json:"name"`
	Secret Secret `json:"secret"`
}

// Secret is a key in base64. It prints as REDACTED.
type Secret string

// String hides the key from logs and messages.
func (s Secret) String() string { return "REDACTED" }

// GoString hides it from %#v.
func (s Secret) GoString() string { return s.String() }

func (s Secret) decode() ([]byte, error) { return base64.StdEncoding.DecodeString(string(s)) }

// KMS is a plugin that holds a key encryption key.
type KMS struct {
	APIVersion string           `json:"apiVersion,omitempty"`
	Name       string           `json:"name"`
	CacheSize  *int32           `json:"cachesize,omitempty"`
	Endpoint   string           `json:"endpoint"`
	Timeout    *metav1.Duration `json:"timeout,omitempty"`
}

// defaultTimeout is the default timeout of a call to a plugin.
const defaultTimeout = 3 * time.Second

func (k *KMS) timeout() time.Duration {
	if k.Timeout == nil {
		return defaultTimeout
	}
	return k.Timeout.Duration
}

// Parse parses and validates a configuration. Its errors never contain a key.
func Parse(text []byte) (*Configuration, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, errors.New("the encryption configuration is empty")
	}
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(text, &kind); err != nil {
		return nil, errors.New("the encryption configuration is not YAML") // the parser's error quotes the text
	}
	if kind.APIVersion != "apiserver.config.k8s.io/v1" || kind.Kind != "EncryptionConfiguration" {
		return nil, fmt.Errorf("got unexpected config type: %s, Kind=%s", kind.APIVersion, kind.Kind)
	}
	doc, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, fmt.Errorf("strict decoding error: %w", err)
	}
	c := &Configuration{}
	faults, err := json.UnmarshalStrict(doc, c)
	if err := errors.Join(append(faults, err)...); err != nil {
		return nil, fmt.Errorf("strict decoding error: %w", err)
	}
	return c, validate(c).ToAggregate()
}
