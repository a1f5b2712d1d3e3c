package openapi_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/api"
	apidocs "github.com/coxswain-dev/coxswain/api/openapi"
)

func TestDocuments_IndexNamesEveryDocumentByItsHash(t *testing.T) {
	t.Parallel()
	s := registry().Snapshot()
	docs := apidocs.NewDocuments(version)
	data, err := docs.V3Index(s).JSON()
	require.NoError(t, err)
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	require.NoError(t, json.Unmarshal(data, &index))
	require.Len(t, index.Paths, 3)
	for path, entry := range index.Paths {
		require.Equal(t, "/openapi/v3/"+path+"?hash="+docs.V3(s, path).Hash, entry.ServerRelativeURL)
	}
	require.Nil(t, docs.V3(s, "apis/batch/v1"))
}

func TestDocuments_HashIsTheSameForTheSameSet(t *testing.T) {
	t.Parallel()
	a, b := apidocs.NewDocuments(version), apidocs.NewDocuments(version)
	other := apidocs.NewDocuments("v1.2.4+coxswain")
	s := registry().Snapshot()
	require.Equal(t, a.V3Index(s).Hash, b.V3Index(registry().Snapshot()).Hash)
	require.NotEqual(t, a.V3(s, "api/v1").Hash, other.V3(s, "api/v1").Hash)
	require.NotEqual(t, a.V2(s).Hash, other.V2(s).Hash)
}

func TestDocuments_OnlyChangedGroupsAreRebuilt(t *testing.T) {
	t.Parallel()
	r := registry()
	docs := apidocs.NewDocuments(version)
	before := r.Snapshot()
	core, v2, index := docs.V3(before, "api/v1"), docs.V2(before), docs.V3Index(before)
	require.NotNil(t, docs.V3(before, "apis/stable.example.com/v1"))

	tabs := cronTabs()
	require.NoError(t, r.Replace([]*api.Resource{before.Kind(tabs.GVK())}, nil))
	after := r.Snapshot()
	require.Same(t, core, docs.V3(after, "api/v1"))
	require.Nil(t, docs.V3(after, "apis/stable.example.com/v1"))
	require.NotEqual(t, v2.Hash, docs.V2(after).Hash)
	require.NotEqual(t, index.Hash, docs.V3Index(after).Hash)

	require.NotNil(t, docs.V3(before, "apis/stable.example.com/v1"), "a request that began before is still answered")
	require.Same(t, core, docs.V3(after, "api/v1"))
}

func TestDocuments_AreBuiltOnceForConcurrentRequests(t *testing.T) {
	t.Parallel()
	s := registry().Snapshot()
	docs := apidocs.NewDocuments(version)
	results := make([][]byte, 16)
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() { results[i], _ = docs.V3(s, "apis/apps/v1").JSON() })
	}
	wg.Wait()
	for _, data := range results {
		require.NotEmpty(t, data)
		require.Same(t, &results[0][0], &data[0])
	}
}

func BenchmarkV3Index(b *testing.B) {
	s := registry().Snapshot()
	for b.Loop() {
		if _, err := apidocs.NewDocuments(version).V3Index(s).JSON(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkV3Core(b *testing.B) {
	s := registry().Snapshot()
	size := 0
	for b.Loop() {
		data, err := apidocs.NewDocuments(version).V3(s, "api/v1").JSON()
		if err != nil {
			b.Fatal(err)
		}
		size = len(data)
	}
	b.ReportMetric(float64(size), "bytes")
}

func BenchmarkV2(b *testing.B) {
	s := registry().Snapshot()
	for name, form := range map[string]func(*apidocs.Document) ([]byte, error){
		"json": (*apidocs.Document).JSON, "protobuf": (*apidocs.Document).Protobuf,
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := form(apidocs.NewDocuments(version).V2(s)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func Example() {
	docs := apidocs.NewDocuments(version)
	s := registry().Snapshot() // the registry's current set; taken again for each request

	for _, path := range apidocs.V3Paths(s) {
		fmt.Println("/openapi/v3/" + path)
	}
	data, err := docs.V3(s, "apis/apps/v1").JSON()
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println(strings.Contains(string(data), `"operationId":"createAppsV1NamespacedDeployment"`))
	// Output:
	// /openapi/v3/api/v1
	// /openapi/v3/apis/apps/v1
	// /openapi/v3/apis/stable.example.com/v1
	// true
}
