package kubectllite

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/dynamic"

	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
)

// observe calls settled with an object now and after every change, until it returns true or an error. It passes nil
// while the object does not exist. If a watch ends early, or its revision has expired, observe lists and watches again.
func observe(ctx context.Context, client dynamic.ResourceInterface, name string,
	settled func(*unstructured.Unstructured) (bool, error)) error {
	only := fields.OneTermEqualSelector("metadata.name", name).String()
	for {
		list, err := client.List(ctx, metav1.ListOptions{FieldSelector: only})
		if err != nil {
			return orContext(ctx, err)
		}
		var current *unstructured.Unstructured
		if len(list.Items) > 0 {
			current = &list.Items[0]
		}
		if done, err := settled(current); done || err != nil {
			return err
		}
		changes, err := client.Watch(ctx,
			metav1.ListOptions{FieldSelector: only, ResourceVersion: list.GetResourceVersion()})
		if err != nil {
			return orContext(ctx, err)
		}
		done, err := untilSettled(ctx, changes, settled)
		changes.Stop()
		if done || err != nil {
			return err
		}
	}
}

// untilSettled reads one watch. It returns false if the stream ended before settled returned true.
func untilSettled(ctx context.Context, changes watch.Interface,
	settled func(*unstructured.Unstructured) (bool, error)) (bool, error) {
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case event, open := <-changes.ResultChan():
			if !open {
				return false, ctx.Err()
			}
			var done bool
			var err error
			switch event.Type {
			case watch.Added, watch.Modified:
				done, err = settled(event.Object.(*unstructured.Unstructured))
			case watch.Deleted:
				done, err = settled(nil)
			case watch.Error:
				if err = apierrors.FromObject(event.Object); apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
					return false, nil
				}
			}
			if done || err != nil {
				return done, err
			}
		}
	}
}

// orContext returns the error of the context, if it has ended, instead of the request's error that this caused.
func orContext(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// withOptionalTimeout returns a context with the timeout d, or without one if d is 0.
func withOptionalTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

// errTimedOut is kubectl's error for a wait that took too long.
var errTimedOut = errors.New("timed out waiting for the condition")

// timedOut replaces the error of a deadline by kubectl's.
func timedOut(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errTimedOut
	}
	return err
}

// objectClient returns a client for objects of info's kind, in info's namespace if it has one.
func objectClient(s *session.Session, info *resource.Info) (dynamic.ResourceInterface, error) {
	client, err := s.DynamicClient()
	if err != nil {
		return nil, err
	}
	if info.Namespaced() {
		return client.Resource(info.Mapping.Resource).Namespace(info.Namespace), nil
	}
	return client.Resource(info.Mapping.Resource), nil
}
