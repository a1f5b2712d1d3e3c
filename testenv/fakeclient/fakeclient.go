// Package fakeclient provides client-go's fake API for informers that transform the objects they receive.
package fakeclient

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/testing"
)

// New is fake.NewClientset with watches that deliver copies. client-go's watch delivers the stored objects
// themselves if it begins after they were made. The informer's transform then writes to them while other goroutines
// read them.
func New(objects ...runtime.Object) *fake.Clientset {
	c := fake.NewClientset(objects...)
	c.PrependWatchReactor("*", func(action testing.Action) (bool, watch.Interface, error) {
		var o metav1.ListOptions
		if a, ok := action.(testing.WatchActionImpl); ok {
			o = a.ListOptions
		}
		w, err := c.Tracker().Watch(action.GetResource(), action.GetNamespace(), o)
		if err != nil {
			return true, nil, err
		}
		return true, copies(w), nil
	})
	return c
}

// copies returns a watch that delivers a copy of each object.
func copies(w watch.Interface) watch.Interface {
	events := make(chan watch.Event)
	proxy := watch.NewProxyWatcher(events)
	go func() {
		defer w.Stop()
		defer close(events)
		for {
			select {
			case e, ok := <-w.ResultChan():
				if !ok {
					return
				}
				e.Object = e.Object.DeepCopyObject()
				select {
				case events <- e:
				case <-proxy.StopChan():
					return
				}
			case <-proxy.StopChan():
				return
			}
		}
	}()
	return proxy
}
