package aggregation_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
)

// BenchmarkAt measures the cost for every request, without APIServices of other servers and with one.
func BenchmarkAt(b *testing.B) {
	const path = "/apis/apps/v1/namespaces/default/deployments/web"
	b.Run("none", func(b *testing.B) {
		c := start(b, apiserver.Options{})
		for b.Loop() {
			if c.Aggregated(path) != nil {
				b.Fatal("is this server's own")
			}
		}
	})
	b.Run("one", func(b *testing.B) {
		c, _ := extended(b, true)
		for b.Loop() {
			if c.Aggregated(path) != nil {
				b.Fatal("is this server's own")
			}
		}
	})
}

// BenchmarkGet compares a GET that is proxied to another server with one that this server answers.
func BenchmarkGet(b *testing.B) {
	c, e := extended(b, true)
	e.answers(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"kind":"Flunder"}`) })
	for name, path := range map[string]string{
		"aggregated": "/apis/wardle.example.com/v1/namespaces/default/flunders/a",
		"own":        "/api/v1/namespaces/default",
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if got := c.get(path); got.code != http.StatusOK {
					b.Fatal(got)
				}
			}
		})
	}
}

// BenchmarkDiscovery measures aggregated discovery with another server's document in it.
func BenchmarkDiscovery(b *testing.B) {
	b.Run("own", func(b *testing.B) {
		c := start(b, apiserver.Options{})
		for b.Loop() {
			c.get("/apis", "Accept", aggregatedDiscovery)
		}
	})
	b.Run("merged", func(b *testing.B) {
		c, _ := extendedBy(b, apiserver.Options{}, describes(map[string]string{"/apis": wardleDiscovery,
			"/apis/wardle.example.com/v1": wardleLegacy}, nil))
		for b.Loop() {
			c.get("/apis", "Accept", aggregatedDiscovery)
		}
	})
}

// BenchmarkEstablish measures how long 500 definitions take to be established, with and without maintaining their
// APIServices.
func BenchmarkEstablish(b *testing.B) {
	const count = 500
	kinds := builtin.Kinds()
	without := slices.DeleteFunc(builtin.Kinds(), func(r *api.Resource) bool { return r.Kind == "APIService" })
	for name, kinds := range map[string][]*api.Resource{"registered": kinds, "unregistered": without} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				c := start(b, apiserver.Options{Registry: api.NewRegistry(kinds...)})
				definitions := c.definitions().ApiextensionsV1().CustomResourceDefinitions()
				b.StartTimer()
				var creating sync.WaitGroup
				for i := range 8 {
					creating.Go(func() {
						for j := i; j < count; j += 8 {
							if _, err := definitions.Create(b.Context(), widgets(fmt.Sprintf("g%d.example.com", j)),
								metav1.CreateOptions{}); err != nil {
								b.Error(err)
							}
						}
					})
				}
				creating.Wait()
				for established := 0; established < count; time.Sleep(tick) {
					list, err := definitions.List(b.Context(), metav1.ListOptions{ResourceVersion: "0"})
					require.NoError(b, err)
					established = 0
					for _, d := range list.Items {
						if apihelpers.IsCRDConditionTrue(&d, apiextensionsv1.Established) {
							established++
						}
					}
				}
			}
		})
	}
}
