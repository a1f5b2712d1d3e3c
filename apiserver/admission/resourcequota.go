package admission

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/internal/quota"
)

// resourceQuota charges new objects to the ResourceQuotas of their namespace.
//
// The usage of an object is added to the quota's status in the transaction that stores the object,
// compared on the quota's revision: either both are written or neither. So usage can never exceed the
// limit, however many servers write at once, and nothing is charged for an object that was not stored.
// The resourcequota controller recounts what deletions release.
//
// Writers of one namespace on one server take turns, because only one transaction can win a revision;
// those on another server may win meanwhile, and the loser retries.
type resourceQuota struct {
	cluster Cluster
	clock   clock.PassiveClock
	turns   turns
}

func newResourceQuota(env *Env) (Plugin, error) {
	return &resourceQuota{cluster: env.Cluster, clock: env.Options.Clock,
		turns: turns{byNamespace: map[string]*turn{}}}, nil
}

// tracks reports whether a write can use quota: every create, and the updates with which an object can
// come to use more.
func (p *resourceQuota) tracks(a *Attributes) bool {
	switch {
	case a.Namespace == "" || a.Resource.Resource == "events" &&
		(a.Resource.Group == "" || a.Resource.Group == "events.k8s.io"):
		return false
	case a.Operation == Create:
		return a.Subresource == ""
	case a.Operation != Update || a.Resource.Group != "":
		return false
	case a.Subresource == "resize":
		return a.Resource.Resource == "pods"
	}
	return a.Subresource == "" && (a.Resource.Resource == "services" || a.Resource.Resource == "persistentvolumeclaims")
}

// Claim is the quota that a write uses, to be written together with it.
type Claim struct {
	// Quotas are the documents to be stored. The resourceVersion of each is that of the one
	// that it replaces; at any other, the transaction must fail.
	Quotas []*corev1.ResourceQuota
	turn   *turn
	turns  *turns
}

// Settle ends the claim. It must be called once, with the revision of the transaction that
// has stored its Quotas, or with "" if it is not known to have done so.
func (c *Claim) Settle(revision string) {
	if c == nil {
		return
	}
	c.turn.doubt = revision == ""
	for _, q := range c.Quotas {
		if revision == "" {
			delete(c.turn.latest, q.Name)
			continue
		}
		q.ResourceVersion = revision
		c.turn.latest[q.Name] = q
	}
	c.turns.end(c.turn)
}

// claim returns nil for a write that uses no quota.
func (p *resourceQuota) claim(ctx context.Context, a *Attributes) (*Claim, error) {
	quotas, err := list[*corev1.ResourceQuota](ctx, p.cluster, resourceQuotas, a.Namespace)
	if err != nil || !slices.ContainsFunc(quotas, func(q *corev1.ResourceQuota) bool { return concerns(q, a) }) {
		return nil, err
	}
	turn, err := p.turns.take(ctx, a.Namespace)
	if err != nil {
		return nil, err
	}
	charged, err := p.charge(ctx, a, turn)
	if err != nil || len(charged) == 0 || a.DryRun {
		p.turns.end(turn)
		return nil, err
	}
	return &Claim{Quotas: charged, turn: turn, turns: &p.turns}, nil
}

// charge charges the quotas in memory and, before it rejects a write, those in etcd.
func (p *resourceQuota) charge(ctx context.Context, a *Attributes, turn *turn) ([]*corev1.ResourceQuota, error) {
	for fresh := turn.doubt; ; fresh = true {
		objects, err := p.cluster.List(ctx, resourceQuotas, a.Namespace, fresh)
		if err != nil {
			return nil, err
		}
		charged, err := chargeAll(a, turn.newest(assert[*corev1.ResourceQuota](objects)), p.clock.Now())
		if err == nil || fresh {
			return charged, err
		}
	}
}

// chargeAll returns the quotas that change, or the reason why the write exceeds one.
func chargeAll(a *Attributes, quotas []*corev1.ResourceQuota, now time.Time) ([]*corev1.ResourceQuota, error) {
	var charged []*corev1.ResourceQuota
	for _, q := range quotas {
		if !concerns(q, a) {
			continue
		}
		after, err := charge(a, q, now)
		if err != nil {
			return nil, err
		}
		if after != nil {
			charged = append(charged, after)
		}
	}
	return charged, nil
}

// concerns reports whether the object counts against anything that the quota limits. A quota limits
// nothing before its controller has copied the limits into the status.
func concerns(q *corev1.ResourceQuota, a *Attributes) bool {
	for name := range q.Status.Hard {
		if quota.Counts(a.GroupResource(), name) {
			return quota.InScope(&q.Spec, a.Object)
		}
	}
	return false
}

// charge returns the quota with the object's use added, or nil if it uses nothing of it.
func charge(a *Attributes, q *corev1.ResourceQuota, now time.Time) (*corev1.ResourceQuota, error) {
	if pod, ok := a.Object.(*corev1.Pod); ok {
		if err := quota.Unsaid(pod, q.Status.Hard); err != nil {
			return nil, Forbid(a, fmt.Errorf("failed quota: %s: %w", q.Name, err))
		}
	}
	asked := quota.Mask(quota.Usage(a.GroupResource(), a.Object, now), q.Status.Hard)
	var unknown, negative []string
	for name, quantity := range asked {
		if _, ok := q.Status.Used[name]; !ok {
			unknown = append(unknown, string(name))
		}
		if quantity.Sign() < 0 {
			negative = append(negative, string(name))
		}
	}
	switch {
	case len(unknown) > 0:
		return nil, Forbid(a, fmt.Errorf("status unknown for quota: %s, resources: %s", q.Name, sortedWords(unknown)))
	case len(negative) > 0:
		return nil, Forbid(a, fmt.Errorf("quota usage is negative for resource(s): %s", sortedWords(negative)))
	}
	if a.Old != nil && quota.InScope(&q.Spec, a.Old) {
		asked = quota.Growth(asked, quota.Usage(a.GroupResource(), a.Old, now))
	}
	maps.DeleteFunc(asked, func(_ corev1.ResourceName, amount resource.Quantity) bool { return amount.IsZero() })
	if len(asked) == 0 {
		return nil, nil
	}
	used := quota.Add(q.Status.Used, asked)
	if exceeded := quota.Growth(quota.Mask(used, asked), q.Status.Hard); len(exceeded) > 0 {
		return nil, Forbid(a, fmt.Errorf("exceeded quota: %s, requested: %s, used: %s, limited: %s", q.Name,
			amounts(quota.Mask(asked, exceeded)), amounts(quota.Mask(q.Status.Used, exceeded)),
			amounts(quota.Mask(q.Status.Hard, exceeded))))
	}
	after := q.DeepCopy()
	after.Status.Used = used
	return after, nil
}

func sortedWords(words []string) string {
	slices.Sort(words)
	return strings.Join(words, ",")
}

func amounts(list corev1.ResourceList) string {
	var parts []string
	for _, name := range sortedNames(list) {
		quantity := list[name]
		parts = append(parts, fmt.Sprintf("%s=%s", name, quantity.String()))
	}
	return strings.Join(parts, ",")
}
