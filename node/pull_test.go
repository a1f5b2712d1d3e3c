package node

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/internal/clock/quiescence"
	"github.com/coxswain-dev/coxswain/node/podstate"
	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/node/simulated"
)

// registry is a runtime that pulls images. Images slow:… arrive when the test releases them; all others are present.
type registry struct {
	runtime.Runtime
	released chan struct{}

	mu        sync.Mutex
	pulling   map[string]bool // pods with a pull in progress
	begun     map[string]int  // how many pulls of a pod have begun
	cancelled map[string]int  // how many of them were cancelled
}

func (r *registry) Pull(ctx context.Context, q runtime.PullRequest) (runtime.Image, error) {
	if !strings.HasPrefix(q.Image, "slow:") {
		return r.Runtime.Pull(ctx, q)
	}
	r.note(q.Pod, 1, 0)
	q.Progress()
	q.Progress() // is reported once
	select {
	case <-r.released:
		r.note(q.Pod, 0, 0)
		image, err := r.Runtime.Pull(ctx, q)
		image.Download = &runtime.Download{Took: 1500 * time.Millisecond, Bytes: 1234}
		return image, err
	case <-ctx.Done():
		r.note(q.Pod, 0, 1)
		return runtime.Image{}, &runtime.PullError{Reason: runtime.RegistryUnavailable, Err: ctx.Err()}
	}
}

func (r *registry) note(pod *corev1.Pod, begun, cancelled int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pulling[pod.Name] = begun > 0
	r.begun[pod.Name] += begun
	r.cancelled[pod.Name] += cancelled
}

func (r *registry) isPulling(pod string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pulling[pod]
}

func (r *registry) isCancelled(pod string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cancelled[pod] > 0
}

// startRegistry starts an agent with a registry as its runtime.
func startRegistry(t *testing.T, o Options) (*cluster, *registry) {
	t.Helper()
	c := newCluster(t)
	r := &registry{released: make(chan struct{}), pulling: map[string]bool{}, begun: map[string]int{},
		cancelled: map[string]int{}}
	c.runs = func(s runtime.Runtime) runtime.Runtime { r.Runtime = s; return r }
	c.start(o)
	return c, r
}

// slowPod returns a pod in which the container slow waits for its image, beside other containers.
func slowPod(name string, others ...corev1.Container) *corev1.Pod {
	pod := boundPod(name, "node-0", simulated.AnnotationLog, "hello\n")
	pod.Spec.Containers = append(others, corev1.Container{Name: "slow", Image: "slow:1"})
	return pod
}

// markDeleted sets a deletion timestamp: the fake API has no graceful deletion.
func (c *cluster) markDeleted(name string) {
	c.t.Helper()
	pod := c.pod(name).DeepCopy()
	now, grace := metav1.NewTime(c.clock.Now()), int64(30)
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &now, &grace
	_, err := c.CoreV1().Pods("default").Update(context.Background(), pod, metav1.UpdateOptions{})
	require.NoError(c.t, err)
}

// eventsAbout returns the Events about a pod, in their order.
func (c *cluster) eventsAbout(pod string) (all []string) {
	events, err := c.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{})
	require.NoError(c.t, err)
	for _, e := range events.Items {
		if e.InvolvedObject.Name == pod {
			all = append(all, e.Type+" "+e.Reason+" "+e.Message)
		}
	}
	return all
}

func waitingReason(pod *corev1.Pod, container string) string {
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name == container && s.State.Waiting != nil {
			return s.State.Waiting.Reason
		}
	}
	return ""
}

