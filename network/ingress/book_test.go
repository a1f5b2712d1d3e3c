package ingress

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// noSecrets has an empty certificate for every Secret.
type noSecrets map[types.NamespacedName]*certificate

func (s noSecrets) hold(key, by types.NamespacedName) *certificate {
	if s[key] == nil {
		s[key] = newCertificate()
	}
	s[key].users[by]++
	return s[key]
}

func (s noSecrets) release(key, by types.NamespacedName) {
	if s[key].users[by]--; s[key].users[by] == 0 {
		delete(s[key].users, by)
	}
	if len(s[key].users) == 0 {
		delete(s, key)
	}
}

func newTestBook(strict bool) *book { return newBook(newUpstreams(), noSecrets{}, strict) }

// ingressAt makes an Ingress that was created at a second, with one rule.
func ingressAt(namespace, name string, second int64, host string,
	paths ...networkingv1.HTTPIngressPath) *networkingv1.Ingress {
	return &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name),
			CreationTimestamp: metav1.NewTime(time.Unix(second, 0))},
		Spec: networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{{Host: host,
			IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{Paths: paths}}}}},
	}
}

func (b *book) serving(host, path string) string {
	r := b.commit().match(host, path)
	if r == nil {
		return ""
	}
	return r.ingress.String()
}

func TestBook_TheOldestIngressHasAPath(t *testing.T) {
	t.Parallel()
	prefix := func(p string) networkingv1.HTTPIngressPath { return pathOf(networkingv1.PathTypePrefix, p, "s") }
	b := newTestBook(false)
	b.set(ingressAt("victim", "shop", 100, "shop.com", prefix("/")))
	require.Empty(t, texts(b))
	b.set(ingressAt("evil", "takeover", 200, "shop.com", prefix("/"), prefix("/pay")))
	require.Equal(t, "victim/shop", b.serving("shop.com", "/"))
	require.Equal(t, "evil/takeover", b.serving("shop.com", "/pay"), "hosts may be shared by paths")
	require.Equal(t, []string{"evil/takeover Conflict: shop.com/ is served by an older Ingress of another namespace"},
		texts(b))
	require.Empty(t, texts(b), "an Event is written once")

	b.set(ingressAt("evil", "takeover", 200, "SHOP.com", pathOf(networkingv1.PathTypeImplementationSpecific, "/", "s")))
	require.Equal(t, "victim/shop", b.serving("shop.com", "/"))
	b.set(ingressAt("evil", "takeover", 200, "shop.com", pathOf(networkingv1.PathTypeExact, "/", "s")))
	require.Equal(t, "evil/takeover", b.serving("shop.com", "/"), "an exact path is another one")
	b.remove(types.NamespacedName{Namespace: "victim", Name: "shop"})
	require.Equal(t, "", b.serving("shop.com", "/x"))
	require.Equal(t, "evil/takeover", b.serving("shop.com", "/"))
}

// texts are the complaints, as text.
func texts(b *book) []string {
	b.commit()
	var all []string
	for _, c := range b.complaints() {
		all = append(all, fmt.Sprintf("%s/%s %s: %s", c.ingress.Namespace, c.ingress.Name, c.reason, c.message))
	}
	slices.Sort(all)
	return all
}

func TestBook_AHostMayBelongToOneNamespace(t *testing.T) {
	t.Parallel()
	b := newTestBook(true)
	b.set(ingressAt("victim", "shop", 100, "shop.com", pathOf(networkingv1.PathTypePrefix, "/", "s")))
	b.set(ingressAt("evil", "login", 200, "shop.com", pathOf(networkingv1.PathTypeExact, "/login", "s")))
	b.set(ingressAt("victim", "help", 300, "shop.com", pathOf(networkingv1.PathTypePrefix, "/help", "s")))
	require.Equal(t, "victim/shop", b.serving("shop.com", "/login"))
	require.Equal(t, "victim/help", b.serving("shop.com", "/help/me"))
	require.Len(t, texts(b), 1)
}

func TestBook_CertificatesAreTheOldestIngresses(t *testing.T) {
	t.Parallel()
	b := newTestBook(false)
	with := func(namespace string, second int64, hosts ...string) *networkingv1.Ingress {
		i := ingressAt(namespace, "i", second, "a.shop.com")
		i.Spec.TLS = []networkingv1.IngressTLS{{Hosts: hosts, SecretName: "tls"}}
		return i
	}
	b.set(with("victim", 100, "*.shop.com"))
	b.set(with("evil", 200, "*.shop.com", "other.com"))
	of := func(namespace string) *certificate {
		return b.secrets.(noSecrets)[types.NamespacedName{Namespace: namespace, Name: "tls"}]
	}
	require.Same(t, of("victim"), b.commit().certificate("x.shop.com"))
	require.Same(t, of("evil"), b.commit().certificate("other.com"))
	require.Nil(t, b.commit().certificate("x.y.shop.com"))
	b.remove(types.NamespacedName{Namespace: "victim", Name: "i"})
	require.Same(t, of("evil"), b.commit().certificate("x.shop.com"))
	require.Nil(t, of("victim"), "its Secret is not watched any more")
	b.set(with("evil", 200)) // without hosts: those of the rules
	require.Same(t, of("evil"), b.commit().certificate("a.shop.com"))
	require.Nil(t, b.commit().certificate("x.shop.com"))
}

