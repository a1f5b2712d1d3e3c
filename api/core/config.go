package core

import (
	"encoding/json"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

func configMaps() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Version: "v1", Kind: "ConfigMap", Plural: "configmaps", Namespaced: true,
			ShortNames: []string{"cm"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &corev1.ConfigMap{} },
			NewList: func() runtime.Object { return &corev1.ConfigMapList{} },
		},
		Strategy: api.Strategy{
			Validate:       api.Check(validateConfigMap),
			ValidateUpdate: api.CheckUpdate(validateConfigMapUpdate),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Data", "string", corev1.ConfigMap{}.SwaggerDoc()["data"]),
				table.Age,
			},
			Cells: api.Row(func(cm *corev1.ConfigMap) []any {
				return []any{cm.Name, int64(len(cm.Data) + len(cm.BinaryData)), table.AgeOf(cm.CreationTimestamp)}
			}),
		},
	}
}

func validateConfigMap(cm *corev1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	total := 0
	data, binary := field.NewPath("data"), field.NewPath("binaryData")
	for key, value := range cm.Data {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validate.Complaints(data.Key(key), key, naming.IsConfigMapKey(key))...)
		if _, both := cm.BinaryData[key]; both {
			errs = append(errs, field.Invalid(data.Key(key), key, "duplicate of key present in binaryData"))
		}
		total += len(value)
	}
	for key, value := range cm.BinaryData {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validate.Complaints(binary.Key(key), key, naming.IsConfigMapKey(key))...)
		total += len(value)
	}
	if total > corev1.MaxSecretSize {
		// The path is empty, as in kube-apiserver, since no single key is at fault.
		errs = append(errs, field.TooLong(field.NewPath(""), "" /*unused*/, corev1.MaxSecretSize))
	}
	return errs
}

func validateConfigMapUpdate(cm, old *corev1.ConfigMap) field.ErrorList {
	if !ptr.Deref(old.Immutable, false) {
		return nil
	}
	errs := stillImmutable(cm.Immutable)
	errs = append(errs, frozen(cm.Data, old.Data, "data")...)
	return append(errs, frozen(cm.BinaryData, old.BinaryData, "binaryData")...)
}

func secrets() *api.Resource {
	return &api.Resource{
		Names: api.Names{Version: "v1", Kind: "Secret", Plural: "secrets", Namespaced: true},
		Storage: api.Storage{
			BindsTokens: true,
			New:         func() api.Object { return &corev1.Secret{} },
			NewList:     func() runtime.Object { return &corev1.SecretList{} },
			Fields:      []string{"type"},
		},
		Strategy: api.Strategy{
			Default:        api.Typed(defaultSecret),
			Validate:       api.Check(validateSecret),
			ValidateUpdate: api.CheckUpdate(validateSecretUpdate),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Type", "string", corev1.Secret{}.SwaggerDoc()["type"]),
				table.Column("Data", "string", corev1.Secret{}.SwaggerDoc()["data"]),
				table.Age,
			},
			Cells: api.Row(func(s *corev1.Secret) []any {
				return []any{s.Name, string(s.Type), int64(len(s.Data)), table.AgeOf(s.CreationTimestamp)}
			}),
		},
	}
}

// defaultSecret also merges stringData, which is write-only and never stored.
func defaultSecret(s *corev1.Secret) {
	if s.Type == "" {
		s.Type = corev1.SecretTypeOpaque
	}
	if len(s.StringData) > 0 && s.Data == nil {
		s.Data = make(map[string][]byte, len(s.StringData))
	}
	for key, value := range s.StringData {
		s.Data[key] = []byte(value)
	}
	s.StringData = nil
}

func validateSecret(s *corev1.Secret) field.ErrorList {
	var errs field.ErrorList
	data := field.NewPath("data")
	total := 0
	for key, value := range s.Data {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validate.Complaints(data.Key(key), key, naming.IsConfigMapKey(key))...)
		total += len(value)
	}
	if total > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(data, "" /*unused*/, corev1.MaxSecretSize))
	}
	return append(errs, validateSecretType(s, data)...)
}

