// Package loopback is the API server's client for itself. Parts of the server that keep objects of their own
// (package controlplane the Service kubernetes, package crd the status of definitions) read and write them
// through a Client, and are tested without a server. kube-apiserver connects to itself for that. Here a Client calls
// the store and the verbs directly: there is no HTTP in between, and no authorization.
//
// Client is the interface. Objects implements it over a store, and records the writes in the audit log (audit.go). The
// deletions are left to package apiserver, which has the verbs and must not be imported here.
//
// Webhooks and proxied requests, which only follow Services, have a smaller client: serviceresolver.Reader.
package loopback

import (
	"context"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// Client reads and writes API objects on behalf of the server itself. Its methods are safe for concurrent use.
//
// Create and Update only prepare writes, so that several of them can be committed in one transaction. The objects are
// defaulted and their fields get the server as owner, but they are neither admitted nor validated.
type Client interface {
	// Collection opens the stored objects of a kind.
	Collection(res *api.Resource) *storage.Collection
	// Create returns the write that creates an object. obj becomes the object that is stored.
	Create(res *api.Resource, obj api.Object) (storage.Write, error)
	// Update returns the write that replaces a stored object with a copy that change has modified, or none if the copy
	// is equal. The subresource "status" means that only the status is written.
	Update(ctx context.Context, res *api.Resource, stored *storage.Object, subresource string,
		change func(api.Object)) ([]storage.Write, error)
	// Commit makes writes durable in one transaction, as storage.Store does, and records them in the audit log.
	Commit(ctx context.Context, writes ...storage.Write) (*storage.CommitResult, error)

	// Delete deletes an object at its revision as a client's DELETE would, with all its checks. It returns
	// storage.ErrNotFound if the object is gone, and a Conflict if it has been written meanwhile.
	Delete(ctx context.Context, res *api.Resource, stored *storage.Object) error
	// DeleteAll deletes all objects of a kind, as far as their finalizers permit. As in kube-apiserver, no admission
	// plugin is asked.
	DeleteAll(ctx context.Context, res *api.Resource) error
}
