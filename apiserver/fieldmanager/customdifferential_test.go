package fieldmanager

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	generatedopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/customresource"
)

// definitionOf returns a definition of Widgets with the versions v1 (stored), v2, and so on.
func definitionOf(schemas []*props, status, scale bool) *apiextensionsv1.CustomResourceDefinition {
	names := apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget",
		ListKind: "WidgetList"}
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com", UID: "u1"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: names},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{AcceptedNames: names},
	}
	for i, schema := range schemas {
		v := apiextensionsv1.CustomResourceDefinitionVersion{Name: fmt.Sprintf("v%d", i+1), Served: true,
			Storage: i == 0, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: schema}}
		v.Subresources = &apiextensionsv1.CustomResourceSubresources{}
		if status && i%2 == 0 {
			v.Subresources.Status = &apiextensionsv1.CustomResourceSubresourceStatus{}
		}
		if scale {
			v.Subresources.Scale = &apiextensionsv1.CustomResourceSubresourceScale{
				SpecReplicasPath: fmt.Sprintf(".spec.a%d", i), StatusReplicasPath: ".status.a"}
		}
		crd.Spec.Versions = append(crd.Spec.Versions, v)
	}
	return crd
}

// served returns the registrations of a definition.
func served(t testing.TB, crd *apiextensionsv1.CustomResourceDefinition) []*api.Resource {
	t.Helper()
	doc, err := json.Marshal(crd)
	require.NoError(t, err)
	d, err := customresource.Read(doc)
	require.NoError(t, err)
	kinds, _ := d.Kinds(nil)
	return kinds
}

// kubernetesTypes creates the type converter of a definition as kube-apiserver does, like BuildOpenAPIV3 in
// apiextensions-apiserver's pkg/controller/openapi/builder.
func kubernetesTypes(t testing.TB, crd *apiextensionsv1.CustomResourceDefinition) managedfields.TypeConverter {
	t.Helper()
	models := map[string]*spec.Schema{}
	for name, definition := range generatedopenapi.GetOpenAPIDefinitions(func(path string) spec.Ref {
		return spec.MustCreateRef("#/components/schemas/" + path)
	}) {
		if strings.Contains(name, "apimachinery.pkg.apis.meta.v1.") {
			models[name] = &definition.Schema
		}
	}
	require.Contains(t, models, metaModel)
	for _, v := range crd.Spec.Versions {
		var internal apiextensions.CustomResourceValidation
		convert := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation
		require.NoError(t, convert(v.Schema, &internal, nil))
		schema, err := structuralschema.NewStructural(internal.OpenAPIV3Schema)
		require.NoError(t, err)
		model := schema.Unfold().ToKubeOpenAPI()
		addObject(model)
		embedObjects(model)
		model.AddExtension("x-kubernetes-group-version-kind", []any{map[string]any{"group": crd.Spec.Group,
			"version": v.Name, "kind": crd.Spec.Names.Kind}})
		models[v.Name] = model
	}
	types, err := managedfields.NewTypeConverter(models, crd.Spec.PreserveUnknownFields)
	require.NoError(t, err)
	return customTypes{types}
}

// embedObjects does the same as the builder's addEmbeddedProperties.
func embedObjects(s *spec.Schema) {
	if s == nil {
		return
	}
	for name := range s.Properties {
		field := s.Properties[name]
		embedObjects(&field)
		s.Properties[name] = field
	}
	if s.Items != nil {
		embedObjects(s.Items.Schema)
	}
	if s.AdditionalProperties != nil {
		embedObjects(s.AdditionalProperties.Schema)
	}
	if embedded, ok := s.Extensions.GetBool("x-kubernetes-embedded-resource"); ok && embedded {
		addObject(s)
	}
}

// game simulates the life of one custom object, written by this package and by Kubernetes' library.
type game struct {
	*randomKinds
	t        testing.TB
	schemas  []*props
	crd      *apiextensionsv1.CustomResourceDefinition
	kinds    *api.Snapshot
	versions []*api.Resource
	types    managedfields.TypeConverter
	example  map[string]any // the first object's content; nil for a random one
	writes   int
	applies  int
	refused  int // by the library
}

func newGame(t testing.TB, r *randomKinds, crd *apiextensionsv1.CustomResourceDefinition) *game {
	g := &game{randomKinds: r, t: t}
	g.define(crd)
	return g
}

