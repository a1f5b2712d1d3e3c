// Package admission decides whether an authorized write may be done, and fills in the defaults that depend on the
// cluster.
//
// A write arrives as Attributes: the typed object, the one it replaces, the user. It passes the plugins of the
// table (table.go), in the table's order. First every Mutator may change the object. When the object has been
// validated, every Validator may reject it. ResourceQuota is the last: its claims are written in the object's own
// transaction (Chain.Claim). The result is nil, or an error for the client.
//
// A plugin is one small type, in a file that may have several on one subject (networking.go, storage.go,
// certificates.go, tolerations.go). It is called only for the resources and operations of its line in the table. It
// reads the cluster through the Cluster interface, from the API server's memory; it has no client, no goroutine and no
// cache of its own. The plugins for policies and webhooks are larger, and are packages: policy (expressions in CEL) and
// webhook (calls of other servers). Both use match, which defines Attributes and Cluster.
//
// Names, order, defaults and messages are kube-apiserver's.
// https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/
package admission

import (
	"context"

	"github.com/coxswain-dev/coxswain/apiserver/admission/match"
)

// A write and the cluster, as plugins see them. The package match defines them for the packages policy and webhook.
type (
	Attributes = match.Attributes
	Operation  = match.Operation
	Cluster    = match.Cluster
)

// The operations of a write.
const (
	Create  = match.Create
	Update  = match.Update
	Delete  = match.Delete
	Connect = match.Connect
)

// Plugin is a Mutator, a Validator, or both.
type Plugin any

// Mutator changes an object before it is validated and stored. If a write is retried, it is called again with the
// object as the client sent it, and must have the same result.
type Mutator interface {
	Mutate(ctx context.Context, a *Attributes) error
}

// Validator rejects an object by returning an error. It must not change it.
type Validator interface {
	Validate(ctx context.Context, a *Attributes) error
}
