package load

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func listRevision(list []byte) (string, error) {
	var head struct {
		Metadata metav1.ListMeta
		Items    ignored
	}
	err := json.Unmarshal(list, &head)
	return head.Metadata.ResourceVersion, err
}

// informer starts informers, one after the other, as a controller does. Most of the time is client-go's decoding.
func informer(ctx context.Context, s *Session) (Result, error) {
	if err := s.fill(ctx); err != nil {
		return Result{}, err
	}
	return s.measure(func() ([]time.Duration, error) {
		var took []time.Duration
		for end := time.Now().Add(s.options.Duration); time.Now().Before(end); {
			start := time.Now()
			if err := s.startInformer(ctx); err != nil {
				return nil, err
			}
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		return took, nil
	})
}

func (s *Session) startInformer(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(rest.CopyConfig(s.target.config))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(s.standing))
	defer factory.Shutdown()
	defer cancel()
	pods := factory.Core().V1().Pods()
	synced := pods.Informer().HasSyncedChecker()
	factory.Start(ctx.Done())
	select {
	case <-synced.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	if n := len(pods.Informer().GetStore().ListKeys()); n < s.objects {
		return fmt.Errorf("the informer has %d of %d pods", n, s.objects)
	}
	return nil
}
