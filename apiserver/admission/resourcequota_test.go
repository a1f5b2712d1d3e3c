package admission

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// amountsOf returns a list of amounts, given as pairs of name and amount.
func amountsOf(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

func quotaOf(hard, used corev1.ResourceList, scopes ...corev1.ResourceQuotaScope) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{ObjectMeta: meta("q")}
	q.Spec.Scopes = scopes
	q.Status.Hard, q.Status.Used = hard, used
	return q
}

// claims claims quota for a write, and settles the claim. It returns the charged quotas.
func (w *world) claims(t *testing.T, a *Attributes) ([]*corev1.ResourceQuota, error) {
	t.Helper()
	p := w.plugin(t, "ResourceQuota", "").(*resourceQuota)
	if !p.tracks(a) {
		return nil, nil
	}
	claim, err := p.claim(t.Context(), a)
	if claim == nil {
		return nil, err
	}
	defer claim.Settle("")
	return claim.Quotas, err
}

func TestResourceQuota_RejectsWritesThatExceedIt(t *testing.T) {
	t.Parallel()
	pod := podOf(func(s *corev1.PodSpec) { s.Containers = []corev1.Container{container("c", "2", "")} })
	unsaid := podOf(func(s *corev1.PodSpec) { s.Containers = []corev1.Container{container("c", "", "")} })
	negative := claimOf("-1Gi", nil)
	for _, c := range []struct {
		decision
		hard, used corev1.ResourceList
	}{
		{decision{name: "room for it", write: creates(pod)}, amountsOf("pods", "2"), amountsOf("pods", "1")},
		{decision{name: "one too many", write: creates(pod),
			words: "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"},
			amountsOf("pods", "2"), amountsOf("pods", "2")},
		{decision{name: "too much of it", write: creates(pod),
			words: "exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=1, limited: requests.cpu=2"},
			amountsOf("pods", "2", "requests.cpu", "2"), amountsOf("pods", "1", "requests.cpu", "1")},
		{decision{name: "no request of what is limited", write: creates(unsaid),
			words: "failed quota: q: must specify"},
			amountsOf("requests.cpu", "2"), amountsOf("requests.cpu", "0")},
		{decision{name: "a quota that was never counted", write: creates(pod),
			words: "status unknown for quota: q, resources: pods"},
			amountsOf("pods", "2"), nil},
		{decision{name: "a negative amount", write: creates(negative),
			words: "quota usage is negative for resource(s): requests.storage"},
			amountsOf("requests.storage", "2"), amountsOf("requests.storage", "0")},
		{decision{name: "another resource", write: creates(pod)}, amountsOf("services", "0"),
			amountsOf("services", "0")},
		{decision{name: "growth within it", write: updates(claimOf("3Gi", nil), claimOf("2Gi", nil))},
			amountsOf("requests.storage", "3Gi"), amountsOf("requests.storage", "2Gi")},
		{decision{name: "growth beyond it", write: updates(claimOf("4Gi", nil), claimOf("2Gi", nil)),
			words: "exceeded quota: q, requested: requests.storage=2Gi, used: requests.storage=2Gi, limited: requests.storage=3Gi"},
			amountsOf("requests.storage", "3Gi"), amountsOf("requests.storage", "2Gi")},
		{decision{name: "less than before of a quota that is exceeded", write: updates(claimOf("1Gi", nil),
			claimOf("2Gi", nil))},
			amountsOf("requests.storage", "1Gi"), amountsOf("requests.storage", "2Gi")},
		{decision{name: "a change of nothing that is limited", write: updates(claimOf("2Gi", nil),
			claimOf("2Gi", nil))},
			amountsOf("requests.storage", "1Gi"), amountsOf("requests.storage", "2Gi")},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := newWorld(quotaOf(c.hard, c.used)).claims(t, c.write)
			requireDecision(t, c.decision, err)
		})
	}
}

