package hint

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/internal/near"
)

// listed is the maximum number of objects that are read for near names.
const listed = 500

// served is a kind that the server has.
type served struct {
	schema.GroupVersionKind
	plural string
	forms  []string // the names that a command line may use
}

// kinds returns the kinds that the server has, in the order of its discovery documents.
func (f *failure) kinds() (all []served) {
	client, err := f.ToDiscoveryClient()
	if err != nil {
		return nil
	}
	lists, _ := client.ServerPreferredResources() // some may be missing while an extension server is down
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range list.APIResources {
			if strings.Contains(r.Name, "/") {
				continue
			}
			k := served{gv.WithKind(r.Kind), r.Name, append([]string{r.Name, r.SingularName, strings.ToLower(r.Kind)},
				r.ShortNames...)}
			if gv.Group != "" {
				k.forms = append(k.forms, r.Name+"."+gv.Group)
			}
			all = append(all, k)
		}
	}
	return all
}

// nearKinds suggests kinds for a mistyped one, by their plural names.
func nearKinds(_ context.Context, f *failure, parts []string) string {
	plurals := map[string]string{}
	var forms []string
	for _, kind := range f.kinds() {
		for _, form := range kind.forms {
			if _, found := plurals[form]; !found && len(form) > 2 { // a short name such as "po" is near everything
				plurals[form] = kind.plural
				forms = append(forms, form)
			}
		}
	}
	var names []string
	for _, form := range near.Names(parts[0], forms) {
		if !slices.Contains(names, plurals[form]) {
			names = append(names, plurals[form])
		}
	}
	return didYouMean(names)
}

// servedKinds suggests kinds for the one of a manifest, or the version that has the kind.
func servedKinds(_ context.Context, f *failure, parts []string) string {
	var names []string
	versions := map[string]string{}
	for _, kind := range f.kinds() {
		if _, found := versions[kind.Kind]; !found {
			names = append(names, kind.Kind)
			versions[kind.Kind] = kind.GroupVersion().String()
		}
	}
	if version, found := versions[parts[0]]; found {
		return fmt.Sprintf("the server has %s in apiVersion %s", parts[0], version)
	}
	closest := near.Names(parts[0], names)
	for i, name := range closest {
		closest[i] = fmt.Sprintf("%s (apiVersion %s)", name, versions[name])
	}
	return didYouMean(closest)
}

// emptyNamespace explains an empty list by a namespace that does not exist. Without a namespace in the message, it
// looks at the one of -n.
func emptyNamespace(ctx context.Context, f *failure, parts []string) string {
	namespace := parts[0]
	if namespace == "" {
		name, explicit, err := f.Namespace()
		all := f.cmd.Flags().Lookup("all-namespaces")
		if err != nil || !explicit || all != nil && all.Value.String() == "true" {
			return ""
		}
		namespace = name
	}
	return f.absentNamespace(ctx, namespace)
}

// absentNamespace returns a hint if a namespace does not exist.
func (f *failure) absentNamespace(ctx context.Context, name string) string {
	namespaces := f.objects(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	if namespaces == nil || len(rest.IsValidPathSegmentName(name)) > 0 {
		return ""
	}
	if _, err := namespaces.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return ""
	}
	text := fmt.Sprintf("the namespace %q does not exist", name)
	if more := didYouMean(near.Names(name, names(ctx, namespaces))); more != "" {
		text += "; " + more
	}
	return text
}

// nearObjects suggests objects for a name that does not exist: ones with a near name, or with the same name in another
// namespace.
func nearObjects(ctx context.Context, f *failure, parts []string) string {
	resource, name := parts[0], parts[1]
	mapping, err := f.MappingFor(resource)
	if err != nil {
		return ""
	}
	all := f.objects(mapping.Resource)
	if all == nil {
		return ""
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return named(mapping, near.Names(name, names(ctx, all)))
	}
	namespace, _, err := f.Namespace()
	if err != nil {
		return ""
	}
	if text := f.absentNamespace(ctx, namespace); text != "" {
		return text
	}
	if closest := near.Names(name, names(ctx, all.Namespace(namespace))); len(closest) > 0 {
		return named(mapping, closest)
	}
	elsewhere, err := all.List(ctx, metav1.ListOptions{Limit: limit,
		FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil || len(elsewhere.Items) == 0 {
		return ""
	}
	var namespaces []string
	for _, item := range elsewhere.Items[:min(len(elsewhere.Items), limit)] {
		namespaces = append(namespaces, item.Namespace)
	}
	return fmt.Sprintf("%s %q exists in the namespace %s", mapping.Resource.Resource, name, near.List(namespaces))
}

// named formats objects with near names.
func named(mapping *meta.RESTMapping, names []string) string {
	if len(names) == 0 {
		return ""
	}
	for i := range names {
		names[i] = fmt.Sprintf("%q", names[i])
	}
	return didYouMean([]string{mapping.Resource.Resource + " " + near.List(names)})
}

// objects returns a client for the metadata of a resource's objects, or nil. It prints no warnings.
func (f *failure) objects(resource schema.GroupVersionResource) metadata.Getter {
	config, err := f.ToRESTConfig()
	if err != nil {
		return nil
	}
	config = rest.CopyConfig(config)
	config.WarningHandler, config.WarningHandlerWithContext = rest.NoWarnings{}, nil
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil
	}
	return client.Resource(resource)
}

// names lists names of objects; none if the user may not list them.
func names(ctx context.Context, from metadata.ResourceInterface) []string {
	list, err := from.List(ctx, metav1.ListOptions{Limit: listed})
	if err != nil {
		return nil
	}
	all := make([]string, len(list.Items))
	for i := range list.Items {
		all[i] = list.Items[i].Name
	}
	return all
}