// More pulls hang than there are workers, and all other work on the node continues.
func TestPull_DoesNotBlockOtherWork(t *testing.T) {
	t.Parallel()
	c, r := startRegistry(t, Options{Workers: 4,
		Capacity: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("4Gi")}})
	for i := range 12 {
		c.create(slowPod(fmt.Sprint("slow-", i), corev1.Container{Name: "fast", Image: "fast:1"}))
	}
	for i := range 12 {
		name := fmt.Sprint("slow-", i)
		c.eventually(name+" pulls, and shows it", func() bool {
			return r.isPulling(name) && waitingReason(c.pod(name), "slow") == "ContainerCreating" &&
				c.pod(name).Status.ContainerStatuses[0].State.Running != nil
		})
		require.Equal(t, corev1.PodPending, c.pod(name).Status.Phase)
	}

	c.create(boundPod("other", "node-0", simulated.AnnotationMemory, "1Gi"))
	c.eventually("another pod starts", func() bool { return ready(c.pod("other")) })

	e := &endpoint{agent: c.agent}
	pod := e.findPod("default", "slow-0")
	read := func(container string) *httptest.ResponseRecorder {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/containerLogs/default/slow-0/"+container,
			nil)
		request.SetPathValue("container", container)
		answer := httptest.NewRecorder()
		e.containerLogs(answer, request, pod)
		return answer
	}
	require.Equal(t, "hello\n", read("fast").Body.String())
	require.Equal(t, "container \"slow\" in pod \"slow-0\" is waiting to start: ContainerCreating\n",
		read("slow").Body.String())
	running, err := c.agent.running(pod, "fast")
	require.NoError(t, err)
	require.ErrorContains(t, running.Exec(t.Context(), []string{"date"}, nil), "simulated")
	_, err = c.agent.running(pod, "slow")
	require.Error(t, err)

	c.annotateNode(`"sim.coxswain.dev/memory":"3Gi"`)
	c.later(brief, "a pod is evicted", func() bool { return c.pod("other").Status.Reason == "Evicted" })
	require.True(t, c.agent.terminate(c.pod("slow-1"), "Evicted", "why", time.Second, c.clock.Now()))
	c.eventually("a pod that pulls is evicted", func() bool {
		return c.pod("slow-1").Status.Reason == "Evicted" && r.isCancelled("slow-1")
	})
	require.Equal(t, corev1.PodFailed, c.pod("slow-1").Status.Phase)
	require.True(t, r.isPulling("slow-0"), "the others go on")
}

func TestPull_StartsTheContainerAndReportsEvents(t *testing.T) {
	t.Parallel()
	c, r := startRegistry(t, Options{})
	c.create(slowPod("p", corev1.Container{Name: "fast", Image: "fast:1"}))
	c.eventually("it pulls", func() bool {
		return r.isPulling("p") && waitingReason(c.pod("p"), "slow") == "ContainerCreating"
	})
	c.clock.Step(2 * time.Second)
	close(r.released)
	c.eventually("it runs", func() bool { return ready(c.pod("p")) })
	require.NotEmpty(t, c.pod("p").Status.ContainerStatuses[1].ImageID)
	want := []string{
		`Normal Pulled Container image "fast:1" already present on machine and can be accessed by the pod`,
		`Normal Pulled Successfully pulled image "slow:1" in 1.5s (2s including waiting). Image size: 1234 bytes.`,
		`Normal Pulling Pulling image "slow:1"`,
	}
	c.eventually("Events report it", func() bool { return len(c.eventsAbout("p")) == len(want) })
	require.ElementsMatch(t, want, c.eventsAbout("p"))
}

// A deletion ends the pull at once, without any time passing on the clock.
func TestPull_EndsWhenThePodIsDeleted(t *testing.T) {
	t.Parallel()
	c, r := startRegistry(t, Options{})
	for _, name := range []string{"deleted", "removed", "kept"} {
		c.create(slowPod(name))
		c.eventually(name+" pulls", func() bool {
			return r.isPulling(name) && waitingReason(c.pod(name), "slow") == "ContainerCreating"
		})
	}
	c.markDeleted("deleted")
	c.eventually("it is gone", func() bool { return r.isCancelled("deleted") && c.pod("deleted").Name == "" })
	require.NoError(t, c.CoreV1().Pods("default").Delete(t.Context(), "removed", metav1.DeleteOptions{}))
	c.eventually("its pull has ended", func() bool { return r.isCancelled("removed") })
	c.create(boundPod("sentinel", "node-0"))
	c.eventually("everything before it was looked at", func() bool { return ready(c.pod("sentinel")) })
	require.True(t, r.isPulling("kept"))
	for _, name := range []string{"deleted", "removed"} {
		require.Equal(t, []string{`Normal Pulling Pulling image "slow:1"`}, c.eventsAbout(name), "no failure")
	}
}

