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
// The usage of an object is added to the quota's status in the transaction that stores the object. The transaction
// compares the quota's revision, and writes both or neither. So usage can never exceed the limit, independently of
// the number of servers that write, and an object that was not stored is not charged. The resourcequota controller
// recounts after deletions.
//
// Writers of one namespace on one server take turns, because only one transaction can succeed for a revision. A
// writer on another server may succeed meanwhile; then the transaction fails, and the write is retried.
type resourceQuota struct {
	cluster Cluster
	clock   clock.PassiveClock
	turns   turns
}

func newResourceQuota(env *Env) (Plugin, error) {
	return &resourceQuota{cluster: env.Cluster, clock: env.Options.Clock,
		turns: turns{byNamespace: map[string]*turn{}}}, nil
}

// tracks reports whether a write can use quota: every create, and the updates that can increase an object's usage.
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

// Claim is the quota that a write uses. It is written together with the object.
type Claim struct {
	// Quotas are the documents to store. Each has the resourceVersion of the quota that it replaces. If the stored
	// one is different, the transaction must fail.
	Quotas []*corev1.ResourceQuota
	turn   *turn
	turns  *turns
}

// Settle ends the claim. It must be called once, with the revision of the transaction that has stored its Quotas,
// or with "" if the transaction failed or its outcome is unknown.
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

// charge charges the quotas in memory. Before it rejects a write, it charges the quotas in etcd.
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

// concerns reports whether the object counts against a resource that the quota limits. A quota is not effective
// until its controller has copied the limits into the status.
func concerns(q *corev1.ResourceQuota, a *Attributes) bool {
	for name := range q.Status.Hard {
		if quota.Counts(a.GroupResource(), name) {
			return quota.InScope(&q.Spec, a.Object)
		}
	}
	return false
}

// charge returns the quota with the object's usage added, or nil if the object does not use it.
func charge(a *Attributes, q *corev1.ResourceQuota, now time.Time) (*corev1.ResourceQuota, error) {
	if pod, ok := a.Object.(*corev1.Pod); ok {
		if err := quota.Unsaid(pod, q.Status.Hard); err != nil {
			return nil, a.Forbid(fmt.Errorf("failed quota: %s: %w", q.Name, err))
		}
	}
	requested := quota.Mask(quota.Usage(a.GroupResource(), a.Object, now), q.Status.Hard)
	var unknown, negative []string
	for name, quantity := range requested {
		if _, ok := q.Status.Used[name]; !ok {
			unknown = append(unknown, string(name))
		}
		if quantity.Sign() < 0 {
			negative = append(negative, string(name))
		}
	}
	switch {
	case len(unknown) > 0:
		return nil, a.Forbid(fmt.Errorf("status unknown for quota: %s, resources: %s", q.Name, sortedWords(unknown)))
	case len(negative) > 0:
		return nil, a.Forbid(fmt.Errorf("quota usage is negative for resource(s): %s", sortedWords(negative)))
	}
	if a.Old != nil && quota.InScope(&q.Spec, a.Old) {
		requested = quota.Growth(requested, quota.Usage(a.GroupResource(), a.Old, now))
	}
	maps.DeleteFunc(requested, func(_ corev1.ResourceName, amount resource.Quantity) bool { return amount.IsZero() })
	if len(requested) == 0 {
		return nil, nil
	}
	used := quota.Add(q.Status.Used, requested)
	if exceeded := quota.Growth(quota.Mask(used, requested), q.Status.Hard); len(exceeded) > 0 {
		return nil, a.Forbid(fmt.Errorf("exceeded quota: %s, requested: %s, used: %s, limited: %s", q.Name,
			amounts(quota.Mask(requested, exceeded)), amounts(quota.Mask(q.Status.Used, exceeded)),
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
