package encryption

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The rules and messages are kube-apiserver's, so that a file has the same errors in both.

var (
	aesKeySizes       = []int{16, 24, 32}
	secretboxKeySizes = []int{32}
)

func validate(c *Configuration) field.ErrorList {
	root := field.NewPath("resources")
	if len(c.Resources) == 0 {
		return field.ErrorList{required(root)}
	}
	var errs field.ErrorList
	names := map[string]bool{}
	for i, conf := range c.Resources {
		resources, providers := root.Index(i).Child("resources"), root.Index(i).Child("providers")
		if len(conf.Resources) == 0 {
			errs = append(errs, required(resources))
		}
		errs = append(errs, validateOverlap(conf.Resources, resources)...)
		for j, name := range conf.Resources {
			if fault := resourceFault(name); fault != "" {
				errs = append(errs, field.Invalid(resources.Index(j), name, fault))
			}
		}
		if len(conf.Providers) == 0 {
			errs = append(errs, required(providers))
		}
		for j := range conf.Providers {
			errs = append(errs, validateProvider(&conf.Providers[j], providers.Index(j), names)...)
		}
	}
	return append(errs, validateMasks(c, root)...)
}

func required(path *field.Path) *field.Error {
	return field.Required(path, fmt.Sprintf("at least one %s is required", path))
}

// validateOverlap rejects lists that cover a resource more than once.
func validateOverlap(names []string, path *field.Path) field.ErrorList {
	var duplicate, overlap bool
	for i, name := range names {
		for _, other := range names[i+1:] {
			a, b := schema.ParseGroupResource(name), schema.ParseGroupResource(other)
			switch {
			case a == b:
				duplicate = true
			case a == everything || b == everything, a.Group == b.Group && (a.Resource == "*" || b.Resource == "*"):
				overlap = true
			}
		}
	}
	var errs field.ErrorList
	if duplicate {
		errs = append(errs, field.Invalid(path, names, "the same resource cannot be specified multiple times"))
	}
	if overlap {
		errs = append(errs, field.Invalid(path, names, "using overlapping resources such as 'secrets' and '*.' in "+
			"the same resource list is not allowed as they will be masked"))
	}
	return errs
}

// resourceFault returns the reason why a resource cannot be encrypted, or "".
func resourceFault(name string) string {
	gr := schema.ParseGroupResource(name)
	switch {
	case strings.ToLower(name) != name:
		return "resource name should not contain capital letters"
	case name == "*":
		return "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources"
	case slices.Contains([]string{"apiserveripinfo", "serviceipallocations", "servicenodeportallocations"}, name):
		return "resources which do not have REST API/s cannot be encrypted"
	case gr.Group == "events.k8s.io":
		return "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in " +
			"the config file"
	case gr.Group == "extensions":
		return "'extensions' group has been removed and cannot be used for encryption"
	case gr.Group == "*" && gr.Resource != "*":
		return "encrypting the same resource across groups is not supported"
	}
	return ""
}

// validateMasks rejects rules that never apply, because an earlier rule covers them.
func validateMasks(c *Configuration, root *field.Path) field.ErrorList {
	var errs field.ErrorList
	earlier := map[schema.GroupResource]bool{}
	for i, conf := range c.Resources {
		var current []schema.GroupResource
		for j, name := range conf.Resources {
			gr := schema.ParseGroupResource(name)
			current = append(current, gr)
			for _, mask := range []schema.GroupResource{{Group: gr.Group, Resource: "*"}, everything} {
				if earlier[mask] {
					errs = append(errs, field.Invalid(root.Index(i).Child("resources").Index(j), name,
						fmt.Sprintf("resource %q is masked by earlier rule %q", yamlName(gr), yamlName(mask))))
					break
				}
			}
		}
		for _, gr := range current {
			earlier[gr] = true
		}
	}
	return errs
}

// yamlName returns the name of a resource in the file.
func yamlName(gr schema.GroupResource) string {
	if gr.Group == "" && gr.Resource == "*" {
		return "*."
	}
	return gr.String()
}

