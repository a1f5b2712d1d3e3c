package testenv_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applyapps "k8s.io/client-go/applyconfigurations/apps/v1"
	applycore "k8s.io/client-go/applyconfigurations/core/v1"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/coxswain-dev/coxswain/testenv"
)

// siteReconciler is a typical operator: a ConfigMap describes a site, a Deployment runs it, and a finalizer gives
// the operator time to clean up.
type siteReconciler struct{ client.Client }

const (
	siteLabel     = "example.com/site"
	siteFinalizer = "example.com/site"
	siteReady     = "example.com/ready"
)

var isSite = predicate.NewPredicateFuncs(func(obj client.Object) bool { return obj.GetLabels()[siteLabel] != "" })

// Reconcile implements reconcile.Reconciler.
func (r siteReconciler) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	var site corev1.ConfigMap
	if err := r.Get(ctx, q.NamespacedName, &site); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !site.DeletionTimestamp.IsZero() {
		if err := r.logGoodbye(ctx, &site); err != nil {
			return reconcile.Result{}, err
		}
		before := client.MergeFromWithOptions(site.DeepCopy(), client.MergeFromWithOptimisticLock{})
		if controllerutil.RemoveFinalizer(&site, siteFinalizer) {
			return reconcile.Result{}, r.Patch(ctx, &site, before)
		}
		return reconcile.Result{}, nil
	}
	if controllerutil.AddFinalizer(&site, siteFinalizer) {
		return reconcile.Result{}, r.Update(ctx, &site)
	}
	if err := r.Apply(ctx, r.deployment(&site), client.FieldOwner("sites"), client.ForceOwnership); err != nil {
		return reconcile.Result{}, err
	}
	var d appsv1.Deployment
	if err := r.Get(ctx, q.NamespacedName, &d); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) // the cache will see it soon
	}
	ready := applycore.ConfigMap(site.Name, site.Namespace).WithAnnotations(
		map[string]string{siteReady: strconv.Itoa(int(d.Status.ReadyReplicas))})
	return reconcile.Result{}, r.Apply(ctx, ready, client.FieldOwner("sites-status"))
}

// deployment does not set replicas: another manager may own them.
func (r siteReconciler) deployment(site *corev1.ConfigMap) *applyapps.DeploymentApplyConfiguration {
	labels := map[string]string{siteLabel: site.Name}
	return applyapps.Deployment(site.Name, site.Namespace).
		WithOwnerReferences(applymeta.OwnerReference().WithAPIVersion("v1").WithKind("ConfigMap").
			WithName(site.Name).WithUID(site.UID).WithController(true).WithBlockOwnerDeletion(true)).
		WithSpec(applyapps.DeploymentSpec().
			WithSelector(applymeta.LabelSelector().WithMatchLabels(labels)).
			WithTemplate(applycore.PodTemplateSpec().WithLabels(labels).
				WithSpec(applycore.PodSpec().WithTerminationGracePeriodSeconds(0).
					WithContainers(applycore.Container().WithName("web").WithImage(site.Data["image"])))))
}

// logGoodbye writes a note that outlives the site.
func (r siteReconciler) logGoodbye(ctx context.Context, site *corev1.ConfigMap) error {
	note := applycore.ConfigMap("goodbye-"+site.Name, site.Namespace).WithData(
		map[string]string{"image": site.Data["image"]})
	return r.Apply(ctx, note, client.FieldOwner("sites"))
}

