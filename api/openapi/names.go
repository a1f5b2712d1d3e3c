package openapi

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// definitionName returns the name of a Go type's definition: the type's own, or one derived from its import path as in
// Kubernetes ("k8s.io/api/apps/v1".Deployment is io.k8s.api.apps.v1.Deployment).
func definitionName(t reflect.Type) string {
	if named, ok := reflect.Zero(t).Interface().(interface{ OpenAPIModelName() string }); ok {
		// A struct promotes the methods, and so the name, of an embedded field.
		if name := named.OpenAPIModelName(); strings.HasSuffix(name, "."+t.Name()) {
			return name
		}
	}
	host, path, _ := strings.Cut(t.PkgPath(), "/")
	name := reverseDomain(host)
	if path != "" {
		name += "." + strings.ReplaceAll(path, "/", ".")
	}
	return name + "." + t.Name()
}

// kindName returns the definition name of a kind without a Go type, in the form of custom resources' names: CronTab of
// stable.example.com/v1 is com.example.stable.v1.CronTab.
func kindName(gvk schema.GroupVersionKind) string {
	if gvk.Group == "" {
		return gvk.Version + "." + gvk.Kind
	}
	return reverseDomain(gvk.Group) + "." + gvk.Version + "." + gvk.Kind
}

func reverseDomain(domain string) string {
	labels := strings.Split(domain, ".")
	slices.Reverse(labels)
	return strings.Join(labels, ".")
}

// groupName returns the form of a group in operation ids: core is Core, rbac.authorization.k8s.io is
// RbacAuthorization, cert-manager.io is CertManagerIo.
func groupName(group string) string {
	if group == "" {
		return "Core"
	}
	return identifier(strings.TrimSuffix(group, ".k8s.io"), true)
}

// tagName returns the tag of operations: core_v1, rbacAuthorization_v1.
func tagName(gv schema.GroupVersion) string {
	group := cmp.Or(strings.TrimSuffix(gv.Group, ".k8s.io"), "core")
	return identifier(group, false) + "_" + identifier(gv.Version, false)
}

// identifier makes a name of letters, digits and underscores. Each part of the text begins with a capital letter, the
// first one only if upper is set.
func identifier(text string, upper bool) string {
	var b strings.Builder
	for i, r := range text {
		switch {
		case !unicode.IsLetter(r) && r != '_' && (i == 0 || !unicode.IsDigit(r)):
			upper = true
			continue
		case upper:
			r = unicode.ToUpper(r)
		}
		upper = false
		b.WriteRune(r)
	}
	return b.String()
}

func upperFirst(s string) string {
	r, size := utf8.DecodeRuneInString(s)
	if size == 0 {
		return s
	}
	return string(unicode.ToUpper(r)) + s[size:]
}

// groupVersionPath returns the path of a group and version, without a leading slash: api/v1, apis/apps/v1.
func groupVersionPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.Group + "/" + gv.Version
}
