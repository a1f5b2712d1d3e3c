package apiserver_test

import (
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func TestList_PagesShowOneRevisionWhileObjectsChange(t *testing.T) {
	t.Parallel()
	s := start(t)
	const n = 25
	var want []string
	for i := range n {
		want = append(want, fmt.Sprintf("c%02d", i))
		s.create(configMaps, configMap(want[i]))
	}
	var got []string
	token, revision := "", ""
	for page := 0; ; page++ {
		l := s.get(configMaps + "?limit=4&continue=" + url.QueryEscape(token)).ok(http.StatusOK)
		got = append(got, l.names()...)
		token, _ = l.at("metadata", "continue").(string)
		if page == 0 {
			revision = l.object().GetResourceVersion()
			require.EqualValues(t, n-4, l.at("metadata", "remainingItemCount"))
		}
		require.Equal(t, revision, l.object().GetResourceVersion(), "all pages are of one revision")
		if token == "" {
			require.Nil(t, l.at("metadata", "remainingItemCount"))
			break
		}
		s.delete(fmt.Sprintf("%s/c%02d", configMaps, n-1-page), nil).ok(http.StatusOK)
		s.create(configMaps, configMap(fmt.Sprintf("d%02d", page)))
	}
	require.Equal(t, want, got)
	require.Len(t, s.get(configMaps).names(), n)
}

func TestList_SelectorsWithLimitGiveNoCount(t *testing.T) {
	t.Parallel()
	s := start(t)
	for i := range 10 {
		s.create(configMaps, with(configMap(fmt.Sprintf("c%d", i)), "labels",
			m{"odd": fmt.Sprint(i%2 == 1), "n": fmt.Sprint(i)}))
	}
	l := s.get(configMaps + "?limit=2&labelSelector=odd%3Dtrue").ok(http.StatusOK)
	require.Equal(t, []string{"c1", "c3"}, l.names())
	require.Nil(t, l.at("metadata", "remainingItemCount"))
	l = s.get(configMaps + "?limit=20&labelSelector=odd%3Dtrue&continue=" + l.at("metadata", "continue").(string)).ok(
		http.StatusOK)
	require.Equal(t, []string{"c5", "c7", "c9"}, l.names())
	require.Nil(t, l.at("metadata", "continue"))
	for selector, want := range map[string][]string{
		"n in (1,2)":             {"c1", "c2"},
		"n notin (0,1,2,3,4),n":  {"c5", "c6", "c7", "c8", "c9"},
		"!n":                     {},
		"n>7":                    {"c8", "c9"},
		"n<1":                    {"c0"},
		"odd!=true,n!=0,n!=2":    {"c4", "c6", "c8"},
		"odd==true,n exists":     nil,
		"kubernetes.io/nothing=": {},
	} {
		l := s.get(configMaps + "?labelSelector=" + url.QueryEscape(selector))
		if want == nil {
			l.refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, "unable to parse")
			continue
		}
		require.Equal(t, want, l.ok(http.StatusOK).names(), selector)
	}
	require.Equal(t, []string{"c3"},
		s.get("/api/v1/configmaps?fieldSelector=metadata.name%3Dc3,metadata.namespace%3Ddefault").names())
	require.Empty(t, s.get(configMaps+"?fieldSelector=metadata.namespace%3Dkube-system").names())
}

func TestList_Tables(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(pods, pod("a"))
	table := func(path string) metav1.Table {
		var table metav1.Table
		require.NoError(t, yaml.Unmarshal(s.get(path, "Accept", asTable+",application/json").ok(http.StatusOK).body,
			&table))
		return table
	}
	list := table(pods)
	columns := map[string]int32{}
	for _, c := range list.ColumnDefinitions {
		columns[c.Name] = c.Priority
	}
	require.Equal(t, map[string]int32{"Name": 0, "Ready": 0, "Status": 0, "Restarts": 0, "Age": 0,
		"IP": 1, "Node": 1, "Nominated Node": 1, "Readiness Gates": 1}, columns)
	require.Len(t, list.Rows, 1)
	require.Equal(t, []any{"a", "0/1", "Pending"}, list.Rows[0].Cells[:3])
	require.NotEmpty(t, list.ResourceVersion)
	require.Contains(t, string(list.Rows[0].Object.Raw), "PartialObjectMetadata")
	one := table(pods + "/a")
	require.Equal(t, list.Rows[0].Cells[:3], one.Rows[0].Cells[:3])

	require.Empty(t, table(pods + "?includeObject=None").Rows[0].Object.Raw)
	require.Contains(t, string(table(pods + "?includeObject=Object").Rows[0].Object.Raw), "containers")
	s.get(pods+"?includeObject=Half", "Accept", asTable).refused(http.StatusBadRequest, metav1.StatusReasonBadRequest,
		"includeObject")
	empty := table("/api/v1/namespaces/kube-system/pods")
	require.Empty(t, empty.Rows)
	require.NotEmpty(t, empty.ColumnDefinitions)
}

func TestList_MetadataOnly(t *testing.T) {
	t.Parallel()
	s := start(t)
	created := s.create(pods, with(pod("a"), "labels", m{"x": "y"})).object()
	l := s.get(pods, "Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io").ok(http.StatusOK)
	require.Equal(t, "PartialObjectMetadataList", l.at("kind"))
	require.Equal(t, "meta.k8s.io/v1", l.at("apiVersion"))
	item := l.at("items").([]any)[0].(m)
	require.Equal(t, created.Object["metadata"], item["metadata"])
	require.NotContains(t, item, "spec")
	one := s.get(pods+"/a", "Accept", asPartial).ok(http.StatusOK)
	require.Equal(t, "PartialObjectMetadata", one.at("kind"))
	require.Equal(t, created.Object["metadata"], one.at("metadata"))
}

func TestList_WithoutItemsHasAnEmptyArray(t *testing.T) {
	t.Parallel()
	s := start(t)
	l := s.get(pods).ok(http.StatusOK)
	require.Equal(t, []any{}, l.at("items"))
	require.Equal(t, "PodList", l.at("kind"))
	require.Equal(t, "v1", l.at("apiVersion"))
	require.NotEmpty(t, l.object().GetResourceVersion())
}

// The row of a pod that has completed shows it, and the row of a DaemonSet has its counts.
func TestTable_ShowsCompletedPodsAndCounts(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create("/api/v1/namespaces/default/pods", pod("p"))
	s.patch("/api/v1/namespaces/default/pods/p/status", mergePatch, m{"status": m{"phase": "Succeeded"}}).ok(
		http.StatusOK)
	table := s.get("/api/v1/namespaces/default/pods/p", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").ok(
		http.StatusOK)
	require.Equal(t,
		[]any{map[string]any{"type": "Completed", "status": "True", "reason": "Succeeded",
			"message": "The pod has completed successfully."}},
		table.at("rows").([]any)[0].(map[string]any)["conditions"])
}