// define changes the definition.
func (g *game) define(crd *apiextensionsv1.CustomResourceDefinition) {
	g.crd, g.schemas = crd, nil
	for _, v := range crd.Spec.Versions {
		g.schemas = append(g.schemas, v.Schema.OpenAPIV3Schema)
	}
	g.versions = served(g.t, crd)
	g.kinds = api.NewRegistry(g.versions...).Snapshot()
	g.types = kubernetesTypes(g.t, crd)
}

// object returns an object of a version with the content, as the server would have it.
func (g *game) object(res *api.Resource, content map[string]any) *customresource.Object {
	content["apiVersion"], content["kind"] = res.GroupVersion().String(), res.Kind
	content["metadata"] = g.metadata()
	doc, err := json.Marshal(content)
	require.NoError(g.t, err)
	obj := res.New().(*customresource.Object)
	if _, err := obj.DecodeStrict(doc); err != nil {
		return nil // its embedded metadata is malformed
	}
	res.Default(obj)
	return obj
}

// next returns an object of the stored version that replaces old; nil stands for a new object.
func (g *game) next(old *customresource.Object) *customresource.Object {
	if old == nil && g.example != nil {
		if obj := g.object(g.versions[0], maps.Clone(g.example)); obj != nil {
			return obj
		}
	}
	for range 100 {
		content := map[string]any{}
		if old == nil {
			content = g.fields(g.schemas[0], 5)
		} else {
			for _, name := range fieldsOfBoth(nil, old.Fields, nil) {
				content[name] = g.edited(schemaOf(g.schemas[0], name), old.Fields[name], 5)
			}
		}
		if obj := g.object(g.versions[0], content); obj != nil {
			return obj
		}
	}
	g.t.Fatal("no valid object in 100 attempts")
	return nil
}

func (g *game) library(res *api.Resource, subresource string) *managedfields.FieldManager {
	m, err := newFieldManager(g.types, kindOf{Resource: res, versions: g.versions}, subresource)
	require.NoError(g.t, err)
	return m
}

// play writes an object repeatedly.
func (g *game) play(writes int) {
	var old *customresource.Object
	for write := range writes {
		res := pickOf(g.randomKinds, g.versions...)
		w := Writer{Manager: pickOf(g.randomKinds, "alpha", "beta", ""), APIVersion: res.GroupVersion().String(),
			At: metav1.Now()}
		obj := g.next(old)
		var ours, want []metav1.ManagedFieldsEntry
		if old == nil {
			ours, want = g.create(res, obj, w)
		} else {
			if res.Status != nil && g.one(3) {
				w.Subresource = "status"
				merged := old.DeepCopyObject().(*customresource.Object)
				res.Status.Copy(merged, obj)
				obj = merged
			}
			ours, want = g.update(res, old, obj, w)
		}
		if !slices.Equal(books(want), books(ours)) {
			g.t.Fatalf("write %d by %q %s %s\n%s\nold %s\nnow %s\nschema %s", write, w.Manager, w.APIVersion, w.Subresource,
				firstDifference(books(want), books(ours)), document(old), document(obj), document(g.schemas))
		}
		g.writes++
		obj.SetManagedFields(ours)
		if g.one(3) && w.Subresource == "" {
			obj = g.apply(res, obj)
		}
		if len(obj.GetManagedFields()) == 0 {
			return
		}
		old = obj
		if g.one(5) {
			old = g.evolveAll(old)
		}
	}
}

func (g *game) create(res *api.Resource, obj *customresource.Object, w Writer) (ours,
	want []metav1.ManagedFieldsEntry) {
	shown := g.shown(res, obj)
	ours = Create(res, shown, w)
	theirs, err := g.library(res, "").Update(Fresh(res), clone(shown), w.Manager)
	if err != nil {
		g.refused++
		return ours, nil
	}
	return ours, theirs.(api.Object).GetManagedFields()
}

func (g *game) update(res *api.Resource, old, obj *customresource.Object, w Writer) (ours,
	want []metav1.ManagedFieldsEntry) {
	old.SetUID("known")
	was, is := g.shown(res, old), g.shown(res, obj)
	ours, err := Update(g.t.Context(), g.kinds, res, is, was, nil, w)
	require.NoError(g.t, err)
	theirs, err := g.library(res, w.Subresource).Update(clone(was), without(is), w.Manager)
	if err != nil {
		g.refused++
		return ours, old.GetManagedFields()
	}
	return ours, theirs.(api.Object).GetManagedFields()
}

