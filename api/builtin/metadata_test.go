package builtin_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/api/kindtest"
	"github.com/coxswain-dev/coxswain/api/naming"
)

// generic lists the built-in kinds with metadata that Kubernetes checks only against apimachinery's rules. For all
// others it also applies the core group's rule: a finalizer needs a domain, unless it is one of Kubernetes' own.
var generic = []string{
	"admissionregistration.k8s.io/MutatingAdmissionPolicy", "admissionregistration.k8s.io/MutatingAdmissionPolicyBinding",
	"admissionregistration.k8s.io/MutatingWebhookConfiguration", "admissionregistration.k8s.io/ValidatingAdmissionPolicy",
	"admissionregistration.k8s.io/ValidatingAdmissionPolicyBinding",
	"admissionregistration.k8s.io/ValidatingWebhookConfiguration",
	"apiextensions.k8s.io/CustomResourceDefinition", "apiregistration.k8s.io/APIService", "coordination.k8s.io/Lease",
	"policy/PodDisruptionBudget", "/Event", "events.k8s.io/Event",
}

// metadataRules has one way to break each rule for metadata, and the errors of a create.
var metadataRules = map[string]struct {
	change func(*metav1.ObjectMeta)
	want   []string
}{
	"sound":             {func(*metav1.ObjectMeta) {}, nil},
	"no name":           {func(m *metav1.ObjectMeta) { m.Name = "" }, []string{"Required metadata.name"}},
	"name with a slash": {func(m *metav1.ObjectMeta) { m.Name = "a/b" }, []string{"Invalid metadata.name"}},
	"prefix with a slash": {func(m *metav1.ObjectMeta) { m.GenerateName = "a/b" },
		[]string{"Invalid metadata.generateName"}},
	"label key": {func(m *metav1.ObjectMeta) { m.Labels = map[string]string{"a b": "c"} },
		[]string{"Invalid metadata.labels"}},
	"label value": {func(m *metav1.ObjectMeta) { m.Labels = map[string]string{"a": "-"} },
		[]string{"Invalid metadata.labels"}},
	"annotation key": {func(m *metav1.ObjectMeta) { m.Annotations = map[string]string{"a b": "c"} },
		[]string{"Invalid metadata.annotations"}},
	"annotation key in capitals": {func(m *metav1.ObjectMeta) {
		m.Annotations = map[string]string{"EXAMPLE.com/A": "c d"}
	}, nil},
	"annotations": {func(m *metav1.ObjectMeta) {
		m.Annotations = map[string]string{"a": strings.Repeat("x", validation.TotalAnnotationSizeLimitB)}
	}, []string{"TooLong metadata.annotations"}},
	"owner without fields": {func(m *metav1.ObjectMeta) { m.OwnerReferences = []metav1.OwnerReference{{}} },
		[]string{"Required metadata.ownerReferences[0].apiVersion", "Required metadata.ownerReferences[0].kind",
			"Required metadata.ownerReferences[0].name", "Required metadata.ownerReferences[0].uid"}},
	"owner's version": {func(m *metav1.ObjectMeta) {
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "a/b/c", Kind: "K", Name: "n", UID: "u"}}
	}, []string{"Invalid metadata.ownerReferences[0].apiVersion"}},
	"owned by an event": {func(m *metav1.ObjectMeta) {
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Event", Name: "n", UID: "u"}}
	}, []string{"Invalid metadata.ownerReferences[0]"}},
	"two controllers": {func(m *metav1.ObjectMeta) {
		owner := metav1.OwnerReference{APIVersion: "v1", Kind: "K", Name: "n", UID: "u", Controller: new(true)}
		m.OwnerReferences = []metav1.OwnerReference{owner, owner}
	}, []string{"Invalid metadata.ownerReferences"}},
	"both propagations": {func(m *metav1.ObjectMeta) {
		m.Finalizers = []string{metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents}
	}, []string{"Invalid metadata.finalizers"}},
	"finalizers": {func(m *metav1.ObjectMeta) {
		m.Finalizers = []string{"example.com/a", "kubernetes", metav1.FinalizerOrphanDependents}
	}, nil},
	"manager": {func(m *metav1.ObjectMeta) {
		m.ManagedFields = []metav1.ManagedFieldsEntry{{Operation: "Apply", Manager: strings.Repeat("m", 129)}}
	}, []string{"TooLong metadata.managedFields[0].manager"}},
	"operation": {func(m *metav1.ObjectMeta) { m.ManagedFields = []metav1.ManagedFieldsEntry{{Operation: "Make"}} },
		[]string{"NotSupported metadata.managedFields[0].operation"}},
	"type of fields": {func(m *metav1.ObjectMeta) {
		m.ManagedFields = []metav1.ManagedFieldsEntry{{Operation: "Update", FieldsType: "FieldsV2"}}
	}, []string{"Invalid metadata.managedFields[0].fieldsType"}},
	"subresource": {func(m *metav1.ObjectMeta) {
		m.ManagedFields = []metav1.ManagedFieldsEntry{{Operation: "Update", Subresource: strings.Repeat("s", 257)}}
	}, []string{"TooLong metadata.managedFields[0].subresource"}},
}

