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

func newTestRouting(hostPerNamespace bool) *routing {
	return newRouting(newUpstreams(), noSecrets{}, hostPerNamespace)
}

// ingressAt returns an Ingress that was created at a second, with one rule.
func ingressAt(namespace, name string, second int64, host string,
	paths ...networkingv1.HTTPIngressPath) *networkingv1.Ingress {
	return &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name),
			CreationTimestamp: metav1.NewTime(time.Unix(second, 0))},
		Spec: networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{{Host: host,
			IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{Paths: paths}}}}},
	}
}

func (b *routing) serving(host, path string) string {
	r := b.commit().match(host, path)
	if r == nil {
		return ""
	}
	return r.ingress.String()
}

func TestRouting_PathsBelongToTheOldestIngress(t *testing.T) {
	t.Parallel()
	prefix := func(p string) networkingv1.HTTPIngressPath { return pathOf(networkingv1.PathTypePrefix, p, "s") }
	b := newTestRouting(false)
	b.set(ingressAt("victim", "shop", 100, "shop.com", prefix("/")))
	require.Empty(t, texts(b))
	b.set(ingressAt("evil", "takeover", 200, "shop.com", prefix("/"), prefix("/pay")))
	require.Equal(t, "victim/shop", b.serving("shop.com", "/"))
	require.Equal(t, "evil/takeover", b.serving("shop.com", "/pay"), "Ingresses may share a host with different paths")
	require.Equal(t, []string{"evil/takeover Conflict: shop.com/ is served by an older Ingress of another namespace"},
		texts(b))
	require.Empty(t, texts(b), "an Event is not repeated")

	b.set(ingressAt("evil", "takeover", 200, "SHOP.com", pathOf(networkingv1.PathTypeImplementationSpecific, "/", "s")))
	require.Equal(t, "victim/shop", b.serving("shop.com", "/"))
	b.set(ingressAt("evil", "takeover", 200, "shop.com", pathOf(networkingv1.PathTypeExact, "/", "s")))
	require.Equal(t, "evil/takeover", b.serving("shop.com", "/"), "an exact path is different")
	b.remove(types.NamespacedName{Namespace: "victim", Name: "shop"})
	require.Equal(t, "", b.serving("shop.com", "/x"))
	require.Equal(t, "evil/takeover", b.serving("shop.com", "/"))
}

// texts returns the warnings as text.
func texts(b *routing) []string {
	b.commit()
	var all []string
	for _, c := range b.warnings() {
		all = append(all, fmt.Sprintf("%s/%s %s: %s", c.ingress.Namespace, c.ingress.Name, c.reason, c.message))
	}
	slices.Sort(all)
	return all
}

func TestRouting_CanReserveHostsForOneNamespace(t *testing.T) {
	t.Parallel()
	b := newTestRouting(true)
	b.set(ingressAt("victim", "shop", 100, "shop.com", pathOf(networkingv1.PathTypePrefix, "/", "s")))
	b.set(ingressAt("evil", "login", 200, "shop.com", pathOf(networkingv1.PathTypeExact, "/login", "s")))
	b.set(ingressAt("victim", "help", 300, "shop.com", pathOf(networkingv1.PathTypePrefix, "/help", "s")))
	require.Equal(t, "victim/shop", b.serving("shop.com", "/login"))
	require.Equal(t, "victim/help", b.serving("shop.com", "/help/me"))
	require.Len(t, texts(b), 1)
}

