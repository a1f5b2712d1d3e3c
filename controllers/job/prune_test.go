package job

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

func TestJob_KeepsTheNewestAndTheUncountedFailedPods(t *testing.T) {
	t.Parallel()
	client := fake.NewSimpleClientset()
	s := &sync{
		jobs: &jobs{client: func() kubernetes.Interface { return client }},
		job:  &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "j", UID: "j"}},
	}
	born := time.Now()
	for i := range controller.KeepFailed + 3 {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "n", Name: fmt.Sprint("failed-", i), UID: types.UID(fmt.Sprint(i)),
				CreationTimestamp: metav1.NewTime(born.Add(time.Duration(i) * time.Second)),
				OwnerReferences:   []metav1.OwnerReference{*metav1.NewControllerRef(s.job, Kind)},
			},
			Status: corev1.PodStatus{Phase: corev1.PodFailed},
		}
		if i == 1 {
			pod.Finalizers = []string{batchv1.JobTrackingFinalizer}
		}
		s.pods = append(s.pods, pod)
	}
	require.NoError(t, s.prune(t.Context()))
	var deleted []string
	for _, a := range client.Actions() {
		deleted = append(deleted, a.GetVerb()+" "+a.(k8stesting.DeleteAction).GetName())
	}
	require.ElementsMatch(t, []string{"delete failed-0", "delete failed-2"}, deleted)
}
