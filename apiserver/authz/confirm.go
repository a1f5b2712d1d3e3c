package authz

import (
	"context"
)

// Memory is the store that roles, bindings and all else that authorizers read is kept in (storage.Store).
type Memory interface {
	// Frontier is the revision that memory has reached.
	Frontier() int64
	// Revision returns when memory is as new as etcd was when it was called.
	Revision(ctx context.Context) (int64, error)
}

// Rights decide, and list what they would allow.
type Rights interface {
	Authorizer
	Lister
}

// Confirmed asks its members a second time about what they did not allow, when memory is as new as etcd: a right
// holds as soon as it is granted, on whichever server. An unauthenticated user does not cause a read of etcd.
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
