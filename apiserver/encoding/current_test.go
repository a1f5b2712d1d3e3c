package encoding

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/customresource"
	"github.com/coxswain-dev/coxswain/storage"
)

const gadgets = `{"metadata":{"name":"gadgets.example.com","uid":"u"},
"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"gadgets","kind":"Gadget"},
 "versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{
  "spec":{"type":"object","properties":{"size":{"type":"integer","default":3}}}}}}}]},
"status":{"acceptedNames":{"plural":"gadgets","singular":"gadget","kind":"Gadget","listKind":"GadgetList"},
 "conditions":[{"type":"Established","status":"True"}]}}`

// A document that conforms to the schema is decoded only by its first reader. A different document is updated for
// every reader.
func TestConvertDocument_UpdatesOldDocuments(t *testing.T) {
	t.Parallel()
	definition, err := customresource.Read([]byte(gadgets))
	require.NoError(t, err)
	served, res := definition.Kinds(nil)
	require.Equal(t, []*api.Resource{res}, served)
	read := func(doc string) (stored, shown *storage.Object) {
		stored, err := storage.NewObject(storage.Key{Name: "a"}, 7, []byte(doc))
		require.NoError(t, err)
		shown, err = ConvertDocument(t.Context(), res, stored)
		require.NoError(t, err)
		return stored, shown
	}
	const head = `{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{"name":"a","generation":1},`

	stored, shown := read(head + `"spec":{"size":1}}`)
	require.Same(t, stored, shown)
	require.Equal(t, res.Schema, stored.Mark())

	for _, doc := range []string{head + `"spec":{}}`, head + `"spec":{"size":3,"gone":true}}`, head + `"spec":{},"old":1}`} {
		stored, shown = read(doc)
		require.JSONEq(t, `{"apiVersion":"example.com/v1","kind":"Gadget",
			"metadata":{"name":"a","generation":1,"resourceVersion":"7"},"spec":{"size":3}}`, string(shown.JSON))
		require.Zero(t, stored.Mark())
	}
}
