// Package history reads the past of objects that a server still has: lists as of an earlier time for get --at, and the
// command timeline, which shows every revision of one object.
//
// [Open] asks a server for its newest revision, [History.At] finds the revision of a time. timeline.go replays the
// revisions of an object by a watch, delta.go compares two of them.
package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
	"github.com/coxswain-dev/coxswain/kubectl-lite/terminal"
)

// History reads the past that a server still has. It needs only the Kubernetes API: a server answers a list at an exact
// revision until etcd's history is compacted (5 minutes with kube-apiserver, an hour with Coxswain). Leases date the
// revisions, because leaders and nodes renew them every few seconds.
//
// Revisions are numbers and compared as such (KEP-5504).
type History struct {
	client kubernetes.Interface
	newest int64 // the server's revision at Open
}

// clockNamespaces have Leases that are renewed all the time. Only if the first has none (leaders), the second is read
// (nodes).
var clockNamespaces = []string{metav1.NamespaceSystem, "kube-node-lease"}

// Open asks the server for its newest revision.
func Open(ctx context.Context, s *session.Session) (*History, error) {
	client, err := s.KubernetesClientSet()
	if err != nil {
		return nil, err
	}
	list, err := client.CoordinationV1().Leases(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	newest, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("this server's revisions are no numbers: %q", list.ResourceVersion)
	}
	return &History{client: client, newest: newest}, nil
}

// leases lists the Leases of a namespace as of a revision.
func (h *History) leases(ctx context.Context, namespace string, revision, limit int64) ([]coordinationv1.Lease, error) {
	list, err := h.client.CoordinationV1().Leases(namespace).List(ctx, metav1.ListOptions{
		ResourceVersion:      strconv.FormatInt(revision, 10),
		ResourceVersionMatch: metav1.ResourceVersionMatchExact,
		Limit:                limit,
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// oldest finds the first revision that the server still has.
func (h *History) oldest(ctx context.Context) (int64, error) {
	return h.oldestOf(func(revision int64) error {
		_, err := h.leases(ctx, metav1.NamespaceSystem, revision, 1)
		return err
	})
}

// oldestOf finds the first revision at which list succeeds. It depends on the namespace: its past begins with its
// creation. The number of requests grows with the logarithm of the number of revisions.
func (h *History) oldestOf(list func(revision int64) error) (int64, error) {
	return h.search(1, func(revision int64) (bool, error) {
		err := list(revision)
		return !expired(err), ignoreExpired(err)
	})
}

// expired reports whether an error says that the server no longer has a revision.
func expired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

func ignoreExpired(err error) error {
	if expired(err) {
		return nil
	}
	return err
}

// Moment is a revision and when it was the newest one: from start (included) to end, which are renewals of a Lease. end
// is zero if it still is the newest.
type Moment struct {
	Revision   int64
	start, end time.Time
}

func (m Moment) String() string {
	if m.end.IsZero() {
		return fmt.Sprintf("revision %d, the present", m.Revision)
	}
	return fmt.Sprintf("revision %d, between %s and %s", m.Revision, m.start.Local().Format(time.DateTime),
		m.end.Local().Format(time.TimeOnly))
}

// At finds the last revision before a time, by the renewals of Leases.
func (h *History) At(ctx context.Context, when time.Time) (Moment, error) {
	oldest, err := h.oldest(ctx)
	if err != nil {
		return Moment{}, err
	}
	clocks := map[int64]time.Time{}
	clock := func(revision int64) (time.Time, error) {
		if renewal, ok := clocks[revision]; ok {
			return renewal, nil
		}
		renewal, err := h.clock(ctx, revision)
		clocks[revision] = renewal
		return renewal, err
	}
	if now, err := clock(h.newest); err != nil || now.IsZero() {
		return Moment{}, cmp.Or(err, errors.New("this server has no Leases that are renewed, so nothing tells the "+
			"time of its revisions"))
	}
	after, err := h.search(oldest, func(revision int64) (bool, error) {
		renewal, err := clock(revision)
		return renewal.After(when), err
	})
	if err != nil {
		return Moment{}, err
	}
	m := Moment{Revision: after - 1}
	if after > oldest {
		if m.start, err = clock(after - 1); err != nil {
			return Moment{}, err
		}
	}
	if after <= h.newest {
		if m.end, err = clock(after); err != nil {
			return Moment{}, err
		}
	}
	if m.start.IsZero() {
		return Moment{},
			fmt.Errorf("the server's history does not reach back so far: it begins with revision %d, %s ago",
				oldest, terminal.Age(m.end))
	}
	return m, nil
}

// noEarlier returns the latest time that is certain to be before a revision was written: the last renewal of a Lease
// before it, or bound if that is later.
func (h *History) noEarlier(ctx context.Context, revision string, bound time.Time) time.Time {
	n, err := strconv.ParseInt(revision, 10, 64)
	if err != nil {
		return bound
	}
	if renewal, err := h.clock(ctx, n); err == nil && renewal.After(bound) {
		return renewal
	}
	return bound
}

// clock returns the time of the last renewal of a Lease as of a revision, or zero if there were no Leases.
func (h *History) clock(ctx context.Context, revision int64) (newest time.Time, err error) {
	for _, namespace := range clockNamespaces {
		leases, err := h.leases(ctx, namespace, revision, 0)
		if ignoreExpired(err) != nil { // if it has expired, the namespace is younger and had no Leases
			return time.Time{}, err
		}
		for _, lease := range leases {
			if renewed := lease.Spec.RenewTime; renewed != nil && renewed.After(newest) {
				newest = renewed.Time
			}
		}
		if !newest.IsZero() {
			break
		}
	}
	return newest, nil
}

// search finds the first revision for which holds is true, if it stays true afterwards. The result is one past the
// newest revision if it is true for none.
func (h *History) search(first int64, holds func(revision int64) (bool, error)) (int64, error) {
	var failed error
	i := sort.Search(int(h.newest-first+1), func(i int) bool {
		if failed != nil {
			return true
		}
		ok, err := holds(first + int64(i))
		failed = err
		return ok
	})
	return first + int64(i), failed
}
