package query_test

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/query"
	"github.com/coxswain-dev/coxswain/storage"
)

// FuzzScope: selectors choose the objects that Kubernetes' own would.
func FuzzScope(f *testing.F) {
	const doc = `{"metadata":{"name":"web","namespace":"shop","labels":{"app":"web","tier":"front","empty":""}},` +
		`"spec":{"color":"red"}}`
	for _, c := range [][2]string{
		{"app=web", "metadata.name=web"}, {"app in (web,db),tier!=back", "metadata.name!=web,spec.color=red"},
		{"!app", "spec.color=="}, {"empty=", "metadata.namespace=other"}, {"empty notin ()", "spec.color=re\\,d"},
		{"a>1", "metadata.name=web,metadata.name=db"}, {",", ","}, {"app in (", "metadata.labels=x"}, {"", "="},
		{"tier", "spec.color!=,metadata.namespace!="},
	} {
		f.Add(c[0], c[1])
	}
	kind := &api.Resource{Storage: api.Storage{Fields: []string{"spec.color"}, FieldIndex: "spec.color"}}
	o, err := storage.NewObjectWith(storage.CollectionOptions{Index: "spec.color", Fields: []string{"spec.color"}},
		storage.Key{Namespace: "shop", Name: "web"}, 1, []byte(doc))
	require.NoError(f, err)
	set := labels.Set{"app": "web", "tier": "front", "empty": ""}
	named := fields.Set{"metadata.name": "web", "metadata.namespace": "shop", "spec.color": "red"}
	f.Fuzz(func(t *testing.T, byLabels, byFields string) {
		scope, err := query.Scope(url.Values{"labelSelector": {byLabels}, "fieldSelector": {byFields}}, kind, "")
		wantLabels, badLabels := labels.Parse(byLabels)
		wantFields, badFields := fields.ParseSelector(byFields)
		if badLabels != nil || badFields != nil {
			require.Error(t, err)
			return
		}
		if err != nil {
			return // a field that the kind does not have
		}
		chosen := (scope.Namespace == "" || scope.Namespace == "shop") && (scope.Name == "" || scope.Name == "web") &&
			(scope.IndexValue == "" || scope.IndexValue == "red") && (scope.Match == nil || scope.Match(o))
		require.Equal(t, wantLabels.Matches(set) && wantFields.Matches(named), chosen)
	})
}
