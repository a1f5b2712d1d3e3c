package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/retry"
	configv1alpha1 "k8s.io/component-base/config/v1alpha1"
	"k8s.io/utils/clock"
)

// ErrLeadershipLost is returned by Run if the lease could not be renewed in time. The process should end or
// call Run again.
var ErrLeadershipLost = errors.New("leadership lost")

// LeaderElection configures the lease. Zero fields have kube-controller-manager's defaults.
type LeaderElection struct {
	// LeaseDuration is how long other candidates wait after the last renewal that they saw; default 15 s.
	LeaseDuration time.Duration
	// RenewDeadline is how long the leader tries to renew before it stops acting. It must be shorter than
	// LeaseDuration. Default 10 s.
	RenewDeadline time.Duration
	// RetryPeriod is the time between two tries; default 2 s.
	RetryPeriod time.Duration
	// Namespace and Name identify the Lease; default kube-system/kube-controller-manager.
	Namespace, Name string
}

// DefaultLeaderElection returns the defaults of kube-controller-manager.
func DefaultLeaderElection() LeaderElection {
	var d configv1alpha1.LeaderElectionConfiguration
	configv1alpha1.RecommendedDefaultLeaderElectionConfiguration(&d)
	return LeaderElection{d.LeaseDuration.Duration, d.RenewDeadline.Duration, d.RetryPeriod.Duration,
		metav1.NamespaceSystem, "kube-controller-manager"}
}

func (l LeaderElection) withDefaults() LeaderElection {
	defaults := DefaultLeaderElection()
	if l.LeaseDuration == 0 {
		l.LeaseDuration = defaults.LeaseDuration
	}
	if l.RenewDeadline == 0 {
		l.RenewDeadline = defaults.RenewDeadline
	}
	if l.RetryPeriod == 0 {
		l.RetryPeriod = defaults.RetryPeriod
	}
	if l.Namespace == "" {
		l.Namespace = defaults.Namespace
	}
	if l.Name == "" {
		l.Name = defaults.Name
	}
	return l
}

// lead calls act while this process holds the lease, and returns after act has.
//
// The lease is renewed as long as act runs, even after ctx has ended, and released only afterwards: at no time
// do two processes act. The elector's own release is not used, because it comes before its callbacks are
// stopped.
func lead(ctx context.Context, client kubernetes.Interface, recorder record.EventRecorder, o Options,
	act func(context.Context) error) error {
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: o.LeaderElection.Namespace, Name: o.LeaderElection.Name},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity, EventRecorder: recorder},
	}
	electing, stopElecting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopElecting()
	t := &term{act: act, end: stopElecting}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: o.LeaderElection.Name,
		LeaseDuration: o.LeaderElection.LeaseDuration,
		RenewDeadline: o.LeaderElection.RenewDeadline,
		RetryPeriod:   o.LeaderElection.RetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				o.Log.Info("leading", "identity", o.Identity, "lease", o.LeaderElection.Name)
				t.serve(ctx, leading)
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(identity string) {
				o.Log.Info("leader elected", "leader", identity)
			},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	defer context.AfterFunc(ctx, t.stopUnlessServing)()
	elector.Run(electing)
	served, err := t.wait()
	if served {
		release(lock, o)
	}
	if err == nil && ctx.Err() == nil {
		err = ErrLeadershipLost
	}
	return err
}

// term is one term of leadership, from the election to the end of act. The elector calls serve on a goroutine
// of its own, and returns without waiting for it; wait does. mu orders serve against stopUnlessServing and
// wait, so that act is not called after either of them has set over.
type term struct {
	act func(context.Context) error
	end context.CancelFunc // ends the election, and with it the renewals

	mu     sync.Mutex
	served chan struct{} // not nil once act has been called; closed when it has returned
	over   bool          // serve must not call act any more
	err    error         // act's; written before served is closed, and read after
}

func (t *term) serve(ctx, leading context.Context) {
	t.mu.Lock()
	if t.over {
		t.mu.Unlock()
		return
	}
	done := make(chan struct{})
	t.served = done
	t.mu.Unlock()

	defer close(done)
	defer t.end()
	acting, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(leading, stop)()
	t.err = t.act(acting)
}

// stopUnlessServing ends the candidacy of a process that does not lead. A leader ends its term itself, after
// act has returned.
func (t *term) stopUnlessServing() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.served == nil {
		t.over = true
		t.end()
	}
}

// wait returns when act has returned or cannot be called any more, and reports whether it was called.
func (t *term) wait() (served bool, err error) {
	t.mu.Lock()
	t.over = true
	done := t.served
	t.mu.Unlock()
	if done == nil {
		return false, nil
	}
	<-done
	return true, t.err
}

// release clears the lease for the next leader, if this process still holds it. If that fails, the next leader
// waits until the lease expires.
func release(lock *resourcelock.LeaseLock, o Options) {
	ctx, cancel := context.WithTimeout(context.Background(), o.LeaderElection.RenewDeadline)
	defer cancel()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		record, _, err := lock.Get(ctx)
		if err != nil || record.HolderIdentity != lock.Identity() {
			return err
		}
		// The lease counts real time, as in renewals.
		now := metav1.NewTime(clock.RealClock{}.Now())
		return lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
		})
	})
	if err != nil {
		o.Log.Warn("cannot release lease", "err", err)
	}
}
