package storage_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/etcd"
)

// A store on an etcd of its own: a write, a consistent read, and the stream of changes.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "coxswain")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	backend, err := etcd.StartEmbedded(ctx, etcd.EmbeddedOptions{Dir: dir, Unsafe: true})
	if err != nil {
		log.Fatal(err)
	}
	defer backend.Close()
	store, err := storage.Open(ctx, backend, storage.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	pods := store.Collection("core/pods", storage.CollectionOptions{Fields: []string{"spec.nodeName"},
		Index: "spec.nodeName"})
	watcher, err := pods.Watch(ctx, storage.WatchRequest{Scope: storage.Scope{IndexValue: "node-1"}})
	if err != nil {
		log.Fatal(err)
	}
	defer watcher.Close()

	_, err = store.Commit(ctx, storage.Write{
		Op:    storage.Create,
		Key:   storage.Key{Collection: "core/pods", Namespace: "default", Name: "web"},
		Value: []byte(`{"kind":"Pod","metadata":{"name":"web"},"spec":{"nodeName":"node-1"}}`),
	})
	if err != nil {
		log.Fatal(err)
	}
	web, err := pods.Get(ctx, "default", "web", storage.At{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(web.JSON))

	events, err := watcher.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range events {
		fmt.Println(e.Type, e.Object.Key, e.Revision)
	}
	// Output:
	// {"kind":"Pod","metadata":{"resourceVersion":"2","name":"web"},"spec":{"nodeName":"node-1"}}
	// ADDED core/pods/default/web 2
}