// apply applies a part of the object with this package's models and with Kubernetes' own.
func (g *game) apply(res *api.Resource, obj *customresource.Object) *customresource.Object {
	live := g.shown(res, obj)
	patch := without(live).(*customresource.Object).Content()
	if spec, ok := patch["spec"].(map[string]any); ok {
		patch["spec"] = g.edited(schemaOf(g.schemas[0], "spec"), spec, 5)
	}
	delete(patch, "status")
	manager, force := pickOf(g.randomKinds, "gamma", "delta"), !g.one(3)
	want, wantErr := g.library(res, "").Apply(clone(live), &unstructured.Unstructured{Object: patch}, manager, force)
	var appliers Appliers
	own, err := appliers.Of(g.t.Context(), api.NewRegistry(g.versions...), res, "")
	require.NoError(g.t, err)
	have, haveErr := own.Apply(clone(live), &unstructured.Unstructured{Object: patch}, manager, force)
	// The library's error message depends on the order of the entries.
	require.Equal(g.t, wantErr == nil, haveErr == nil, "%v and %v", wantErr, haveErr)
	if wantErr != nil {
		return obj
	}
	g.applies++
	entries := Stamp(have.(api.Object).GetManagedFields(), nil, metav1.Now())
	require.Equal(g.t, books(Stamp(want.(api.Object).GetManagedFields(), nil, metav1.Now())), books(entries))
	require.Equal(g.t, document(want.(*customresource.Object).Fields), document(have.(*customresource.Object).Fields))
	obj.SetManagedFields(entries)
	obj.Fields = g.shown(g.versions[0], have.(api.Object)).(*customresource.Object).Fields
	return g.read(obj)
}

// shown returns an object in a version.
func (g *game) shown(res *api.Resource, obj api.Object) api.Object {
	return shownIn(g.t.(*testing.T), res, obj)
}

// read returns the object as it would be read again.
func (g *game) read(obj *customresource.Object) *customresource.Object {
	again := g.versions[0].New()
	require.NoError(g.t, json.Unmarshal([]byte(document(obj)), again))
	return again.(*customresource.Object)
}

// evolveAll changes the definition and reads the stored object with it.
func (g *game) evolveAll(old *customresource.Object) *customresource.Object {
	crd, seed := g.crd.DeepCopy(), g.Uint64()
	for i := range crd.Spec.Versions {
		schema := crd.Spec.Versions[i].Schema
		schema.OpenAPIV3Schema = g.evolve(schema.OpenAPIV3Schema)
		shrink(schema.OpenAPIV3Schema, seed)
	}
	g.define(crd)
	return g.read(old)
}

func document(v any) string {
	doc, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(doc)
}

// playSeed plays a game with a random definition.
func playSeed(t *testing.T, seed uint64) *game {
	r := newRandomKinds(seed)
	r.faulty = r.one(3)
	schemas := []*props{r.root()}
	for range r.IntN(3) {
		schemas = append(schemas, r.evolve(schemas[0]))
	}
	g := newGame(t, r, definitionOf(schemas, r.one(2), false))
	g.play(8)
	return g
}

// TestCustomOwnership_IsTheLibrarys writes random objects of random, changing definitions and expects
// the managedFields that Kubernetes' library computes by the schema that kube-apiserver gives it.
func TestCustomOwnership_IsTheLibrarys(t *testing.T) {
	t.Parallel()
	var writes, applies, refused int
	games, err := strconv.ParseUint(cmp.Or(os.Getenv("CUSTOM_GAMES"), "300"), 10, 64)
	require.NoError(t, err)
	for seed := range games {
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			g := playSeed(t, seed)
			writes, applies, refused = writes+g.writes, applies+g.applies, refused+g.refused
		})
		if !ok {
			return
		}
	}
	t.Logf("%d writes, %d of which the library does not track; %d applies", writes, refused, applies)
	require.Greater(t, applies, 100)
	require.Greater(t, refused, 10)
}

// FuzzCustomOwnership plays games with fuzzed seeds.
func FuzzCustomOwnership(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(1000 + seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { playSeed(t, seed) })
}
