package disruption

import (
	"context"
	"fmt"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/scale"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// expected returns how many pods the budget should have, and how many of them must be healthy. Percentages and
// maxUnavailable refer to the scale of the pods' controllers.
func (b *budgets) expected(ctx context.Context, pdb *policyv1.PodDisruptionBudget,
	pods []*corev1.Pod) (expected, desired int32, err error) {
	switch {
	case pdb.Spec.MaxUnavailable != nil:
		if expected, err = b.scaleOf(ctx, pdb, pods); err != nil {
			return 0, 0, err
		}
		n, err := intstr.GetScaledValueFromIntOrPercent(pdb.Spec.MaxUnavailable, int(expected), true)
		return expected, max(expected-controller.Int32(n), 0), err
	case pdb.Spec.MinAvailable == nil:
		return int32(len(pods)), 0, nil
	case pdb.Spec.MinAvailable.Type == intstr.Int:
		return int32(len(pods)), pdb.Spec.MinAvailable.IntVal, nil
	}
	if expected, err = b.scaleOf(ctx, pdb, pods); err != nil {
		return 0, 0, err
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(pdb.Spec.MinAvailable, int(expected), true)
	return expected, controller.Int32(n), err
}

// scaleOf returns the sum of the replicas in the specs of the pods' controllers.
func (b *budgets) scaleOf(ctx context.Context, pdb *policyv1.PodDisruptionBudget, pods []*corev1.Pod) (int32, error) {
	byOwner := map[types.UID]bool{}
	replicas := map[types.UID]int32{} // a Deployment has pods of several ReplicaSets
	unmanaged := false
	for _, pod := range pods {
		ref := metav1.GetControllerOfNoCopy(pod)
		if ref == nil {
			unmanaged = true
			continue
		}
		if byOwner[ref.UID] {
			continue
		}
		byOwner[ref.UID] = true
		uid, n, err := b.scales.of(ctx, pod.Namespace, *ref)
		if err != nil {
			return 0, fmt.Errorf("scale of the %s %s: %w", ref.Kind, ref.Name, err)
		}
		if uid == "" {
			return 0, fmt.Errorf("found no controllers for pod %q", pod.Name)
		}
		replicas[uid] = n
	}
	if unmanaged {
		b.recorder.Eventf(pdb, corev1.EventTypeWarning, "UnmanagedPods",
			"Pods selected by this PodDisruptionBudget (selector: %v) were found to be unmanaged. As a result, "+
				"the status of the PDB cannot be calculated correctly, which may result in undefined behavior. To "+
				"account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value.",
			metav1.FormatLabelSelector(pdb.Spec.Selector))
	}
	sum := 0
	for _, n := range replicas {
		sum += int(n)
	}
	return controller.Int32(sum), nil
}

// scales finds the replicas in the spec of a pods' controller: in the caches for the kinds of apps/v1, by the
// scale subresource for any other kind.
type scales struct {
	env         *controller.Env
	replicaSets appslisters.ReplicaSetLister
	deployments appslisters.DeploymentLister
	sets        appslisters.StatefulSetLister
	// others returns the clients for all other kinds. Its first call, for the first controller of such a kind,
	// creates them.
	others func() (meta.ResettableRESTMapper, scale.ScalesGetter)
}

func newScales(env *controller.Env) *scales {
	apps := env.Informers.Apps().V1()
	return &scales{
		env: env, replicaSets: apps.ReplicaSets().Lister(), deployments: apps.Deployments().Lister(),
		sets: apps.StatefulSets().Lister(),
		others: sync.OnceValues(func() (meta.ResettableRESTMapper, scale.ScalesGetter) {
			d := env.Client().Discovery()
			mapper := controller.NewMapper(d, env.Clock)
			return mapper, scale.New(d.RESTClient(), mapper, dynamic.LegacyAPIPathResolverFunc,
				scale.NewDiscoveryScaleKindResolver(d))
		}),
	}
}

// watch calls changed with the namespace of each ReplicaSet, Deployment and StatefulSet whose replicas change.
func (s *scales) watch(c *controller.Controller, changed func(namespace string)) {
	apps := s.env.Informers.Apps().V1()
	controller.Watch(c, apps.ReplicaSets().Informer(), controller.Handler[*appsv1.ReplicaSet]{
		Update: func(old, obj *appsv1.ReplicaSet) { notify(changed, obj, old.Spec.Replicas, obj.Spec.Replicas) }})
	controller.Watch(c, apps.Deployments().Informer(), controller.Handler[*appsv1.Deployment]{
		Update: func(old, obj *appsv1.Deployment) { notify(changed, obj, old.Spec.Replicas, obj.Spec.Replicas) }})
	controller.Watch(c, apps.StatefulSets().Informer(), controller.Handler[*appsv1.StatefulSet]{
		Update: func(old, obj *appsv1.StatefulSet) { notify(changed, obj, old.Spec.Replicas, obj.Spec.Replicas) }})
}

func notify(changed func(string), obj metav1.Object, before, after *int32) {
	if count(before) != count(after) {
		changed(obj.GetNamespace())
	}
}

func count(replicas *int32) int32 {
	if replicas == nil {
		return 1
	}
	return *replicas
}

// of returns the replicas in the spec of the pods' owner, and that owner's uid. For a Deployment's ReplicaSet
// the owner is the Deployment. An empty uid means that the owner does not exist.
func (s *scales) of(ctx context.Context, namespace string, ref metav1.OwnerReference) (types.UID, int32, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return "", 0, err
	}
	switch (schema.GroupKind{Group: gv.Group, Kind: ref.Kind}) {
	case schema.GroupKind{Group: "apps", Kind: "ReplicaSet"}:
		rs, err := s.replicaSets.ReplicaSets(namespace).Get(ref.Name)
		if apierrors.IsNotFound(err) || err == nil && rs.UID != ref.UID {
			return "", 0, nil
		}
		if err != nil {
			return "", 0, err
		}
		if owner := metav1.GetControllerOfNoCopy(rs); owner != nil && owner.Kind == "Deployment" {
			d, err := s.deployments.Deployments(namespace).Get(owner.Name)
			if apierrors.IsNotFound(err) || err == nil && d.UID != owner.UID {
				return "", 0, nil
			}
			if err != nil {
				return "", 0, err
			}
			return d.UID, count(d.Spec.Replicas), nil
		}
		return rs.UID, count(rs.Spec.Replicas), nil
	case schema.GroupKind{Group: "apps", Kind: "StatefulSet"}:
		set, err := s.sets.StatefulSets(namespace).Get(ref.Name)
		if apierrors.IsNotFound(err) || err == nil && set.UID != ref.UID {
			return "", 0, nil
		}
		if err != nil {
			return "", 0, err
		}
		return set.UID, count(set.Spec.Replicas), nil
	}
	return s.other(ctx, namespace, gv.WithKind(ref.Kind), ref)
}

func (s *scales) other(ctx context.Context, namespace string, gvk schema.GroupVersionKind, ref metav1.OwnerReference) (
	types.UID, int32, error) {
	mapper, getter := s.others()
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if meta.IsNoMatchError(err) {
		mapper.Reset() // the kind may have been added since
		mapping, err = mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	}
	if err != nil {
		return "", 0, err
	}
	found, err := getter.Scales(namespace).Get(ctx, mapping.Resource.GroupResource(), ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", 0, s.scalable(mapping.Resource)
	case err != nil:
		return "", 0, err
	case found.UID != ref.UID:
		return "", 0, nil
	}
	return found.UID, found.Spec.Replicas, nil
}

// scalable returns an error if a resource has no scale subresource, and nil otherwise: then the object was
// deleted.
func (s *scales) scalable(resource schema.GroupVersionResource) error {
	list, err := s.env.Client().Discovery().ServerResourcesForGroupVersion(resource.GroupVersion().String())
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return err
	}
	for _, r := range list.APIResources {
		if r.Name == resource.Resource+"/scale" {
			return nil
		}
	}
	return fmt.Errorf("%s does not implement the scale subresource", resource.Resource)
}
