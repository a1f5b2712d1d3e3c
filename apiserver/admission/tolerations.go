package admission

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	utilsets "k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/internal/quota"
)

// DefaultTolerationSeconds is how long pods without a toleration of their own stay on a node that is not ready or not
// reachable, unless Options have another number: kube-apiserver's --default-not-ready-toleration-seconds.
const DefaultTolerationSeconds = 300

// defaultTolerationSeconds limits how long pods stay on a node that has failed.
type defaultTolerationSeconds struct{ notReady, unreachable int64 }

func newDefaultTolerationSeconds(env *Env) (Plugin, error) {
	return defaultTolerationSeconds{
		notReady:    cmp.Or(env.Options.NotReadySeconds, DefaultTolerationSeconds),
		unreachable: cmp.Or(env.Options.UnreachableSeconds, DefaultTolerationSeconds),
	}, nil
}

func (p defaultTolerationSeconds) Mutate(_ context.Context, a *Attributes) error {
	pod := a.Object.(*corev1.Pod)
	for _, taint := range []struct {
		key     string
		seconds int64
	}{{corev1.TaintNodeNotReady, p.notReady}, {corev1.TaintNodeUnreachable, p.unreachable}} {
		if slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
			return (t.Key == taint.key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "")
		}) {
			continue
		}
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
			Key: taint.key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
			TolerationSeconds: ptr.To(taint.seconds),
		})
	}
	return nil
}

// extendedResourceToleration lets pods use nodes that are reserved for the extended resources that they request.
type extendedResourceToleration struct{}

func newExtendedResourceToleration(*Env) (Plugin, error) { return extendedResourceToleration{}, nil }

func (extendedResourceToleration) Mutate(ctx context.Context, a *Attributes) error {
	pod := a.Object.(*corev1.Pod)
	extended := utilsets.New[string]()
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for _, c := range containers {
			for name := range c.Resources.Requests {
				if isExtended(name) {
					extended.Insert(string(name))
				}
			}
		}
	}
	for _, name := range utilsets.List(extended) {
		if err := ctx.Err(); err != nil {
			return err
		}
		toleration := corev1.Toleration{Key: name, Operator: corev1.TolerationOpExists}
		if !slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return covers(t, toleration) }) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, toleration)
		}
	}
	return nil
}

func isExtended(name corev1.ResourceName) bool {
	domain, _, qualified := strings.Cut(string(name), "/")
	return qualified && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io") &&
		!strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
}

// The annotations of a namespace that hold tolerations, as JSON.
const (
	defaultTolerations = "scheduler.alpha.kubernetes.io/defaultTolerations"
	allowedTolerations = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
)

// podTolerationRestriction adds a namespace's tolerations to its pods and rejects the ones that it does not allow.
// The plugin's configuration applies to a namespace without annotations.
type podTolerationRestriction struct {
	cluster Cluster
	config  struct {
		Default   []corev1.Toleration `json:"default"`
		Whitelist []corev1.Toleration `json:"whitelist"`
	}
}

func newPodTolerationRestriction(env *Env) (Plugin, error) {
	p := &podTolerationRestriction{cluster: env.Cluster}
	return p, env.Options.Config.into("PodTolerationRestriction", &p.config)
}

func (p *podTolerationRestriction) Mutate(ctx context.Context, a *Attributes) error {
	pod := a.Object.(*corev1.Pod)
	if a.Operation != Create {
		return nil
	}
	added, err := p.of(ctx, a, defaultTolerations, p.config.Default)
	if err != nil {
		return err
	}
	if !quota.BestEffort(pod) { // the kubelet evicts best-effort pods first, so others may stay
		added = append(slices.Clone(added), corev1.Toleration{
			Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists,
			Effect: corev1.TaintEffectNoSchedule,
		})
	}
	pod.Spec.Tolerations, err = mergeTolerations(ctx, added, pod.Spec.Tolerations)
	return err
}

func (p *podTolerationRestriction) Validate(ctx context.Context, a *Attributes) error {
	allowed, err := p.of(ctx, a, allowedTolerations, p.config.Whitelist)
	if err != nil || len(allowed) == 0 {
		return err
	}
	for _, t := range a.Object.(*corev1.Pod).Spec.Tolerations {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !slices.ContainsFunc(allowed, func(other corev1.Toleration) bool { return covers(other, t) }) {
			return a.Forbid(errors.New("pod tolerations (possibly merged with namespace default tolerations) " +
				"conflict with its namespace whitelist"))
		}
	}
	return nil
}

func (p *podTolerationRestriction) of(ctx context.Context, a *Attributes, annotation string,
	otherwise []corev1.Toleration) ([]corev1.Toleration, error) {
	ns, err := get[*corev1.Namespace](ctx, p.cluster, namespaces, "", a.Namespace)
	if err != nil {
		return nil, notFound(err, namespaces, a.Namespace)
	}
	text := ns.Annotations[annotation]
	if text == "" {
		return otherwise, nil
	}
	var own []corev1.Toleration
	if err := json.Unmarshal([]byte(text), &own); err != nil {
		return nil, a.Forbid(fmt.Errorf("annotation %s of namespace %s: %w", annotation, ns.Name, err))
	}
	if len(own) == 0 {
		return otherwise, nil
	}
	return own, nil
}

// mergeTolerations returns the first list, and the tolerations of the second that it does not cover, without the
// ones that another one covers. Each is compared with all others, and there may be many: the comparison ends with
// ctx.
func mergeTolerations(ctx context.Context, first, second []corev1.Toleration) ([]corev1.Toleration, error) {
	all := slices.Concat(first, second)
	var merged []corev1.Toleration
	for i, t := range all {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(merged, func(other corev1.Toleration) bool { return covers(other, t) }) {
			continue
		}
		if slices.ContainsFunc(all[i+1:], func(other corev1.Toleration) bool {
			return covers(other, t) && !equality.Semantic.DeepEqual(other, t)
		}) {
			continue
		}
		merged = append(merged, t)
	}
	return merged, nil
}

// covers reports whether other tolerates every taint that t does, and for at least as long.
func covers(other, t corev1.Toleration) bool {
	switch {
	case other.Key != "" && other.Key != t.Key, other.Key == "" && other.Operator != corev1.TolerationOpExists:
		return false
	case other.Effect != "" && other.Effect != t.Effect:
		return false
	case other.Operator != corev1.TolerationOpExists &&
		(t.Operator == corev1.TolerationOpExists || other.Value != t.Value):
		return false
	case other.TolerationSeconds == nil:
		return true
	}
	return t.TolerationSeconds != nil && *t.TolerationSeconds <= *other.TolerationSeconds
}
