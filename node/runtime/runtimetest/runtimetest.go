// Package runtimetest tests the contract of a container runtime: the properties that the agent relies on. Each
// runtime's tests call Run.
package runtimetest

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// now returns the machine's time, which real processes use.
var now = clock.RealClock{}.Now

// Subject is the runtime under test.
type Subject struct {
	// New creates the runtime. It is called again after Close, as by a restarted agent, and must find the containers
	// and logs of the earlier instance.
	New func(runtime.Host) (runtime.Runtime, error)
	// Server changes a pod so that its container runs until it is stopped; Fails so that it exits with code 3.
	Server, Fails func(*corev1.Pod)
}

// Run tests a runtime against the contract.
func Run(t *testing.T, s Subject) {
	t.Helper()
	for name, check := range map[string]func(*testing.T, *world){
		"prefixes container IDs with its name":           namesItself,
		"runs a container until it is stopped":           stops,
		"reports how a container ended":                  reportsTheEnd,
		"leaves containers to a later agent":             adopts,
		"ends a pod that is torn down and keeps its log": tearsDown,
		"forgets unknown pods":                           sweeps,
		"sets a pod up again while its containers run":   setsUpAgain,
		"reports a usage that is not negative":           reportsUsage,
		"gives a second run of a container another ID":   countsRuns,
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{t: t, Subject: s}
			w.restart()
			t.Cleanup(func() {
				for _, pod := range w.pods {
					require.NoError(t, w.TearDown(context.Background(), pod))
					require.NoError(t, w.Forget(context.Background(), pod.UID))
				}
				w.Close()
			})
			check(t, w)
		})
	}
}

// world is a runtime and its host, which has no subnet and an empty API.
type world struct {
	Subject
	runtime.Runtime
	t     *testing.T
	pods  []*corev1.Pod
	woken atomic.Int64
}

// restart closes the runtime and creates that of a later agent.
func (w *world) restart() {
	w.t.Helper()
	if w.Runtime != nil {
		w.Close()
	}
	var err error
	w.Runtime, err = w.New(w)
	require.NoError(w.t, err)
}

func (*world) Event(*corev1.Pod, string, string, string)     {}
func (*world) NodeEvent(string, string, string, string)      {}
func (w *world) Wake(runtime.PodKey)                         { w.woken.Add(1) }
func (*world) Refresh(runtime.PodKey)                        {}
func (*world) NodeChanged(string)                            {}
func (*world) Client(string) kubernetes.Interface            { return fake.NewClientset() }
func (*world) Subnet(string) netip.Prefix                    { return netip.Prefix{} }
func (w *world) container(pod *corev1.Pod) *corev1.Container { return &pod.Spec.Containers[0] }

// pod returns a pod that is set up.
func (w *world) pod(name string, change func(*corev1.Pod)) *corev1.Pod {
	w.t.Helper()
	no, grace := false, int64(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{
			NodeName: "node-0", HostNetwork: true, EnableServiceLinks: &no, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "c", Image: "any", TerminationMessagePath: "/dev/termination-log"}},
		},
	}
	change(pod)
	w.pods = append(w.pods, pod)
	_, err := w.SetUp(w.t.Context(), pod, nil)
	require.NoError(w.t, err)
	return pod
}

func (w *world) start(pod *corev1.Pod, run int32) runtime.Container {
	w.t.Helper()
	image, err := w.Pull(w.t.Context(), runtime.PullRequest{Pod: pod, Image: w.container(pod).Image,
		Progress: func() {}})
	require.NoError(w.t, err)
	require.NotEmpty(w.t, image.ID)
	c, err := w.Start(w.t.Context(), pod, w.container(pod), run, now())
	require.NoError(w.t, err)
	return c
}

// ready waits until a container is ready.
func (w *world) ready(c runtime.Container) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		s := c.State(now())
		require.Nil(w.t, s.Exit, "it runs")
		return s.Ready && !s.Starting
	}, time.Minute, time.Millisecond)
}

