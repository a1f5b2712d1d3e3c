package admission

import (
	"context"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// turns lets one writer of each namespace at a time claim from its quotas.
type turns struct {
	mu          sync.Mutex
	byNamespace map[string]*turn
}

// turn is the turn of one namespace. Its holder alone may use the fields other than gate and users.
type turn struct {
	gate  chan struct{}
	users int // holders and waiters; guarded by turns.mu
	// latest are the quotas that the last turns have stored. Memory may not have received them yet.
	latest map[string]*corev1.ResourceQuota
	// doubt means that the last transaction failed or its outcome is unknown: another server may have written, and
	// the quotas in memory may be old.
	doubt bool
}

// maxIdle limits the namespaces without a writer that are remembered.
const maxIdle = 1000

// take waits for the namespace's turn. The caller must call end.
func (t *turns) take(ctx context.Context, namespace string) (*turn, error) {
	t.mu.Lock()
	one := t.byNamespace[namespace]
	if one == nil {
		t.forgetIdle()
		one = &turn{gate: make(chan struct{}, 1), latest: map[string]*corev1.ResourceQuota{}}
		t.byNamespace[namespace] = one
	}
	one.users++
	t.mu.Unlock()
	select {
	case one.gate <- struct{}{}:
		return one, nil
	case <-ctx.Done():
		t.leave(one)
		return nil, ctx.Err()
	}
}

func (t *turns) end(one *turn) {
	<-one.gate
	t.leave(one)
}

func (t *turns) leave(one *turn) {
	t.mu.Lock()
	one.users--
	t.mu.Unlock()
}

// forgetIdle drops the turns of idle namespaces. A dropped turn costs one failed transaction at most.
func (t *turns) forgetIdle() {
	if len(t.byNamespace) < maxIdle {
		return
	}
	for namespace, one := range t.byNamespace {
		if one.users == 0 {
			delete(t.byNamespace, namespace)
		}
	}
}

// newest replaces quotas from memory with newer ones that this turn has stored.
func (t *turn) newest(quotas []*corev1.ResourceQuota) []*corev1.ResourceQuota {
	for i, q := range quotas {
		if stored := t.latest[q.Name]; stored != nil && revisionOf(stored) > revisionOf(q) && stored.UID == q.UID {
			quotas[i] = stored
		}
	}
	return quotas
}

func revisionOf(q *corev1.ResourceQuota) int64 {
	revision, _ := strconv.ParseInt(q.ResourceVersion, 10, 64) // the server has written it
	return revision
}