func TestPull_EndsWhenTheImageChanges(t *testing.T) {
	t.Parallel()
	c, r := startRegistry(t, Options{})
	c.create(slowPod("p"))
	c.eventually("it pulls", func() bool {
		return r.isPulling("p") && waitingReason(c.pod("p"), "slow") == "ContainerCreating"
	})
	changed := c.pod("p").DeepCopy()
	changed.Spec.Containers[0].Image = "fast:1"
	_, err := c.CoreV1().Pods("default").Update(t.Context(), changed, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.eventually("it runs with the other image", func() bool { return ready(c.pod("p")) && r.isCancelled("p") })
	require.Equal(t, "fast:1", c.pod("p").Status.ContainerStatuses[0].Image)
}

func TestPull_EndsWithTheAgentWithoutFailure(t *testing.T) {
	t.Parallel()
	c, r := startRegistry(t, Options{})
	c.create(slowPod("p"))
	c.eventually("it pulls", func() bool {
		return r.isPulling("p") && waitingReason(c.pod("p"), "slow") == "ContainerCreating"
	})
	c.stop()
	require.True(t, r.isCancelled("p"), "the agent waits for its pulls")
	require.Equal(t, "ContainerCreating", waitingReason(c.pod("p"), "slow"))
	c.start(Options{})
	c.eventually("the next agent pulls", func() bool { return r.isPulling("p") })
	close(r.released)
	c.eventually("it runs", func() bool { return ready(c.pod("p")) })
}

func TestPull_DoesNotDelayTheShutdown(t *testing.T) {
	t.Parallel()
	c, r := startRegistry(t, Options{ShutdownGracePeriod: 30 * time.Second})
	c.create(slowPod("p", corev1.Container{Name: "fast", Image: "fast:1"}))
	c.eventually("it pulls", func() bool {
		return r.isPulling("p") && waitingReason(c.pod("p"), "slow") == "ContainerCreating"
	})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		c.stop()
	}()
	began := c.clock.Now()
	c.later(10*time.Millisecond, "the agent ends", func() bool {
		select {
		case <-stopped:
			return true
		default:
			return false
		}
	})
	require.Less(t, c.clock.Since(began), 30*time.Second)
	require.True(t, r.isCancelled("p"))
	require.Equal(t, corev1.PodFailed, c.pod("p").Status.Phase)
	require.Equal(t, "Terminated", c.pod("p").Status.Reason)
}

func TestPull_CountsAsRemainingWork(t *testing.T) {
	t.Parallel()
	var parts quiescence.Group
	c, r := startRegistry(t, Options{Quiescence: &parts})
	c.create(slowPod("p"))
	c.eventually("it pulls", func() bool {
		return r.isPulling("p") && c.agent.podQueue.Busy() == "" && c.agent.events.Busy() == ""
	})
	require.Equal(t, []string{"nodes: 1 images are being pulled"}, parts.Busy(0))
	close(r.released)
	c.eventually("it runs", func() bool { return len(parts.Busy(0)) == 0 })
	require.True(t, ready(c.pod("p")))
}

// A pod that comes back to life, because the store was reset to a snapshot, pulls its image again.
func TestPull_RestartsForARevivedPod(t *testing.T) {
	t.Parallel()
	c, r := startRegistry(t, Options{})
	c.create(slowPod("p"))
	c.eventually("it pulls", func() bool {
		return r.isPulling("p") && waitingReason(c.pod("p"), "slow") == "ContainerCreating"
	})
	p := c.agent.hostedPod("uid-p")
	c.agent.halt("uid-p")
	c.eventually("its pull has ended", func() bool { return r.isCancelled("p") })
	c.agent.Wake(runtime.KeyOf(c.pod("p")))
	c.eventually("it pulls again", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.begun["p"] == 2
	})
	close(r.released)
	c.eventually("it runs", func() bool { return ready(c.pod("p")) })
	require.Same(t, p, c.agent.hostedPod("uid-p"))
}