func TestRouting_UsesTheCertificateOfTheOldestIngress(t *testing.T) {
	t.Parallel()
	b := newTestRouting(false)
	with := func(namespace string, second int64, hosts ...string) *networkingv1.Ingress {
		i := ingressAt(namespace, "i", second, "a.shop.com")
		i.Spec.TLS = []networkingv1.IngressTLS{{Hosts: hosts, SecretName: "tls"}}
		return i
	}
	b.set(with("victim", 100, "*.shop.com"))
	b.set(with("evil", 200, "*.shop.com", "other.com"))
	certificateOf := func(namespace string) *certificate {
		return b.secrets.(noSecrets)[types.NamespacedName{Namespace: namespace, Name: "tls"}]
	}
	require.Same(t, certificateOf("victim"), b.commit().certificate("x.shop.com"))
	require.Same(t, certificateOf("evil"), b.commit().certificate("other.com"))
	require.Nil(t, b.commit().certificate("x.y.shop.com"))
	b.remove(types.NamespacedName{Namespace: "victim", Name: "i"})
	require.Same(t, certificateOf("evil"), b.commit().certificate("x.shop.com"))
	require.Nil(t, certificateOf("victim"), "its Secret is no longer watched")
	b.set(with("evil", 200)) // without hosts, it applies to the hosts of the rules
	require.Same(t, certificateOf("evil"), b.commit().certificate("a.shop.com"))
	require.Nil(t, b.commit().certificate("x.shop.com"))
}

func TestRouting_DefaultBackends(t *testing.T) {
	t.Parallel()
	b := newTestRouting(false)
	withDefault := func(i *networkingv1.Ingress) *networkingv1.Ingress {
		i.Spec.DefaultBackend = ptrTo(pathOf(networkingv1.PathTypePrefix, "/", "default").Backend)
		return i
	}
	b.set(withDefault(ingressAt("a", "with-rules", 1, "a.com", pathOf(networkingv1.PathTypePrefix, "/x", "s"))))
	require.Equal(t, "a/with-rules", b.serving("a.com", "/other"))
	require.Equal(t, "", b.serving("b.com", "/"), "a default backend applies to its own hosts only")
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

func TestRouting_RejectsResourceBackendsAndOverlongPaths(t *testing.T) {
	t.Parallel()
	b := newTestRouting(false)
	i := ingressAt("a", "i", 1, "a.com", networkingv1.HTTPIngressPath{Path: "/r",
		PathType: ptrTo(networkingv1.PathTypePrefix)}, pathOf(networkingv1.PathTypePrefix, "/"+string(make([]byte, maxPath)), "s"))
	b.set(i)
	warnings := texts(b)
	require.Len(t, warnings, 1)
	require.Contains(t, warnings[0], "resource backends are not supported")
	require.Contains(t, warnings[0], "longer than")
	require.Nil(t, b.commit().match("a.com", "/r").upstream)
}

// TestRouting_ChangesEqualANewRouting changes Ingresses at random, and compares the result with a new routing that
// has only seen the final state.
func TestRouting_ChangesEqualANewRouting(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	hosts, paths := []string{"a.com", "*.a.com", "b.a.com", ""}, []string{"/", "/x", "/x/y"}
	sorts := []networkingv1.PathType{networkingv1.PathTypeExact, networkingv1.PathTypePrefix}
	b, now := newTestRouting(false), map[string]*networkingv1.Ingress{}
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
		fresh := newTestRouting(false)
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

func routingOf(n int) *routing {
	b := newTestRouting(false)
	for i := range n {
		b.set(ingressAt("n", fmt.Sprint("i", i), int64(i), fmt.Sprintf("h%d.example.com", i),
			pathOf(networkingv1.PathTypePrefix, "/", fmt.Sprint("s", i)), pathOf(networkingv1.PathTypePrefix, "/api", fmt.Sprint("s", i))))
	}
	b.commit()
	b.warnings()
	return b
}

// BenchmarkRouting_Change measures one change among 10,000 Ingresses; Rebuild measures building all of them.
func BenchmarkRouting_Change(b *testing.B) {
	routing := routingOf(10000)
	i := 0
	for b.Loop() {
		i++
		routing.set(ingressAt("n", "i77", 77, "h77.example.com", pathOf(networkingv1.PathTypePrefix, fmt.Sprint("/", i), "s77")))
		routing.commit()
		routing.warnings()
	}
}

func BenchmarkRouting_Rebuild(b *testing.B) {
	for b.Loop() {
		routingOf(10000)
	}
}

func BenchmarkTable_Match(b *testing.B) {
	t := routingOf(10000).commit()
	for b.Loop() {
		if t.match("h4711.example.com", "/api/v1/things/42") == nil {
			b.Fatal("no route")
		}
	}
}
