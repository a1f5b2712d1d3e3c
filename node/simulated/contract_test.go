package simulated_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/node/runtime/runtimetest"
	"github.com/coxswain-dev/coxswain/node/simulated"
)

func TestRuntime_KeepsTheContract(t *testing.T) {
	t.Parallel()
	runtimetest.Run(t, runtimetest.Subject{
		New: func(runtime.Host) (runtime.Runtime, error) {
			return simulated.New(simulated.Options{Now: time.Now}), nil
		},
		Server: func(*corev1.Pod) {},
		Fails: func(pod *corev1.Pod) {
			pod.Annotations = map[string]string{simulated.AnnotationExitCode: "3"}
		},
	})
}
