package authz

import (
	"context"
)

// Memory is the store of roles, bindings and the other objects that authorizers read (storage.Store).
type Memory interface {
	// Frontier returns the revision that memory has reached.
	Frontier() int64
	// Revision returns when memory is at least as new as etcd was at the call.
	Revision(ctx context.Context) (int64, error)
}

// Rights decides about requests, and lists a user's rights.
type Rights interface {
	Authorizer
	Lister
}

// Confirmed asks its member a second time about a request that was not allowed, after memory has caught up with
// etcd. So a right applies as soon as it is granted, on every server. An unauthenticated user does not cause a read
// of etcd.
type Confirmed struct {
	Rights
	Memory Memory
}

// Authorize implements Authorizer.
func (c *Confirmed) Authorize(ctx context.Context, a *Attributes) (Decision, string, error) {
	known := c.Memory.Frontier()
	decision, reason, err := c.Rights.Authorize(ctx, a)
	if decision != NoOpinion || !a.User.Authenticated() {
		return decision, reason, err
	}
	if newest, failed := c.Memory.Revision(ctx); failed != nil || newest == known {
		return decision, reason, err
	}
	return c.Rights.Authorize(ctx, a)
}
