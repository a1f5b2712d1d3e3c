// Package legacytokencleaner removes Secrets of type kubernetes.io/service-account-token that were generated
// automatically, as clusters did before v1.24, and have not been used for a long time (KEP-2799).
//
// In come the records of the API server: in a ConfigMap, the day since which it has tracked the use of tokens, and
// in a label of each Secret, the day of its last use. A Secret that an account lists, that no pod refers to and
// that was not used within the clean-up period is marked as invalid first, by a label with the day, and the
// API server no longer accepts its token. A user that still needs it removes the label. When it has been invalid for as
// long, and was not asked for either, it is deleted.
// https://kubernetes.io/docs/concepts/security/service-accounts/#legacy-serviceaccount-token-cleaner
package legacytokencleaner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/internal/client/informer"
)

const (
	// TrackingConfigMap, in kube-system, has under the key "since" the day from which uses are recorded.
	TrackingConfigMap = "kube-apiserver-legacy-service-account-token-tracking"
	// LastUsedLabel and InvalidSinceLabel are those of Secrets, with a day.
	LastUsedLabel     = "kubernetes.io/legacy-token-last-used"
	InvalidSinceLabel = "kubernetes.io/legacy-token-invalid-since"

	// interval is how often all Secrets are checked.
	interval = 24 * time.Hour
	// all is the only key.
	all = "all"
)

type cleaner struct {
	*controller.Controller
	env      *controller.Env
	secrets  corelisters.SecretLister
	accounts corelisters.ServiceAccountLister
	pods     corelisters.PodLister
}

// New returns the controller.
func New(env *controller.Env) (*controller.Controller, error) {
	factory := informer.NewFactory(env.Reader, informer.Options{Tweak: func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String()
	}})
	core := env.Informers.Core().V1()
	secrets, accounts, pods := factory.Core().V1().Secrets(), core.ServiceAccounts(), core.Pods()
	c := &cleaner{env: env, secrets: secrets.Lister(), accounts: accounts.Lister(), pods: pods.Lister()}
	c.Controller = controller.New(env, "legacy-service-account-token-cleaner", c.reconcile)
	controller.Watch(c.Controller, secrets.Informer(), controller.Handler[*corev1.Secret]{})
	controller.Watch(c.Controller, accounts.Informer(), controller.Handler[*corev1.ServiceAccount]{})
	controller.Watch(c.Controller, pods.Informer(), controller.Handler[*corev1.Pod]{})
	c.AddInformers(factory)
	c.Enqueue(all)
	return c.Controller, nil
}

func (c *cleaner) reconcile(ctx context.Context, _ string) error {
	tracked, err := c.trackedSince(ctx)
	if err != nil {
		return err
	}
	period, now := c.env.Settings.LegacyTokenCleanUpPeriod, c.env.Clock.Now().UTC()
	c.EnqueuePeriodic(all, interval)
	if now.Before(tracked.Add(period)) {
		return nil // a token that has not been seen may just not have been used yet
	}
	secrets, err := c.secrets.List(labels.Everything())
	if err != nil {
		return err
	}
	mounted := map[string]map[string]bool{}
	var errs []error
	for _, s := range secrets {
		if !s.CreationTimestamp.Time.Before(now.Add(-period)) || s.DeletionTimestamp != nil ||
			usedSince(s, now.Add(-period)) || !c.madeByItself(s) {
			continue
		}
		if mounted[s.Namespace] == nil {
			if mounted[s.Namespace], err = c.referredTo(s.Namespace); err != nil {
				return err
			}
		}
		if mounted[s.Namespace][s.Name] {
			continue
		}
		errs = append(errs, c.retire(ctx, s, now, period))
	}
	return errors.Join(errs...)
}

// trackedSince is the first moment from which on every use has been noted.
func (c *cleaner) trackedSince(ctx context.Context) (time.Time, error) {
	m, err := c.env.Client().CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, TrackingConfigMap,
		metav1.GetOptions{})
	if err != nil {
		return time.Time{}, fmt.Errorf("since when the use of tokens is noted: %w", err)
	}
	day, err := time.Parse(time.DateOnly, m.Data["since"])
	if err != nil {
		return time.Time{}, fmt.Errorf("since when the use of tokens is noted: ConfigMap %s: %w", controller.KeyOf(m),
			err)
	}
	return day.AddDate(0, 0, 1), nil
}

// usedSince reports whether a token was used on the day of that moment or later. One whose label makes no
// sense counts as used: nothing is known of it.
func usedSince(s *corev1.Secret, since time.Time) bool {
	day, ok := s.Labels[LastUsedLabel]
	if !ok {
		return false
	}
	_, err := time.Parse(time.DateOnly, day)
	return err != nil || day >= since.Format(time.DateOnly)
}

// madeByItself reports whether the Secret's account lists it, as it does those that were made for each account.
// A Secret that a user made is kept.
func (c *cleaner) madeByItself(s *corev1.Secret) bool {
	account, err := c.accounts.ServiceAccounts(s.Namespace).Get(s.Annotations[corev1.ServiceAccountNameKey])
	if err != nil {
		return false
	}
	uid := s.Annotations[corev1.ServiceAccountUIDKey]
	return (uid == "" || uid == string(account.UID)) &&
		slices.ContainsFunc(account.Secrets, func(r corev1.ObjectReference) bool { return r.Name == s.Name })
}

// retire marks a Secret as invalid, or deletes one that has been so for the period.
func (c *cleaner) retire(ctx context.Context, s *corev1.Secret, now time.Time, period time.Duration) error {
	secrets := c.env.Client().CoreV1().Secrets(s.Namespace)
	since := s.Labels[InvalidSinceLabel]
	if _, err := time.Parse(time.DateOnly, since); err != nil {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": s.UID, "labels": map[string]string{InvalidSinceLabel: now.Format(time.DateOnly)},
		}})
		if err != nil {
			return err
		}
		_, err = secrets.Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return goneOrElse(err, "mark", s)
	}
	if since >= now.Add(-period).Format(time.DateOnly) {
		return nil
	}
	// One that was used meanwhile is another version.
	return goneOrElse(secrets.Delete(ctx, s.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion},
	}), "delete", s)
}

func goneOrElse(err error, doing string, s *corev1.Secret) error {
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("%s token %s: %w", doing, controller.KeyOf(s), err)
}