// validateSecretType requires the keys that readers of a secret of a standard type expect.
func validateSecretType(s *corev1.Secret, data *field.Path) field.ErrorList {
	var errs field.ErrorList
	requireKey := func(key string) {
		if _, ok := s.Data[key]; !ok {
			errs = append(errs, field.Required(data.Key(key), ""))
		}
	}
	requireJSON := func(key string) {
		requireKey(key)
		if content, ok := s.Data[key]; ok {
			if err := json.Unmarshal(content, &map[string]any{}); err != nil {
				errs = append(errs, field.Invalid(data.Key(key), "<secret contents redacted>", err.Error()))
			}
		}
	}
	switch s.Type {
	case corev1.SecretTypeServiceAccountToken:
		if s.Annotations[corev1.ServiceAccountNameKey] == "" {
			errs = append(errs,
				field.Required(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), ""))
		}
	case corev1.SecretTypeDockercfg:
		requireJSON(corev1.DockerConfigKey)
	case corev1.SecretTypeDockerConfigJson:
		requireJSON(corev1.DockerConfigJsonKey)
	case corev1.SecretTypeBasicAuth:
		_, user := s.Data[corev1.BasicAuthUsernameKey]
		_, password := s.Data[corev1.BasicAuthPasswordKey]
		if !user && !password {
			requireKey(corev1.BasicAuthUsernameKey)
			requireKey(corev1.BasicAuthPasswordKey)
		}
	case corev1.SecretTypeSSHAuth:
		if len(s.Data[corev1.SSHAuthPrivateKey]) == 0 {
			errs = append(errs, field.Required(data.Key(corev1.SSHAuthPrivateKey), ""))
		}
	case corev1.SecretTypeTLS:
		requireKey(corev1.TLSCertKey)
		requireKey(corev1.TLSPrivateKeyKey)
	}
	return errs
}

func validateSecretUpdate(s, old *corev1.Secret) field.ErrorList {
	errs := validate.Unchanged(s.Type, old.Type, field.NewPath("type"))
	if ptr.Deref(old.Immutable, false) {
		errs = append(errs, stillImmutable(s.Immutable)...)
		errs = append(errs, frozen(s.Data, old.Data, "data")...)
	}
	return errs
}

func stillImmutable(immutable *bool) field.ErrorList {
	if ptr.Deref(immutable, false) {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("immutable"), "field is immutable when `immutable` is set")}
}

// frozen rejects a change to the content of an immutable ConfigMap or Secret.
func frozen[V string | []byte](value, old map[string]V, name string) field.ErrorList {
	same := len(value) == len(old)
	for key, v := range value {
		o, ok := old[key]
		same = same && ok && string(v) == string(o)
	}
	if same {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath(name), "field is immutable when `immutable` is set")}
}

func serviceAccounts() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Version: "v1", Kind: "ServiceAccount", Plural: "serviceaccounts", Namespaced: true,
			ShortNames: []string{"sa"},
		},
		Storage: api.Storage{
			BindsTokens: true,
			New:         func() api.Object { return &corev1.ServiceAccount{} },
			NewList:     func() runtime.Object { return &corev1.ServiceAccountList{} },
		},
		Strategy: api.Strategy{
			ReturnDeleted: true,
			Warnings:      api.Warn(warnServiceAccount),
			Subresources: []api.Subresource{{
				Name: "token", Group: authenticationv1.GroupName, Version: "v1", Kind: "TokenRequest",
				Verbs: []string{"create"}, New: func() api.Object { return &authenticationv1.TokenRequest{} },
			}},
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name, table.Age,
			},
			Cells: api.Row(func(sa *corev1.ServiceAccount) []any {
				return []any{sa.Name, table.AgeOf(sa.CreationTimestamp)}
			}),
		},
	}
}

func warnServiceAccount(sa, _ *corev1.ServiceAccount) []string {
	const key = "kubernetes.io/enforce-mountable-secrets"
	var warnings []string
	if _, ok := sa.Annotations[key]; ok {
		warnings = append(warnings, fmt.Sprintf("metadata.annotations[%s]: deprecated in v1.32+; prefer separate "+
			"namespaces to isolate access to mounted secrets", key))
	}
	return warnings
}