func TestBook_DefaultBackends(t *testing.T) {
	t.Parallel()
	b := newTestBook(false)
	withDefault := func(i *networkingv1.Ingress) *networkingv1.Ingress {
		i.Spec.DefaultBackend = ptrTo(pathOf(networkingv1.PathTypePrefix, "/", "default").Backend)
		return i
	}
	b.set(withDefault(ingressAt("a", "with-rules", 1, "a.com", pathOf(networkingv1.PathTypePrefix, "/x", "s"))))
	require.Equal(t, "a/with-rules", b.serving("a.com", "/other"))
	require.Equal(t, "", b.serving("b.com", "/"), "that is for its own hosts")
	alone := withDefault(ingressAt("b", "alone", 2, ""))
	alone.Spec.Rules = nil
	b.set(alone)
	require.Equal(t, "b/alone", b.serving("b.com", "/"))
	require.Equal(t, "a/with-rules", b.serving("a.com", "/other"))
	b.remove(types.NamespacedName{Namespace: "b", Name: "alone"})
	require.Equal(t, "", b.serving("b.com", "/"))
	require.Len(t, b.upstreams.byPort, 2)
}

func ptrTo[T any](v T) *T { return &v }

func TestBook_RefusesResourceBackendsAndOverlongPaths(t *testing.T) {
	t.Parallel()
	b := newTestBook(false)
	i := ingressAt("a", "i", 1, "a.com", networkingv1.HTTPIngressPath{Path: "/r",
		PathType: ptrTo(networkingv1.PathTypePrefix)}, pathOf(networkingv1.PathTypePrefix, "/"+string(make([]byte, maxPath)), "s"))
	b.set(i)
	complaints := texts(b)
	require.Len(t, complaints, 1)
	require.Contains(t, complaints[0], "resource backends are not supported")
	require.Contains(t, complaints[0], "longer than")
	require.Nil(t, b.commit().match("a.com", "/r").upstream)
}

// TestBook_ChangesLeadWhereAFreshBookDoes changes Ingresses at random, and compares with a book that has seen the last
// of them only.
func TestBook_ChangesLeadWhereAFreshBookDoes(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	hosts, paths := []string{"a.com", "*.a.com", "b.a.com", ""}, []string{"/", "/x", "/x/y"}
	sorts := []networkingv1.PathType{networkingv1.PathTypeExact, networkingv1.PathTypePrefix}
	b, now := newTestBook(false), map[string]*networkingv1.Ingress{}
	for range 500 {
		name := fmt.Sprint("i", random.IntN(6))
		if random.IntN(4) == 0 {
			b.remove(types.NamespacedName{Namespace: "n", Name: name})
			delete(now, name)
		} else {
			i := ingressAt("n", name, int64(random.IntN(3)), hosts[random.IntN(len(hosts))])
			for range random.IntN(3) {
				i.Spec.Rules[0].HTTP.Paths = append(i.Spec.Rules[0].HTTP.Paths,
					pathOf(sorts[random.IntN(2)], paths[random.IntN(len(paths))], fmt.Sprint("s", random.IntN(3))))
			}
			if random.IntN(3) == 0 {
				i.Spec.DefaultBackend = ptrTo(pathOf(sorts[0], "/", "d").Backend)
			}
			b.set(i)
			now[name] = i
		}
		fresh := newTestBook(false)
		for _, i := range now {
			fresh.set(i)
		}
		for _, host := range []string{"a.com", "b.a.com", "c.a.com", "other"} {
			for _, path := range []string{"/", "/x", "/x/", "/x/y", "/x/y/z", "/z"} {
				require.Equal(t, fresh.serving(host, path), b.serving(host, path), "%s%s", host, path)
			}
		}
		require.ElementsMatch(t, slices.Collect(maps.Keys(fresh.upstreams.byPort)),
			slices.Collect(maps.Keys(b.upstreams.byPort)))
	}
}

func bookOf(n int) *book {
	b := newTestBook(false)
	for i := range n {
		b.set(ingressAt("n", fmt.Sprint("i", i), int64(i), fmt.Sprintf("h%d.example.com", i),
			pathOf(networkingv1.PathTypePrefix, "/", fmt.Sprint("s", i)), pathOf(networkingv1.PathTypePrefix, "/api", fmt.Sprint("s", i))))
	}
	b.commit()
	b.complaints()
	return b
}

// BenchmarkBook_Change is one change among 10,000 Ingresses; Rebuild is all of them from nothing.
func BenchmarkBook_Change(b *testing.B) {
	book := bookOf(10000)
	i := 0
	for b.Loop() {
		i++
		book.set(ingressAt("n", "i77", 77, "h77.example.com", pathOf(networkingv1.PathTypePrefix, fmt.Sprint("/", i), "s77")))
		book.commit()
		book.complaints()
	}
}

func BenchmarkBook_Rebuild(b *testing.B) {
	for b.Loop() {
		bookOf(10000)
	}
}

func BenchmarkTable_Match(b *testing.B) {
	t := bookOf(10000).commit()
	for b.Loop() {
		if t.match("h4711.example.com", "/api/v1/things/42") == nil {
			b.Fatal("no route")
		}
	}
}
