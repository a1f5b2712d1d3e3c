// Package history reads the past of objects that a server still has: lists as of an earlier time for get --at, and the
// command timeline, which shows every revision of one object.
//
// [Open] finds how far back a server's past goes, and [History.At] the revision of a time. timeline.go replays the
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

// history is the part of a server's past that it still has. It needs only the Kubernetes API: a list at an exact
// revision is answered until etcd's history is compacted (5 minutes with kube-apiserver, an hour with Coxswain),
// and Leases, which leaders and nodes renew every few seconds, date revisions.
//
// Revisions are compared as the numbers that they are (KEP-5504).
type history struct {
	client kubernetes.Interface
	newest int64
}

// clockNamespaces have Leases that are renewed all the time: the leaders', or else the nodes'.
var clockNamespaces = []string{metav1.NamespaceSystem, "kube-node-lease"}

func Open(ctx context.Context, s *session.Session) (*history, error) {
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
	return &history{client: client, newest: newest}, nil
}

// leases are the Leases of a namespace as they were at a revision.
func (h *history) leases(ctx context.Context, namespace string, revision, limit int64) ([]coordinationv1.Lease, error) {
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

// oldest is the first revision that the server still has.
func (h *history) oldest(ctx context.Context) (int64, error) {
	return h.oldestOf(func(revision int64) error {
		_, err := h.leases(ctx, metav1.NamespaceSystem, revision, 1)
		return err
	})
}

// oldestOf is the first revision at which a list is answered. It differs by namespace: the past of one begins with its
// creation. The number of questions grows with its logarithm.
func (h *history) oldestOf(list func(revision int64) error) (int64, error) {
	return h.search(1, func(revision int64) (bool, error) {
		err := list(revision)
		return !expired(err), ignoreExpired(err)
	})
}

// expired reports whether the server no longer has a revision.
func expired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

func ignoreExpired(err error) error {
	if expired(err) {
		return nil
	}
	return err
}

// moment is a revision and the time it belongs to: written no earlier than from, and before to, between two renewals
// of a Lease. A zero to is now.
type moment struct {
	Revision int64
	from, to time.Time
}

func (m moment) String() string {
	if m.to.IsZero() {
		return fmt.Sprintf("revision %d, the present", m.Revision)
	}
	return fmt.Sprintf("revision %d, between %s and %s", m.Revision, m.from.Local().Format(time.DateTime),
		m.to.Local().Format(time.TimeOnly))
}

// at is the last revision that there was at a time, as far as Leases tell.
func (h *history) At(ctx context.Context, when time.Time) (moment, error) {
	oldest, err := h.oldest(ctx)
	if err != nil {
		return moment{}, err
	}
	clocks := map[int64]time.Time{}
	clock := func(revision int64) (time.Time, error) {
		if known, ok := clocks[revision]; ok {
			return known, nil
		}
		at, err := h.clock(ctx, revision)
		clocks[revision] = at
		return at, err
	}
	if now, err := clock(h.newest); err != nil || now.IsZero() {
		return moment{}, cmp.Or(err, errors.New("this server has no Leases that are renewed, so nothing tells the "+
			"time of its revisions"))
	}
	after, err := h.search(oldest, func(revision int64) (bool, error) {
		at, err := clock(revision)
		return at.After(when), err
	})
	if err != nil {
		return moment{}, err
	}
	m := moment{Revision: after - 1}
	if after > oldest {
		if m.from, err = clock(after - 1); err != nil {
			return moment{}, err
		}
	}
	if after <= h.newest {
		if m.to, err = clock(after); err != nil {
			return moment{}, err
		}
	}
	if m.from.IsZero() {
		return moment{},
			fmt.Errorf("the server's history does not reach back so far: it begins with revision %d, %s ago",
				oldest, terminal.Age(m.to))
	}
	return m, nil
}

// noEarlier is a time before which a revision was not written: when the last Lease before it was renewed, or
// known if that is later.
func (h *history) noEarlier(ctx context.Context, revision string, known time.Time) time.Time {
	n, err := strconv.ParseInt(revision, 10, 64)
	if err != nil {
		return known
	}
	if at, err := h.clock(ctx, n); err == nil && at.After(known) {
		return at
	}
	return known
}

// clock is when the last Lease was renewed at a revision; zero if there were none.
func (h *history) clock(ctx context.Context, revision int64) (newest time.Time, err error) {
	for _, namespace := range clockNamespaces {
		leases, err := h.leases(ctx, namespace, revision, 0)
		if ignoreExpired(err) != nil { // a namespace that is younger had no Leases
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

// search is the first revision from which on a statement holds; one past the newest where it holds for none.
func (h *history) search(from int64, holds func(revision int64) (bool, error)) (int64, error) {
	var failed error
	i := sort.Search(int(h.newest-from+1), func(i int) bool {
		if failed != nil {
			return true
		}
		ok, err := holds(from + int64(i))
		failed = err
		return ok
	})
	return from + int64(i), failed
}
