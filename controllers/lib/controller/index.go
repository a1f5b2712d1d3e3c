package controller

import "k8s.io/client-go/tools/cache"

// index adds an index of the informer's objects of type T by their keys. It must be called before the informer
// starts; calling it again for the same index has no effect.
func index[T any](informer cache.SharedIndexInformer, name string, keys func(T) []string) error {
	if _, ok := informer.GetIndexer().GetIndexers()[name]; ok {
		return nil
	}
	return informer.AddIndexers(cache.Indexers{name: func(obj any) ([]string, error) {
		o, ok := obj.(T)
		if !ok {
			return nil, nil
		}
		return keys(o), nil
	}})
}

// indexed returns the objects of type T that the index has for any of the keys.
func indexed[T any](informer cache.SharedIndexInformer, name string, keys ...string) ([]T, error) {
	var found []T
	for _, key := range keys {
		objects, err := informer.GetIndexer().ByIndex(name, key)
		if err != nil {
			return nil, err
		}
		for _, obj := range objects {
			if o, ok := obj.(T); ok {
				found = append(found, o)
			}
		}
	}
	return found, nil
}
