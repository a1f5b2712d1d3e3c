package sites

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
)

// manager is the field manager of the objects that the operator applies.
const manager = client.FieldOwner("site-operator")

// Reconciler brings the cluster to the state that Sites specify.
type Reconciler struct {
	client.Client
	Events events.EventRecorder
}

// Register adds the operator to a manager. The manager's scheme must have the kinds of AddToScheme.
func Register(mgr ctrl.Manager) error {
	r := &Reconciler{Client: mgr.GetClient(), Events: mgr.GetEventRecorder("site-operator")}
	return ctrl.NewControllerManagedBy(mgr).
		For(&Site{}).
		Owns(&appsv1.Deployment{}).
		Owns(&corev1.ConfigMap{}).
		Watches(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(r.everySite)).
		Complete(r)
}

// Reconcile reads the current state of one Site and takes the next steps. It does not depend on the events that led to
// the state.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	site := &Site{}
	if err := r.Get(ctx, request.NamespacedName, site); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !site.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.finalize(ctx, site)
	}
	if controllerutil.AddFinalizer(site, finalizer) {
		return ctrl.Result{}, retried(r.Update(ctx, site)) // the update triggers another call
	}
	switch err := r.claim(ctx, site); {
	case apierrors.IsConflict(err):
		return ctrl.Result{}, r.report(ctx, site, nil, condition(metav1.ConditionFalse, ReasonDomainTaken,
			"another site has the domain "+site.Spec.Domain))
	case err != nil:
		return ctrl.Result{}, err
	}
	servers, err := r.applyChildren(ctx, site)
	if err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, r.report(ctx, site, servers, readiness(site, servers))
}

// finalize releases the site's domain before the site is removed. The garbage collector deletes its children.
func (r *Reconciler) finalize(ctx context.Context, site *Site) error {
	if !controllerutil.ContainsFinalizer(site, finalizer) {
		return nil
	}
	if err := r.release(ctx, site); err != nil {
		return err
	}
	r.Events.Eventf(site, nil, corev1.EventTypeNormal, "Released", "Release", "the domain %s is free", site.Spec.Domain)
	controllerutil.RemoveFinalizer(site, finalizer)
	return retried(r.Update(ctx, site))
}

// applyChildren applies the site's children, and returns the current Deployment.
func (r *Reconciler) applyChildren(ctx context.Context, site *Site) (*appsv1.Deployment, error) {
	if err := r.Apply(ctx, pages(site), manager, client.ForceOwnership); err != nil {
		return nil, fmt.Errorf("apply the pages: %w", err)
	}
	if err := r.Apply(ctx, servers(site), manager, client.ForceOwnership); err != nil {
		return nil, fmt.Errorf("apply the servers: %w", err)
	}
	deployment := &appsv1.Deployment{}
	err := r.Get(ctx, client.ObjectKeyFromObject(site), deployment)
	return deployment, client.IgnoreNotFound(err) // the cache may not have it yet; its event triggers another call
}

// readiness returns the condition Ready: true if the Deployment runs as many current servers as the site specifies.
func readiness(site *Site, d *appsv1.Deployment) metav1.Condition {
	want, ready := *site.Spec.Replicas, d.Status.ReadyReplicas
	if d.Generation == 0 || d.Status.ObservedGeneration < d.Generation || d.Status.UpdatedReplicas < want ||
		d.Status.Replicas > want || ready < want || *d.Spec.Replicas != want ||
		d.Spec.Template.Annotations[pagesAnnotation] != fingerprint(site.Spec.Pages) {
		return condition(metav1.ConditionFalse, ReasonStarting, fmt.Sprintf("%d of %d servers are ready", ready, want))
	}
	return condition(metav1.ConditionTrue, ReasonServing, fmt.Sprintf("%d servers serve %s", ready, site.Spec.Domain))
}

func condition(status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: Ready, Status: status, Reason: reason, Message: message}
}

// report writes the status if it has changed, and an Event if the condition's reason has changed.
func (r *Reconciler) report(ctx context.Context, site *Site, servers *appsv1.Deployment, ready metav1.Condition) error {
	before := site.DeepCopy()
	site.Status.ObservedGeneration, site.Status.Selector = site.Generation, labelsOf(site).String()
	site.Status.Replicas, site.Status.ReadyReplicas = 0, 0
	if servers != nil {
		site.Status.Replicas, site.Status.ReadyReplicas = servers.Status.Replicas, servers.Status.ReadyReplicas
	}
	ready.ObservedGeneration = site.Generation
	meta.SetStatusCondition(&site.Status.Conditions, ready)
	if equality.Semantic.DeepEqual(site.Status, before.Status) {
		return nil
	}
	if err := r.Status().Update(ctx, site); err != nil {
		return retried(err)
	}
	if old := meta.FindStatusCondition(before.Status.Conditions, Ready); old == nil || old.Reason != ready.Reason {
		kind := corev1.EventTypeNormal
		if ready.Reason == ReasonDomainTaken {
			kind = corev1.EventTypeWarning
		}
		r.Events.Eventf(site, nil, kind, ready.Reason, "Reconcile", "%s", ready.Message)
	}
	return nil
}

// retried returns nil for the error of a write to a site that is newer than in the cache, or that no longer exists: the
// event of that change triggers another call.
func retried(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
}