// TestControllerRuntime_RunsAnOperator runs a manager with a cache, an index and a watch of metadata only, which
// reconciles a site from its creation to its deletion.
func TestControllerRuntime_RunsAnOperator(t *testing.T) {
	t.Parallel()
	mgr, err := ctrl.NewManager(testenv.Start(t), ctrl.Options{
		Metrics:    server.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)}, // -count runs it again in one process
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{"default": {}}},
		}},
	})
	require.NoError(t, err)
	require.NoError(t, mgr.GetFieldIndexer().IndexField(t.Context(), &appsv1.Deployment{}, "owner",
		func(obj client.Object) []string {
			if owner := metav1.GetControllerOf(obj); owner != nil {
				return []string{owner.Name}
			}
			return nil
		}))
	require.NoError(t, ctrl.NewControllerManagedBy(mgr).Named("sites").
		For(&corev1.ConfigMap{}, builder.WithPredicates(isSite)).
		Owns(&appsv1.Deployment{}).
		WatchesMetadata(&corev1.Pod{}, handler.Funcs{}).
		Complete(siteReconciler{mgr.GetClient()}))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	defer func() {
		stop()
		require.NoError(t, <-ended)
	}()
	require.True(t, mgr.GetCache().WaitForCacheSync(ctx))

	c := mgr.GetClient()
	key := client.ObjectKey{Namespace: "default", Name: "blog"}
	site := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: key.Name, Namespace: key.Namespace,
			Labels: map[string]string{siteLabel: "yes"}},
		Data: map[string]string{"image": "blog:1"},
	}
	require.NoError(t, c.Create(ctx, site))
	soon(t, func(t *assert.CollectT) {
		require.NoError(t, c.Get(ctx, key, site))
		require.Equal(t, []string{siteFinalizer}, site.Finalizers)
		require.Equal(t, "1", site.Annotations[siteReady])
	})

	// Another manager owns the replicas, and the operator must not change them.
	replicas := applyapps.Deployment(key.Name, key.Namespace).WithSpec(applyapps.DeploymentSpec().WithReplicas(3))
	require.NoError(t, c.Apply(ctx, replicas, client.FieldOwner("autoscaler"), client.ForceOwnership))
	err = c.Apply(ctx,
		applyapps.Deployment(key.Name, key.Namespace).WithSpec(applyapps.DeploymentSpec().WithReplicas(5)),
		client.FieldOwner("someone"))
	require.True(t, apierrors.IsConflict(err), "%v", err)
	soon(t, func(t *assert.CollectT) {
		require.NoError(t, c.Get(ctx, key, site))
		require.Equal(t, "3", site.Annotations[siteReady])
	})
	site.Data["image"] = "blog:2"
	for { // the operator writes to the site as well
		err = c.Update(ctx, site)
		if !apierrors.IsConflict(err) {
			break
		}
		require.NoError(t, mgr.GetAPIReader().Get(ctx, key, site))
		site.Data["image"] = "blog:2"
	}
	require.NoError(t, err)
	soon(t, func(t *assert.CollectT) {
		var owned appsv1.DeploymentList
		require.NoError(t, c.List(ctx, &owned, client.MatchingFields{"owner": key.Name}))
		require.Len(t, owned.Items, 1)
		d := owned.Items[0]
		require.Equal(t, "blog:2", d.Spec.Template.Spec.Containers[0].Image)
		require.EqualValues(t, 3, *d.Spec.Replicas)
		require.EqualValues(t, 3, d.Status.UpdatedReplicas)
	})

	require.NoError(t, c.Delete(ctx, site))
	soon(t, func(t *assert.CollectT) {
		reader := mgr.GetAPIReader()
		require.True(t, apierrors.IsNotFound(reader.Get(ctx, key, &corev1.ConfigMap{})))
		require.True(t, apierrors.IsNotFound(reader.Get(ctx, key, &appsv1.Deployment{})),
			"the garbage collector takes it")
		var pods corev1.PodList
		require.NoError(t, reader.List(ctx, &pods, client.InNamespace("default"),
			client.MatchingLabels{siteLabel: key.Name}))
		require.Empty(t, pods.Items)
		var note corev1.ConfigMap
		require.NoError(t, reader.Get(ctx, client.ObjectKey{Namespace: "default", Name: "goodbye-blog"}, &note))
		require.Equal(t, "blog:2", note.Data["image"])
	})
}

// soon waits until a condition holds.
func soon(t *testing.T, holds func(t *assert.CollectT)) {
	t.Helper()
	require.EventuallyWithT(t, holds, time.Minute, 10*time.Millisecond)
}