func TestResourceQuota_ChargesTheWritesThatUseIt(t *testing.T) {
	t.Parallel()
	full := amountsOf("pods", "0", "count/events", "0", "count/events.events.k8s.io", "0", "services", "0",
		"count/deployments.apps", "0")
	used := full.DeepCopy()
	pod, dry := podOn("", "p"), creates(podOn("", "p"))
	dry.DryRun = true
	service := &corev1.Service{ObjectMeta: meta("s")}
	balanced := made(service, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer })
	const words = "exceeded quota"
	for _, d := range []decision{
		{name: "a pod", write: creates(pod), words: words},
		{name: "a dry run", write: dry, words: words},
		{name: "a pod's binding", write: subresource(creates(&corev1.Binding{ObjectMeta: meta("p")}), "binding")},
		{name: "a pod's update", write: updates(pod, pod)},
		{name: "an event", write: creates(&corev1.Event{ObjectMeta: meta("e")})},
		{name: "a service", write: creates(service), words: words},
		{name: "a service's update", write: updates(balanced, service)},
		{name: "a node", write: creates(&corev1.Node{ObjectMeta: clusterMeta("n")})},
	} {
		t.Run(d.name, func(t *testing.T) {
			_, err := newWorld(quotaOf(full, used)).claims(t, d.write)
			requireDecision(t, d, err)
		})
	}
	charged, err := newWorld(quotaOf(amountsOf("pods", "1"), amountsOf("pods", "0"))).claims(t, creates(pod))
	require.NoError(t, err)
	require.Equal(t, "pods=1", amounts(charged[0].Status.Used))
	charged, err = newWorld(quotaOf(amountsOf("pods", "1"), amountsOf("pods", "0"))).claims(t, dry)
	require.NoError(t, err)
	require.Empty(t, charged, "a dry run charges nothing")
	services := amountsOf("services.loadbalancers", "0")
	_, err = newWorld(quotaOf(services, services)).claims(t, updates(balanced, service))
	require.ErrorContains(t, err, words, "an update may use more")
	resized := podOf(func(s *corev1.PodSpec) { s.Containers = []corev1.Container{container("c", "2", "")} })
	old := podOf(func(s *corev1.PodSpec) { s.Containers = []corev1.Container{container("c", "1", "")} })
	_, err = newWorld(quotaOf(amountsOf("cpu", "1"), amountsOf("cpu", "1"))).claims(t, subresource(updates(resized,
		old), "resize"))
	require.ErrorContains(t, err, words)
	_, err = newWorld(quotaOf(amountsOf("pods", "0"), amountsOf("pods", "0"),
		corev1.ResourceQuotaScopeNotBestEffort)).claims(t, creates(pod))
	require.NoError(t, err, "the pod is not in the quota's scope")
}

// Memory may be behind: a write is rejected only by the quotas in etcd.
func TestResourceQuota_ReadsEtcdBeforeItRejects(t *testing.T) {
	t.Parallel()
	full, free := quotaOf(amountsOf("pods", "1"), amountsOf("pods", "1")), quotaOf(amountsOf("pods", "1"),
		amountsOf("pods", "0"))
	w := newWorld(full)
	w.fresh = append(w.fresh, free)
	charged, err := w.claims(t, creates(podOn("", "p")))
	require.NoError(t, err)
	require.Equal(t, "pods=1", amounts(charged[0].Status.Used))
	require.Equal(t, "pods=0", amounts(free.Status.Used), "the object in memory is shared")
}

// A turn that is not ended would stop every other writer of the namespace.
func TestResourceQuota_EndsItsTurn(t *testing.T) {
	t.Parallel()
	w := newWorld(quotaOf(amountsOf("pods", "0"), amountsOf("pods", "0")))
	p := w.plugin(t, "ResourceQuota", "").(*resourceQuota)
	for range 2 {
		_, err := p.claim(t.Context(), creates(podOn("", "p")))
		require.ErrorContains(t, err, "exceeded quota")
	}
	turn, err := p.turns.take(t.Context(), "default")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = p.claim(ctx, creates(podOn("", "p")))
	require.ErrorIs(t, err, context.Canceled)
	p.turns.end(turn)
}
