package controller_test

import (
	"context"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/internal/client/informer"
)

// A controller that completes ConfigMaps: each gets a greeting for the name in it.
func Example() {
	client := fake.NewSimpleClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello"},
		Data:       map[string]string{"name": "world"},
	})
	env := &controller.Env{
		Client:    func() kubernetes.Interface { return client },
		Informers: informer.NewFactory(client, informer.Options{}), Clock: clock.RealClock{},
		Log: slog.New(slog.DiscardHandler), Workers: func(string) int { return 1 },
	}
	ctx, cancel := context.WithCancel(context.Background())
	informer := env.Informers.Core().V1().ConfigMaps().Informer()

	greeter := controller.New(env, "greeter", func(ctx context.Context, key string) error {
		cached, ok := controller.Cached[*corev1.ConfigMap](informer, key)
		if !ok {
			return nil // it was deleted
		}
		greeting := "Hello, " + cached.Data["name"] + "!"
		if cached.Data["greeting"] == greeting {
			return nil
		}
		greeted := cached.DeepCopy() // the cache is shared
		greeted.Data["greeting"] = greeting
		greeted, err := env.Client().CoreV1().ConfigMaps(cached.Namespace).Update(ctx, greeted, metav1.UpdateOptions{})
		if err != nil {
			return err // the key is retried, with back-off
		}
		fmt.Println(key, greeted.Data["greeting"])
		cancel() // only an example ends
		return nil
	})
	controller.Watch(greeter, informer, controller.Handler[*corev1.ConfigMap]{
		Add:    func(c *corev1.ConfigMap) { greeter.EnqueueObject(c) },
		Update: func(_, c *corev1.ConfigMap) { greeter.EnqueueObject(c) },
	})
	env.Informers.StartWithContext(ctx)
	greeter.Run(ctx)
	// Output: default/hello Hello, world!
}
