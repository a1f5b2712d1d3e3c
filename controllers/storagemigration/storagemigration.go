// Package storagemigration performs StorageVersionMigrations (KEP-4192): it sends an empty patch for every object of a
// resource, so that the API server rewrites objects that are stored in an older version in the current storage version.
// Our API server stores each built-in kind in a single version, so that only custom resources change. The status of
// their definition records the progress and, at the end, that only one stored version is left.
package storagemigration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	storagemigrationlisters "k8s.io/client-go/listers/storagemigration/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

const (
	name = "storage-version-migrator-controller"
	// page is the number of objects in one list request.
	page = 500
)

// The reasons of the conditions, as in kube-controller-manager.
const (
	inProgress = "StorageVersionMigrationInProgress"
	succeeded  = "StorageVersionMigrationSucceeded"
	failed     = "StorageVersionMigrationFailed"
)

// errNotServed means that no API server serves the resource. Its migration fails and is not retried.
var errNotServed = errors.New("resource does not exist in the cluster")

type migrator struct {
	env    *controller.Env
	lister storagemigrationlisters.StorageVersionMigrationLister
}

// New returns the controller. Its keys are StorageVersionMigrations.
func New(env *controller.Env) (*controller.Controller, error) {
	informer := env.Informers.Storagemigration().V1().StorageVersionMigrations()
	m := &migrator{env: env, lister: informer.Lister()}
	c := controller.New(env, name, m.reconcile)
	controller.Watch(c, informer.Informer(), controller.Handler[*storagemigrationv1.StorageVersionMigration]{
		Add:    func(o *storagemigrationv1.StorageVersionMigration) { c.EnqueueObject(o) },
		Update: func(_, o *storagemigrationv1.StorageVersionMigration) { c.EnqueueObject(o) },
	})
	return c, nil
}

// is reports whether a condition of the migration is true.
func is(o *storagemigrationv1.StorageVersionMigration, c storagemigrationv1.MigrationConditionType) bool {
	return apimeta.IsStatusConditionTrue(o.Status.Conditions, string(c))
}

func (m *migrator) reconcile(ctx context.Context, key string) error {
	o, err := m.lister.Get(key)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || o.DeletionTimestamp != nil || is(o, storagemigrationv1.MigrationSucceeded) ||
		is(o, storagemigrationv1.MigrationFailed) {
		return err
	}
	gvr, err := m.find(o.Spec.Resource)
	if errors.Is(err, errNotServed) {
		return m.setCondition(ctx, o, storagemigrationv1.MigrationFailed, failed, err.Error())
	}
	if err != nil {
		return err
	}
	if !is(o, storagemigrationv1.MigrationRunning) {
		list, err := m.env.Metadata().Resource(gvr).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return err
		}
		if err := m.begin(ctx, o.Spec.Resource, o.Name); err != nil {
			return err
		}
		o = o.DeepCopy()
		o.Status.ResourceVersion = list.ResourceVersion
		// This update enqueues the key again.
		return m.setCondition(ctx, o, storagemigrationv1.MigrationRunning, inProgress, "")
	}
	if err := m.migrate(ctx, gvr); err != nil {
		return err
	}
	if err := m.end(ctx, o.Spec.Resource); err != nil {
		return err
	}
	return m.setCondition(ctx, o, storagemigrationv1.MigrationSucceeded, succeeded, "")
}

// find returns the resource in the preferred version of its group.
func (m *migrator) find(resource metav1.GroupResource) (schema.GroupVersionResource, error) {
	var none schema.GroupVersionResource
	lists, err := m.env.Client().Discovery().ServerPreferredResources()
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil || gv.Group != resource.Group {
			continue
		}
		for _, r := range list.APIResources {
			if r.Name == resource.Resource && slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "patch") {
				return gv.WithResource(r.Name), nil
			}
		}
	}
	if err != nil { // its group may be among the groups that could not be read
		return none, err
	}
	return none, fmt.Errorf("%s.%s: %w", resource.Resource, resource.Group, errNotServed)
}

// migrate makes the API server rewrite every object unchanged. An object that was changed or deleted meanwhile needs no
// migration.
func (m *migrator) migrate(ctx context.Context, gvr schema.GroupVersionResource) error {
	options := metav1.ListOptions{Limit: page}
	for {
		list, err := m.env.Metadata().Resource(gvr).List(ctx, options)
		if err != nil {
			return err
		}
		for i := range list.Items {
			o := &list.Items[i]
			patch, err := json.Marshal(
				map[string]any{"metadata": map[string]any{"uid": o.UID, "resourceVersion": o.ResourceVersion}})
			if err != nil {
				return err
			}
			_, err = m.env.Metadata().Resource(gvr).Namespace(o.Namespace).Patch(ctx, o.Name, types.MergePatchType,
				patch, metav1.PatchOptions{FieldManager: name})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return fmt.Errorf("migrate %s %s/%s: %w", gvr.Resource, o.Namespace, o.Name, err)
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return nil
		}
	}
}

// setCondition sets a condition to True. A condition that ends the migration also sets Running to False.
func (m *migrator) setCondition(ctx context.Context, o *storagemigrationv1.StorageVersionMigration,
	condition storagemigrationv1.MigrationConditionType, reason, message string) error {
	o = o.DeepCopy()
	now := metav1.NewTime(m.env.Clock.Now())
	set := func(c storagemigrationv1.MigrationConditionType, status metav1.ConditionStatus) {
		apimeta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{Type: string(c), Status: status,
			Reason: reason, Message: message, LastTransitionTime: now})
	}
	if condition != storagemigrationv1.MigrationRunning {
		set(storagemigrationv1.MigrationRunning, metav1.ConditionFalse)
	}
	set(condition, metav1.ConditionTrue)
	_, err := m.env.Client().StoragemigrationV1().StorageVersionMigrations().UpdateStatus(ctx, o,
		metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