func validateProvider(p *ProviderConfiguration, path *field.Path, names map[string]bool) field.ErrorList {
	found := 0
	for _, set := range []bool{p.KMS != nil, p.AESGCM != nil, p.AESCBC != nil, p.Secretbox != nil, p.Identity != nil} {
		if set {
			found++
		}
	}
	switch {
	case found == 0:
		return field.ErrorList{field.Invalid(path, "", "provider does not contain any of the expected providers: KMS, "+
			"AESGCM, AESCBC, Secretbox, Identity")}
	case found > 1:
		return field.ErrorList{field.Invalid(path, "", "more than one provider specified in a single element, should "+
			"split into different list elements")}
	case p.KMS != nil:
		return validateKMS(p.KMS, path.Child("kms"), names)
	case p.AESGCM != nil:
		return validateKeys(p.AESGCM.Keys, path.Child("aesgcm", "keys"), aesKeySizes)
	case p.AESCBC != nil:
		return validateKeys(p.AESCBC.Keys, path.Child("aescbc", "keys"), aesKeySizes)
	case p.Secretbox != nil:
		return validateKeys(p.Secretbox.Keys, path.Child("secretbox", "keys"), secretboxKeySizes)
	}
	return nil
}

func validateKeys(keys []Key, path *field.Path, sizes []int) field.ErrorList {
	if len(keys) == 0 {
		return field.ErrorList{field.Required(path, "at least one keys is required")}
	}
	var errs field.ErrorList
	for i, key := range keys {
		if key.Name == "" {
			errs = append(errs, field.Required(path.Index(i).Child("name"), "name is a mandatory field for a key"))
		}
		secret, err := key.Secret.decode()
		secretPath := path.Index(i).Child("secret")
		switch {
		case key.Secret == "":
			errs = append(errs, field.Required(secretPath, "secret is a mandatory field for a key"))
		case err != nil:
			errs = append(errs, field.Invalid(secretPath, "REDACTED", "secrets must be base64 encoded"))
		case !slices.Contains(sizes, len(secret)):
			errs = append(errs, field.Invalid(secretPath, "REDACTED", fmt.Sprintf(
				"secret is not of the expected length, got %d, expected one of %v", len(secret), sizes)))
		}
	}
	return errs
}

func validateKMS(k *KMS, path *field.Path, names map[string]bool) field.ErrorList {
	var errs field.ErrorList
	name := path.Child("name")
	if k.Name == "" {
		errs = append(errs, field.Required(name, "name is a mandatory field for a provider"))
	}
	if strings.Contains(k.Name, ":") {
		errs = append(errs, field.Invalid(name, k.Name,
			fmt.Sprintf("invalid KMS provider name %s, must not contain ':'", k.Name)))
	}
	if names[k.Name] {
		errs = append(errs, field.Invalid(name, k.Name,
			fmt.Sprintf("duplicate KMS provider name %s, names must be unique", k.Name)))
	}
	names[k.Name] = true
	if k.timeout() <= 0 {
		errs = append(errs, field.Invalid(path.Child("timeout"), k.Timeout.Duration.String(),
			"timeout should be a positive value"))
	}
	errs = append(errs, validateEndpoint(k.Endpoint, path.Child("endpoint"))...)
	version := path.Child("apiVersion")
	switch k.APIVersion {
	case "v2":
		if k.CacheSize != nil {
			errs = append(errs, field.Invalid(path.Child("cachesize"), *k.CacheSize,
				"cachesize is not supported in v2"))
		}
	case "", "v1":
		errs = append(errs, field.Invalid(version, k.APIVersion, "KMS v1, which is the default of this field, is "+
			"deprecated and not supported: use v2"))
	default:
		errs = append(errs, field.Invalid(version, k.APIVersion,
			"unsupported apiVersion for KMS provider, only v2 is supported"))
	}
	return errs
}

func validateEndpoint(endpoint string, path *field.Path) field.ErrorList {
	if endpoint == "" {
		return field.ErrorList{field.Invalid(path, "", "endpoint is a mandatory field for a kms")}
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return field.ErrorList{field.Invalid(path, endpoint, fmt.Sprintf("invalid endpoint for kms provider, error: %v",
			err))}
	}
	if u.Scheme != "unix" {
		return field.ErrorList{field.Invalid(path, endpoint, fmt.Sprintf(
			"unsupported scheme %q for KMS provider, only unix is supported", u.Scheme))}
	}
	return nil
}
