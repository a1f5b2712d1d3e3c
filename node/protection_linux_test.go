package node_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/network/router"
	"github.com/coxswain-dev/coxswain/node"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// closedRouter is a router that does not know its policies until it is opened.
type closedRouter struct {
	*router.Router
	opened  *atomic.Bool
	changed func()
}

var errPolicies = errors.New("network policies are not known")

func (r closedRouter) Problem() error {
	if r.opened.Load() {
		return nil
	}
	return errPolicies
}

func (r closedRouter) Protect(context.Context, *corev1.Pod, ...netip.Addr) error { return r.Problem() }

func (r closedRouter) Conditions() []corev1.NodeCondition { return nil }

func TestPrograms_StartOnceTheirNetworkPoliciesAreInForce(t *testing.T) {
	t.Parallel()
	var opened atomic.Bool
	made := make(chan closedRouter, 1)
	p := startPrograms(t, node.Options{Names: []string{"policies-0"},
		OpenRouter: func(namespace *os.File, changed func()) (runtime.Router, error) {
			r, err := router.Open(namespace, router.Options{})
			if err != nil {
				return nil, err
			}
			closed := closedRouter{r, &opened, changed}
			made <- closed
			return closed, nil
		}})
	condition := func(status corev1.ConditionStatus, reason string) bool {
		n, err := p.CoreV1().Nodes().Get(t.Context(), "policies-0", metav1.GetOptions{})
		return err == nil && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeNetworkUnavailable && c.Status == status && c.Reason == reason
		})
	}
	p.run("web", "policies-0", "sleep infinity", func(pod *corev1.Pod) {
		pod.Spec.InitContainers = []corev1.Container{{Name: "first", Image: "any", Command: []string{"true"}}}
	})
	p.eventually("the Node reports its network", func() bool {
		return condition(corev1.ConditionTrue, "NetworkNotReady")
	})
	p.eventually("an Event says why the pod does not start", func() bool {
		list, err := p.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.Reason == "NetworkNotReady" && e.InvolvedObject.Name == "web"
		})
	})
	for _, s := range append(p.pod("web").Status.InitContainerStatuses, p.pod("web").Status.ContainerStatuses...) {
		require.NotNil(t, s.State.Waiting, "no container has started, init containers included")
	}
	opened.Store(true)
	(<-made).changed()
	p.eventually("it runs", func() bool { return p.pod("web").Status.Phase == corev1.PodRunning })
	p.eventually("the Node reports its network", func() bool {
		return condition(corev1.ConditionFalse, "PodsConnected")
	})
}