// stuck is a runtime that waits in SetUp, or in Start of the container stuck, until the context ends.
type stuck struct {
	runtime.Runtime
	setUp   bool
	waiting chan string // the names of pods
	ended   chan string
}

// Imageless makes containers start in their order.
func (s *stuck) Imageless() {}

func (s *stuck) SetUp(ctx context.Context, pod *corev1.Pod, addresses []string) (runtime.Sandbox, error) {
	if s.setUp && pod.Name == "p" {
		return runtime.Sandbox{}, &runtime.SetUpError{Reason: "FailedCreatePodSandBox", Err: s.wait(ctx, pod)}
	}
	return s.Runtime.SetUp(ctx, pod, addresses)
}

func (s *stuck) Start(ctx context.Context, pod *corev1.Pod, c *corev1.Container, run int32, now time.Time) (
	runtime.Container, error) {
	if c.Name == "stuck" {
		return nil, s.wait(ctx, pod)
	}
	return s.Runtime.Start(ctx, pod, c, run, now)
}

func (s *stuck) wait(ctx context.Context, pod *corev1.Pod) error {
	s.waiting <- pod.Name
	<-ctx.Done()
	s.ended <- pod.Name
	return ctx.Err()
}

// A hanging call of the runtime blocks the pod's worker, but neither other uses of the pod nor its deletion.
func TestCall_EndsWithThePod(t *testing.T) {
	t.Parallel()
	for name, setUp := range map[string]bool{"set up": true, "start": false} {
		for how, end := range map[string]func(*cluster){
			"deletion": func(c *cluster) { c.markDeleted("p") },
			"removal": func(c *cluster) {
				require.NoError(c.t, c.CoreV1().Pods("default").Delete(context.Background(), "p", metav1.DeleteOptions{}))
			},
			"eviction": func(c *cluster) {
				require.True(c.t, c.agent.terminate(boundPod("p", "node-0"), "Evicted", "why", 0, c.clock.Now()))
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				c := newCluster(t)
				s := &stuck{setUp: setUp, waiting: make(chan string, 10), ended: make(chan string, 10)}
				c.runs = func(r runtime.Runtime) runtime.Runtime { s.Runtime = r; return s }
				c.start(Options{Workers: 2})
				pod := boundPod("p", "node-0", simulated.AnnotationLog, "hello\n")
				pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "stuck", Image: "i"})
				c.create(pod)
				require.Equal(t, "p", <-s.waiting)
				c.create(boundPod("other", "node-0"))
				c.eventually("another pod starts", func() bool { return ready(c.pod("other")) })
				if !setUp {
					run, err := c.agent.logRun(pod, "c", false)
					require.NoError(t, err)
					_, ended := run.Ended()
					require.False(t, ended, "its other container runs")
				}
				end(c)
				require.Equal(t, "p", <-s.ended)
				c.eventually("it has ended", func() bool {
					return c.pod("p").Name == "" || c.pod("p").Status.Phase == corev1.PodFailed
				})
				for _, e := range c.eventsAbout("p") {
					require.NotContains(t, e, "context canceled")
				}
			})
		}
	}
}

// deadlines is a runtime that records calls without a deadline.
type deadlines struct {
	runtime.Runtime
	mu     sync.Mutex
	called map[string]bool // whether all calls of a method had a deadline
}

func (d *deadlines) note(ctx context.Context, method string) {
	_, ok := ctx.Deadline()
	d.mu.Lock()
	defer d.mu.Unlock()
	before, called := d.called[method]
	d.called[method] = ok && (before || !called)
}

func (d *deadlines) SetUp(ctx context.Context, pod *corev1.Pod, addresses []string) (runtime.Sandbox, error) {
	d.note(ctx, "SetUp")
	return d.Runtime.SetUp(ctx, pod, addresses)
}

func (d *deadlines) Pull(ctx context.Context, r runtime.PullRequest) (runtime.Image, error) {
	d.note(ctx, "Pull")
	return d.Runtime.Pull(ctx, r)
}

