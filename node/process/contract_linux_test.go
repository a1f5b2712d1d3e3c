package process_test

import (
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/node/process"
	"github.com/coxswain-dev/coxswain/node/process/sandbox"
	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/node/runtime/runtimetest"
	"github.com/coxswain-dev/coxswain/testenv/leak"
)

func TestMain(m *testing.M) {
	sandbox.Main() // the test binary is the shim of its containers
	leak.VerifyTestMain(m)
}

func TestRuntime_KeepsTheContract(t *testing.T) {
	t.Parallel()
	if err := sandbox.Supported(); err != nil {
		t.Skipf("SKIPPED: the process runtime's contract is not tested: it takes root, namespaces and cgroups: %v", err)
	}
	dir := t.TempDir()
	runs := func(script string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Spec.Containers[0].Command = []string{"sh", "-c", script} }
	}
	runtimetest.Run(t, runtimetest.Subject{
		New: func(h runtime.Host) (runtime.Runtime, error) {
			return process.New(h, process.Options{DataDir: dir, Address: "127.0.0.1", Clock: clock.RealClock{},
				Log: slog.New(slog.DiscardHandler)})
		},
		Server: runs("echo begun; exec sleep 1000"),
		Fails:  runs("exit 3"),
	})
}
