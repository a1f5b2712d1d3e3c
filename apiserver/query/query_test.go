package query_test

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/query"
	"github.com/coxswain-dev/coxswain/storage"
)

func parse(t *testing.T, text string) url.Values {
	t.Helper()
	q, err := url.ParseQuery(text)
	require.NoError(t, err)
	return q
}

func TestFlag_IsTrueIfPresent(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"": false, "watch": true, "watch=": true, "watch=1": true, "watch=true": true,
		"watch=0": false, "watch=false": false, "watch=no": true, "watches=1": false} {
		require.Equal(t, want, query.Flag(parse(t, text), "watch"), text)
	}
}

// https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list
func TestAt_FollowsTheTableOfTheConcepts(t *testing.T) {
	t.Parallel()
	const exact, notOlder = "&resourceVersionMatch=Exact", "&resourceVersionMatch=NotOlderThan"
	for text, want := range map[string]storage.At{
		"":                                      {},
		"resourceVersion=0":                     {Any: true},
		"resourceVersion=0" + notOlder:          {Any: true},
		"resourceVersion=7":                     {Revision: 7},
		"resourceVersion=7" + notOlder:          {Revision: 7},
		"resourceVersion=7" + exact:             {Revision: 7, Exact: true},
		"resourceVersion=7&limit=5":             {Revision: 7, Exact: true},
		"resourceVersion=7&limit=5" + notOlder:  {Revision: 7},
		"resourceVersion=0&limit=5":             {Any: true},
		"continue=token&limit=5":                {},
		"continue=token&resourceVersion=0":      {},
		"limit=-5&resourceVersion=7":            {Revision: 7},
		"limit=&resourceVersion=7" + notOlder:   {Revision: 7},
		"resourceVersion=&limit=5":              {},
		"resourceVersion=7&limit=0" + "&watch=": {Revision: 7},
	} {
		q := parse(t, text)
		limit, err := query.Limit(q)
		require.NoError(t, err, text)
		at, err := query.At(q, limit)
		require.NoError(t, err, text)
		require.Equal(t, want, at, text)
	}
	for _, text := range []string{"resourceVersion=-1", "resourceVersion=x", "continue=token&resourceVersion=7"} {
		_, err := query.At(parse(t, text), 0)
		require.True(t, apierrors.IsBadRequest(err), text)
	}
	_, err := query.Limit(parse(t, "limit=many"))
	require.True(t, apierrors.IsBadRequest(err))
}

func TestScope_UsesTheIndexOnceAndTestsTheRest(t *testing.T) {
	t.Parallel()
	pods := &api.Resource{Names: api.Names{Kind: "Pod"}, Storage: api.Storage{Fields: []string{"spec.nodeName", "status.phase"}, FieldIndex: "spec.nodeName"}}
	q := url.Values{"fieldSelector": {"spec.nodeName=n1,status.phase!=Failed,metadata.name=web"},
		"labelSelector": {"app=web"}}
	scope, err := query.Scope(q, pods, "default")
	require.NoError(t, err)
	require.Equal(t, "default", scope.Namespace)
	require.Equal(t, "n1", scope.IndexValue)
	require.Equal(t, "web", scope.Name)
	labelled := storage.Labels{{Key: "app", Value: "web"}}
	require.True(t, scope.Match(&storage.Object{Labels: labelled, Fields: []string{"n1", "Running"}}))
	require.False(t, scope.Match(&storage.Object{Labels: labelled, Fields: []string{"n1", "Failed"}}))
	require.False(t, scope.Match(&storage.Object{Fields: []string{"n1", "Running"}}))

	scope, err = query.Scope(url.Values{}, pods, "")
	require.NoError(t, err)
	require.Nil(t, scope.Match, "without selectors, there is no test")

	for _, text := range []string{"spec.hostname=a", "a"} {
		_, err = query.Scope(url.Values{"fieldSelector": {text}}, pods, "")
		require.True(t, apierrors.IsBadRequest(err), text)
	}
}