func (d *deadlines) Start(ctx context.Context, pod *corev1.Pod, c *corev1.Container, run int32, now time.Time) (
	runtime.Container, error) {
	d.note(ctx, "Start")
	started, err := d.Runtime.Start(ctx, pod, c, run, now)
	return &deadlinesOfContainer{started, d}, err
}

func (d *deadlines) Adopt(ctx context.Context, pod *corev1.Pod, c *corev1.Container, s *corev1.ContainerStatus) (
	runtime.Container, error) {
	d.note(ctx, "Adopt")
	return d.Runtime.Adopt(ctx, pod, c, s)
}

func (d *deadlines) Usage(ctx context.Context, pod *corev1.Pod, c *corev1.Container, started, now time.Time) (
	runtime.Usage, error) {
	d.note(ctx, "Usage")
	return d.Runtime.Usage(ctx, pod, c, started, now)
}

func (d *deadlines) TearDown(ctx context.Context, pod *corev1.Pod) error {
	d.note(ctx, "TearDown")
	return d.Runtime.TearDown(ctx, pod)
}

func (d *deadlines) Forget(ctx context.Context, uid types.UID) error {
	d.note(ctx, "Forget")
	return d.Runtime.Forget(ctx, uid)
}

func (d *deadlines) Sweep(ctx context.Context, known func(types.UID) bool) {
	d.note(ctx, "Sweep")
	d.Runtime.Sweep(ctx, known)
}

type deadlinesOfContainer struct {
	runtime.Container
	*deadlines
}

func (d *deadlinesOfContainer) Resize(ctx context.Context, c *corev1.Container) error {
	d.note(ctx, "Resize")
	return d.Container.Resize(ctx, c)
}

func TestCall_HasADeadline(t *testing.T) {
	t.Parallel()
	c, d := newCluster(t), &deadlines{called: map[string]bool{}}
	c.runs = func(r runtime.Runtime) runtime.Runtime { d.Runtime = r; return d }
	c.start(Options{})
	c.create(sizedPod("p", "1", "1Gi"))
	c.eventually("it is ready", func() bool { return ready(c.pod("p")) && c.has("p", "1") })
	c.resize("p", "2", "1Gi")
	c.eventually("it has two cores", func() bool { return c.has("p", "2") })
	c.agent.summary(t.Context(), c.agent.nodes["node-0"])
	c.stop()
	c.start(Options{})
	c.eventually("it is adopted", func() bool { return c.agent.hostedPod("uid-p") != nil })
	c.markDeleted("p")
	c.eventually("it is gone", func() bool { return c.pod("p").Name == "" })
	c.eventually("it is forgotten", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.called["Forget"]
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	require.Equal(t, map[string]bool{"SetUp": true, "Pull": true, "Start": true, "Adopt": true, "Resize": true,
		"Usage": true, "TearDown": true, "Forget": true, "Sweep": true}, d.called)
}

// amnesiac is a runtime that does not find its containers.
type amnesiac struct{ runtime.Runtime }

func (amnesiac) Adopt(context.Context, *corev1.Pod, *corev1.Container, *corev1.ContainerStatus) (
	runtime.Container, error) {
	return nil, fmt.Errorf("no such container")
}

// A runtime that does not answer in time has not reported a container as lost.
func TestAdopt_WaitsForAnAnswer(t *testing.T) {
	t.Parallel()
	o := Options{}
	require.NoError(t, o.complete())
	a, err := newAgent([]*link{{client: nil}}, o, func(h runtime.Host) (runtime.Runtime, error) {
		r, err := o.newRuntime(h)
		return amnesiac{r}, err
	})
	require.NoError(t, err)
	pod := boundPod("p", "node-0")
	pod.Status.StartTime = &metav1.Time{Time: start}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", ContainerID: "simulated://1",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(start)}}}}
	p := &hostedPod{state: podstate.New(pod, "127.0.0.1", start, 0)}
	p.resume()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, a.adopt(over, p), "adopt container c of pod default/p: no such container")
	require.NotNil(t, p.state.ContainerStatus("c").State.Running)
	require.NoError(t, a.adopt(t.Context(), p))
	require.Nil(t, p.state.ContainerStatus("c").State.Running)
}
