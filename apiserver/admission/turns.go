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

// turn is a namespace's. Who holds it may use its fields but users.
type turn struct {
	gate  chan struct{}
	users int // who hold it or wait for it; guarded by turns.mu
	// latest are the quotas as the last turn has stored them, which memory may not know yet.
	latest map[string]*corev1.ResourceQuota
	// doubt says that the last turn lost against another server, or did not hear whether
	// it has won: what memory holds is old.
	doubt bool
}

// maxIdle is how many namespaces that nobody writes to are remembered.
const maxIdle = 1000

// take waits for the namespace's turn. It must be ended.
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

// forgetIdle makes room. What a forgotten turn knew is found out again by losing once.
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

// newest puts the quotas that this turn knows better in the place of those from memory.
func (t *turn) newest(quotas []*corev1.ResourceQuota) []*corev1.ResourceQuota {
	for i, q := range quotas {
		if known := t.latest[q.Name]; known != nil && revisionOf(known) > revisionOf(q) && known.UID == q.UID {
			quotas[i] = known
		}
	}
	return quotas
}

func revisionOf(q *corev1.ResourceQuota) int64 {
	revision, _ := strconv.ParseInt(q.ResourceVersion, 10, 64) // the server has written it
	return revision
}