// TestMetadata_HasTheRulesOfTheKind breaks each rule in an object of each kind. Kinds differ in two rules: finalizers,
// and the form of names. For the latter, the table has a name that no kind allows.
func TestMetadata_HasTheRulesOfTheKind(t *testing.T) {
	t.Parallel()
	for _, r := range builtin.Kinds() {
		if r.CreateOnly || r.Virtual {
			continue
		}
		t.Run(r.Group+"/"+r.Version+"/"+r.Kind, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, slices.Contains(generic, r.Group+"/"+r.Kind), r.GenericMetadata)
			names := r.ValidateName
			if names == nil {
				names = naming.NameIsDNSSubdomain
			}
			for name, c := range metadataRules {
				obj := soundMetadata(r)
				change(obj, c.change)
				path := field.NewPath("metadata")
				want := kindtest.Refusals(validation.ValidateObjectMetaAccessor(obj, r.Namespaced, names, path))
				got := kindtest.Refusals(r.ValidateMetadata(obj, nil))
				require.ElementsMatch(t, want, got, name)
				if strings.HasPrefix(name, "name") || strings.HasPrefix(name, "prefix") {
					continue // a kind may report several errors
				}
				require.ElementsMatch(t, c.want, got, name)
			}
		})
	}
}

func TestMetadata_FinalizersNeedADomainInMostBuiltInKinds(t *testing.T) {
	t.Parallel()
	const form, domain = "Invalid metadata.finalizers", "Invalid metadata.finalizers[0]"
	for _, r := range builtin.Kinds() {
		if r.CreateOnly || r.Virtual {
			continue
		}
		old := soundMetadata(r)
		for name, want := range map[string][2][]string{ // for generic kinds, and for kinds with the core rule
			"example.com/a":         {{}, {}},
			"kubernetes":            {{}, {}},
			"orphan":                {{}, {}},
			"finalizers.fluxcd.io":  {{}, {domain}},
			"plain":                 {{}, {domain}},
			"a b":                   {{form}, {form, domain}},
			"example.com/":          {{form}, {form}},
			"a/b/c":                 {{form}, {form}},
			strings.Repeat("f", 64): {{form}, {form, domain}},
		} {
			obj := soundMetadata(r)
			obj.SetFinalizers([]string{name})
			expected := want[1]
			if r.GenericMetadata {
				expected = want[0]
			}
			for _, before := range []api.Object{nil, old, obj} { // the same rule applies if the stored object breaks it
				got := kindtest.Refusals(r.ValidateMetadata(obj, before))
				slices.Sort(got)
				require.Equal(t, expected, slices.Compact(got), "%s: %s", r.Kind, name)
			}
		}
	}
}

// soundMetadata returns an object of the kind with a name that all kinds allow.
func soundMetadata(r *api.Resource) api.Object {
	obj := r.Stored().New()
	for _, name := range []string{"a", "10.0.0.1", "v1.example.com"} {
		if r.ValidateName == nil || len(r.ValidateName(name, false)) == 0 {
			obj.SetName(name)
			break
		}
	}
	if r.Namespaced {
		obj.SetNamespace("default")
	}
	obj.SetResourceVersion("1")
	return obj
}

func change(obj api.Object, mutate func(*metav1.ObjectMeta)) {
	meta := metav1.ObjectMeta{Name: obj.GetName(), Namespace: obj.GetNamespace()}
	mutate(&meta)
	obj.SetName(meta.Name)
	obj.SetGenerateName(meta.GenerateName)
	obj.SetLabels(meta.Labels)
	obj.SetAnnotations(meta.Annotations)
	obj.SetOwnerReferences(meta.OwnerReferences)
	obj.SetFinalizers(meta.Finalizers)
	obj.SetManagedFields(meta.ManagedFields)
}