// exit waits until a container has ended.
func (w *world) exit(c runtime.Container) *runtime.Exit {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return c.State(now()).Exit != nil }, time.Minute, time.Millisecond)
	s := c.State(now())
	require.False(w.t, s.Ready)
	require.Equal(w.t, s, c.State(now()), "an end is final")
	return s.Exit
}

func namesItself(t *testing.T, w *world) {
	pod := w.pod("p", w.Server)
	name, version, ok := strings.Cut(w.Version(), "://")
	require.True(t, ok && version != "", w.Version())
	require.True(t, strings.HasPrefix(w.start(pod, 0).ID(), name+"://"))
}

func stops(t *testing.T, w *world) {
	c := w.start(w.pod("p", w.Server), 0)
	w.ready(c)
	c.Stop(now(), time.Second)
	c.Stop(now(), time.Second)
	w.exit(c)
	c.Stop(now(), 0)
}

func reportsTheEnd(t *testing.T, w *world) {
	began := now()
	exit := w.exit(w.start(w.pod("p", w.Fails), 0))
	require.EqualValues(t, 3, exit.Code)
	require.WithinRange(t, exit.At, began.Add(-time.Second), now())
}

func countsRuns(t *testing.T, w *world) {
	pod := w.pod("p", w.Fails)
	first := w.start(pod, 0)
	w.exit(first)
	second := w.start(pod, 1)
	w.exit(second)
	require.NotEqual(t, first.ID(), second.ID())
}

func adopts(t *testing.T, w *world) {
	pod := w.pod("p", w.Server)
	c, began := w.start(pod, 0), now()
	w.ready(c)
	started := true
	status := &corev1.ContainerStatus{Name: "c", ContainerID: c.ID(), Ready: true, Started: &started}
	status.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(began)}
	w.restart()
	taken, err := w.Adopt(t.Context(), pod, w.container(pod), status)
	require.NoError(t, err)
	require.Equal(t, c.ID(), taken.ID())
	w.ready(taken)
	taken.Stop(now(), time.Second)
	w.exit(taken)
}

func tearsDown(t *testing.T, w *world) {
	pod := w.pod("p", w.Server)
	w.ready(w.start(pod, 0))
	require.NoError(t, w.TearDown(t.Context(), pod))
	require.NoError(t, w.TearDown(t.Context(), pod), "it may be repeated")
	log, err := w.OpenLog(pod, &runtime.LogRun{Container: "c", Started: now(),
		Ended: func() (time.Time, bool) { return now(), true }})
	require.NoError(t, err)
	defer func() { require.NoError(t, log.Close()) }()
	for err == nil {
		_, err = log.Next()
	}
	require.True(t, errors.Is(err, io.EOF), "%v", err)
	require.NoError(t, w.Forget(t.Context(), pod.UID))
	require.NoError(t, w.Forget(t.Context(), pod.UID), "it may be repeated")
}

func sweeps(t *testing.T, w *world) {
	known, unknown := w.pod("known", w.Server), w.pod("unknown", w.Server)
	c := w.start(known, 0)
	w.ready(c)
	w.start(unknown, 0)
	w.Sweep(t.Context(), func(uid types.UID) bool { return uid == known.UID })
	require.Nil(t, c.State(now()).Exit)
	require.NoError(t, w.TearDown(t.Context(), unknown), "what was forgotten needs nothing")
}

func setsUpAgain(t *testing.T, w *world) {
	pod := w.pod("p", w.Server)
	c := w.start(pod, 0)
	w.ready(c)
	_, err := w.SetUp(t.Context(), pod, nil)
	require.NoError(t, err)
	require.Nil(t, c.State(now()).Exit)
}

func reportsUsage(t *testing.T, w *world) {
	pod := w.pod("p", w.Server)
	began := now()
	w.ready(w.start(pod, 0))
	u, err := w.Usage(t.Context(), pod, w.container(pod), began, now())
	require.NoError(t, err)
	require.True(t, u.CPU >= 0 && u.CPUSeconds >= 0 && u.Memory >= 0 && u.Disk >= 0 && u.PIDs >= 0, "%+v", u)
}
