package job

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/controllers/controller"
)

func TestJob_KeepsTheNewestFailedPodsAndThoseNotCounted(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var deleted []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		deleted = append(deleted, r.Method+" "+path.Base(r.URL.Path))
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`))
	}))
	t.Cleanup(server.Close)
	l := &look{
		jobs: &jobs{client: kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL, QPS: -1})},
		job:  &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "j", UID: "j"}},
	}
	born := time.Now()
	for i := range controller.KeepFailed + 3 {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "n", Name: fmt.Sprint("failed-", i), UID: types.UID(fmt.Sprint(i)),
				CreationTimestamp: metav1.NewTime(born.Add(time.Duration(i) * time.Second)),
				OwnerReferences:   []metav1.OwnerReference{*metav1.NewControllerRef(l.job, Kind)},
			},
			Status: corev1.PodStatus{Phase: corev1.PodFailed},
		}
		if i == 1 {
			pod.Finalizers = []string{batchv1.JobTrackingFinalizer}
		}
		l.pods = append(l.pods, pod)
	}
	require.NoError(t, l.prune(t.Context()))
	require.ElementsMatch(t, []string{"DELETE failed-0", "DELETE failed-2"}, deleted)
}
