package podstate

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// The model is a node that obeys: it carries out actions in any order and at any time, and knows which actions a pod
// may ask for. Each byte of an input is a choice: which result comes next, which container ends, whether the pod is
// deleted.

// FuzzPod plays inputs that the fuzzer finds.
func FuzzPod(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(randomBytes(seed, 200))
	}
	f.Fuzz(func(t *testing.T, input []byte) { play(t, input) })
}

func TestPod_FollowsTheModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		play(t, randomBytes(seed, 300))
	}
}

func randomBytes(seed uint64, n int) []byte {
	random := rand.New(rand.NewPCG(seed, 1))
	all := make([]byte, n)
	for i := range all {
		all[i] = byte(random.Uint32())
	}
	return all
}

// node is the model.
type node struct {
	t    *testing.T
	left []byte // of the input
	log  []string

	p      *Pod
	spec   *corev1.Pod
	now    time.Time
	images map[string]string // of the spec, by containers
	next   time.Time         // of the last step

	pulls   map[string]Pull   // under way
	late    []Pull            // cancelled, and without a result
	fetched map[string]string // images that were pulled for the next run
	attempt map[string]int
	starts  map[string]Start // under way
	live    map[string]*live
	resizes map[string]Resize
	runs    map[string]int32     // how many have begun
	failed  map[string]time.Time // the last pull or start of the present image that failed, without a success since
	passed  map[string]bool      // init containers that have succeeded, and sidecars that have started

	halted, stopping bool
	stopBy           time.Time
	ended            corev1.PodPhase
	restarts         map[string]int32
}

// live is a run of a container.
type live struct {
	image   string
	stopped bool
	stopBy  time.Time
}

func (n *node) choose(choices int) int {
	if len(n.left) == 0 {
		return 0
	}
	choice := int(n.left[0]) % choices
	n.left = n.left[1:]
	return choice
}

// pick chooses one of the keys of a map, in their order; ok is false where there is none.
func pick[V any](n *node, m map[string]V) (key string, ok bool) {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return "", false
	}
	slices.Sort(keys)
	return keys[n.choose(len(keys))], true
}

func play(t *testing.T, input []byte) {
	n := &node{t: t, left: input, now: start, images: map[string]string{}, pulls: map[string]Pull{},
		fetched: map[string]string{}, attempt: map[string]int{}, starts: map[string]Start{}, live: map[string]*live{},
		resizes: map[string]Resize{}, runs: map[string]int32{}, failed: map[string]time.Time{},
		passed: map[string]bool{}, restarts: map[string]int32{}}
	defer func() {
		if t.Failed() {
			t.Logf("input %x:\n%v", input, n.log)
		}
	}()
	n.spec = newPod()
	n.spec.Spec.RestartPolicy = []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure,
		corev1.RestartPolicyNever}[n.choose(3)]
	always := corev1.ContainerRestartPolicyAlways
	if n.choose(2) == 1 {
		n.spec.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "i"},
			{Name: "sidecar", Image: "i", RestartPolicy: &always}, {Name: "second", Image: "i"},
			{Name: "other", Image: "i", RestartPolicy: &always}}
	}
	n.spec.Spec.Containers = []corev1.Container{{Name: "a", Image: "i"}, {Name: "b", Image: "i"}}
	n.p = New(n.spec, "127.0.0.1", n.now, 0)
	n.noteImages()
	n.step()
	for len(n.left) > 0 {
		n.act()
		n.step()
	}
	n.finish()
}

func (n *node) noteImages() {
	for _, list := range [][]corev1.Container{n.spec.Spec.InitContainers, n.spec.Spec.Containers} {
		for i := range list {
			n.images[list[i].Name] = list[i].Image
		}
	}
	for _, e := range n.spec.Spec.EphemeralContainers {
		n.images[e.Name] = e.Image
	}
}

func (n *node) logf(format string, args ...any) {
	n.log = append(n.log, fmt.Sprintf("%v "+format+"\n", append([]any{n.now.Sub(start)}, args...)...))
}

// act does one thing that may happen on a node.
func (n *node) act() {
	switch n.choose(20) {
	case 0, 1:
		n.now = n.now.Add([]time.Duration{time.Millisecond, time.Second, 10 * time.Second, 5 * time.Minute,
			11 * time.Minute}[n.choose(5)])
	case 2, 3, 4:
		n.pullSucceeds()
	case 5:
		n.pullFails()
	case 6:
		n.pullComesLate()
	case 7, 8:
		n.startSucceeds()
	case 9:
		n.startFails()
	case 10:
		n.observe()
	case 11:
		n.exit()
	case 12:
		n.change()
	case 13:
		n.resized()
	case 14:
		if n.choose(4) == 0 {
			n.end()
		}
	case 15:
		if n.choose(4) == 0 && !n.stopping {
			n.halt()
		}
	default:
		n.prosper()
	}
}

func (n *node) pullSucceeds() {
	if name, ok := pick(n, n.pulls); ok {
		pull := n.pulls[name]
		delete(n.pulls, name)
		n.logf("pulled %s", name)
		if n.p.Pulled(name, pull.Attempt, "id", nil, n.now) {
			require.False(n.t, n.stopping || n.halted)
			n.fetched[name] = pull.Container.Image
		} else {
			require.True(n.t, n.stopping || n.halted)
		}
	}
}

func (n *node) pullFails() {
	if name, ok := pick(n, n.pulls); ok {
		pull := n.pulls[name]
		delete(n.pulls, name)
		n.logf("pull of %s failed", name)
		reason := []runtime.PullReason{runtime.ErrImagePull, runtime.ErrImageNeverPull, runtime.InvalidImageName,
			runtime.ImageInspectError, runtime.RegistryUnavailable}[n.choose(5)]
		if n.p.Pulled(name, pull.Attempt, "", &runtime.PullError{Reason: reason, Err: errors.New("why")}, n.now) {
			n.failed[name] = n.now
		}
	}
}

// pullComesLate has a pull that was cancelled end all the same. That changes nothing.
func (n *node) pullComesLate() {
	if len(n.late) == 0 {
		return
	}
	pull := n.late[0]
	n.late = n.late[1:]
	n.logf("late pull of %s", pull.Container.Name)
	before := n.p.Status(n.now, nil)
	n.p.TakeEvents()
	var err error
	if n.choose(2) == 0 {
		err = errors.New("cancelled")
	}
	require.False(n.t, n.p.Pulled(pull.Container.Name, pull.Attempt, "id", err, n.now))
	require.Equal(n.t, before, n.p.Status(n.now, nil))
	require.Empty(n.t, n.p.TakeEvents())
}

func (n *node) startSucceeds() {
	if name, ok := pick(n, n.starts); ok {
		s := n.starts[name]
		delete(n.starts, name)
		n.logf("started %s", name)
		n.p.Started(name, "test://"+name, n.now)
		n.live[name] = &live{image: s.Container.Image}
		n.runs[name] = s.Run + 1
		delete(n.failed, name)
	}
}

func (n *node) startFails() {
	if name, ok := pick(n, n.starts); ok {
		s := n.starts[name]
		delete(n.starts, name)
		cause := errors.New("why")
		err := []error{cause, runtime.ConfigError{Err: cause}, runtime.StartError{Err: cause}}[n.choose(3)]
		n.logf("start of %s failed: %T", name, err)
		n.p.StartFailed(name, err, n.now)
		if n.stopping || n.halted {
			return
		}
		if errors.As(err, &runtime.StartError{}) { // a run, which is restarted at once the first time
			n.runs[name] = s.Run + 1
		} else if s.Container.Image == n.images[name] {
			n.failed[name] = n.now
		}
	}
}

func (n *node) observe() {
	if name, ok := pick(n, n.live); ok {
		n.observed(name, runtime.State{Ready: n.choose(2) == 0, Starting: n.choose(4) == 0})
	}
}

func (n *node) observed(name string, state runtime.State) {
	n.logf("%s is %+v", name, state)
	n.p.Observe(name, state)
	if (name == "sidecar" || name == "other") && !state.Starting {
		n.passed[name] = true
	}
}

func (n *node) exit() {
	if name, ok := pick(n, n.live); ok {
		code := int32([]int{0, 1, 137}[n.choose(3)])
		n.exits(name, code)
	}
}

// prosper lets everything in progress succeed, so that pods reach their last containers.
func (n *node) prosper() {
	n.now = n.now.Add(time.Minute)
	for range n.pulls {
		n.pullSucceeds()
	}
	for range n.starts {
		n.startSucceeds()
	}
	for _, name := range []string{"init", "sidecar", "second", "other"} {
		switch c := n.live[name]; {
		case c == nil:
		case name == "init" || name == "second":
			n.exits(name, 0)
		default:
			n.observed(name, runtime.State{Ready: true})
		}
	}
}

func (n *node) exits(name string, code int32) {
	n.logf("%s exits with %d", name, code)
	n.p.Observe(name, runtime.State{Exit: &runtime.Exit{Code: code, At: n.now}})
	if code == 0 && (name == "init" || name == "second") {
		n.passed[name] = true
	}
	delete(n.live, name)
	delete(n.resizes, name)
}

// change changes the spec: the image or the resources of a container, or an ephemeral container more.
func (n *node) change() {
	changed := n.spec.DeepCopy()
	changed.Generation++
	spec := &changed.Spec
	one := &spec.Containers[n.choose(len(spec.Containers))]
	if len(spec.InitContainers) > 0 && n.choose(2) == 0 {
		one = &spec.InitContainers[n.choose(len(spec.InitContainers))]
	}
	switch n.choose(3) {
	case 0:
		if image := fmt.Sprint("i", n.choose(3)); one.Image != image {
			one.Image = image
			delete(n.failed, one.Name) // that was another image's
		}
	case 1:
		one.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(n.choose(5)),
			resource.DecimalSI)}
		if n.choose(2) == 0 {
			one.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU,
				RestartPolicy: corev1.RestartContainer}}
		}
	case 2:
		e := corev1.EphemeralContainer{}
		e.Name, e.Image = fmt.Sprint("debug", len(spec.EphemeralContainers)), "e"
		spec.EphemeralContainers = append(spec.EphemeralContainers, e)
	}
	n.logf("change of %s", one.Name)
	n.spec = changed
	n.noteImages()
	n.p.Update(changed)
	if n.p.WantsResize() {
		n.p.Allocate()
	}
}

func (n *node) resized() {
	if name, ok := pick(n, n.resizes); ok {
		r := n.resizes[name]
		delete(n.resizes, name)
		n.logf("resized %s", name)
		var err error
		if n.choose(2) == 0 {
			err = errors.New("no room")
		}
		n.p.Resized(r.Container, err)
	}
}

func (n *node) end() {
	grace := time.Duration(n.choose(60)) * time.Second
	n.logf("end in %v", grace)
	if deadline := n.now.Add(grace); !n.stopping || deadline.Before(n.stopBy) {
		n.stopBy = deadline
	}
	if n.stopping || n.choose(2) == 0 {
		n.p.Stop(n.now, grace)
	} else {
		n.p.Disrupt("Evicted", "why", n.now, grace)
	}
	n.stopping = true
}

// halt has the agent learn that the pod will end, or that it goes on after all.
func (n *node) halt() {
	n.logf("halted: %v", !n.halted)
	if n.halted = !n.halted; n.halted {
		n.p.Halt()
		return
	}
	n.p.Continue()
	for name, pull := range n.pulls {
		n.late = append(n.late, pull)
		delete(n.pulls, name)
	}
}

// step has the pod take one step, holds its actions to the rules, and looks at the status.
func (n *node) step() {
	actions, next := n.p.Step(n.now)
	if n.p.Stopping() && !n.stopping { // the containers have ended, or failed for good
		n.stopping, n.stopBy = true, n.now.Add(runtime.GracePeriod(n.spec))
		require.True(n.t, n.p.Ended())
	}
	for _, action := range actions {
		n.logf("%s", describe(action))
		switch action := action.(type) {
		case Pull:
			n.checkPull(action)
		case CancelPull:
			require.Contains(n.t, n.pulls, action.Container)
			n.late = append(n.late, n.pulls[action.Container])
			delete(n.pulls, action.Container)
		case Start:
			n.checkStart(action)
		case Stop:
			n.checkStop(action)
		case Resize:
			name := action.Container.Name
			require.Contains(n.t, n.live, name)
			require.NotContains(n.t, n.resizes, name)
			n.resizes[name] = action
		}
	}
	again, nextAgain := n.p.Step(n.now)
	require.Empty(n.t, again, "a step is complete")
	require.Equal(n.t, next, nextAgain)
	n.next = next
	n.checkRest()
	n.checkStatus()
}

// describe is an action for the log.
func describe(a Action) string {
	switch a := a.(type) {
	case Pull:
		return fmt.Sprintf("→ pull %s %s (%d)", a.Container.Name, a.Container.Image, a.Attempt)
	case Start:
		return fmt.Sprintf("→ start %s %s (%d)", a.Container.Name, a.Container.Image, a.Run)
	case Resize:
		return "→ resize " + a.Container.Name
	}
	return fmt.Sprintf("→ %T %+v", a, a)
}

// checkPull: a container is pulled if it may run, and no run, start or pull of it is under way, not too soon after a
// failure, with the present image.
func (n *node) checkPull(a Pull) {
	name := a.Container.Name
	n.mayRun(name)
	require.NotContains(n.t, n.pulls, name)
	require.Greater(n.t, a.Attempt, n.attempt[name])
	if failure, ok := n.failed[name]; ok {
		require.False(n.t, n.now.Before(failure.Add(restartBackoff)), "the next try comes too soon")
	}
	require.Equal(n.t, n.images[name], a.Container.Image)
	n.attempt[name] = a.Attempt
	delete(n.fetched, name)
	n.pulls[name] = a
}

func (n *node) checkStart(a Start) {
	name := a.Container.Name
	n.mayRun(name)
	require.NotContains(n.t, n.pulls, name)
	require.Equal(n.t, a.Container.Image, n.fetched[name], "its image was pulled")
	require.Equal(n.t, n.images[name], a.Container.Image)
	require.Equal(n.t, n.runs[name], a.Run)
	delete(n.fetched, name)
	n.starts[name] = a
}

// mayRun: the pod goes on, the container does not run, and the init containers before it have done their part.
func (n *node) mayRun(name string) {
	require.False(n.t, n.stopping || n.halted)
	require.NotContains(n.t, n.live, name)
	require.NotContains(n.t, n.starts, name)
	if n.isEphemeral(name) {
		return
	}
	for _, c := range n.spec.Spec.InitContainers {
		if c.Name == name {
			break
		}
		require.True(n.t, n.passed[c.Name], "%s comes before %s", c.Name, name)
	}
}

func (n *node) isEphemeral(name string) bool {
	return slices.ContainsFunc(n.spec.Spec.EphemeralContainers, func(e corev1.EphemeralContainer) bool {
		return e.Name == name
	})
}

// checkStop: a container is asked to end once, and again only with less time. When the pod ends, all have one
// deadline, and sidecars outlive the others.
func (n *node) checkStop(a Stop) {
	c := n.live[a.Container]
	require.NotNil(n.t, c, "it runs")
	deadline := n.now.Add(a.Grace)
	require.True(n.t, !c.stopped || deadline.Before(c.stopBy), "it was asked before")
	c.stopped, c.stopBy = true, deadline
	if !n.stopping {
		return // for another image, or other resources
	}
	require.Equal(n.t, max(0, n.stopBy.Sub(n.now)), a.Grace)
	if a.Container != "sidecar" && a.Container != "other" {
		return
	}
	for name := range n.live {
		require.True(n.t, name == a.Container || a.Container == "other" && name == "sidecar",
			"%s is stopped after %s", a.Container, name)
	}
	require.Empty(n.t, n.starts)
}

// checkRest: a pod that ends has ended its pulls and asked its containers to end; one that goes on and waits for no
// result knows when it will be looked at again.
func (n *node) checkRest() {
	if n.stopping {
		require.Empty(n.t, n.pulls)
		for name, c := range n.live {
			if name != "sidecar" && name != "other" {
				require.True(n.t, c.stopped, name)
			}
		}
		require.Equal(n.t, len(n.live)+len(n.starts) == 0, n.p.Stopped())
		return
	}
	if !n.halted && len(n.live)+len(n.pulls)+len(n.starts) == 0 {
		require.True(n.t, n.next.After(n.now), "the pod is stuck")
	}
}

// checkStatus: phases and restart counts only go forwards, and the states of containers are the model's.
func (n *node) checkStatus() {
	s := n.p.Status(n.now, nil)
	if n.ended != "" {
		require.Equal(n.t, n.ended, s.Phase)
	}
	if s.Phase == corev1.PodFailed || s.Phase == corev1.PodSucceeded {
		require.Empty(n.t, n.pulls)
		if n.p.Stopped() {
			n.ended = s.Phase
		}
	}
	for _, c := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses) {
		require.GreaterOrEqual(n.t, c.RestartCount, n.restarts[c.Name])
		n.restarts[c.Name] = c.RestartCount
		states := 0
		for _, is := range []bool{c.State.Running != nil, c.State.Waiting != nil, c.State.Terminated != nil} {
			if is {
				states++
			}
		}
		require.Equal(n.t, 1, states, c.Name)
		require.Equal(n.t, n.live[c.Name] != nil, c.State.Running != nil, c.Name)
		if n.pulls[c.Name].Attempt > 0 {
			require.NotEmpty(n.t, c.State.Waiting.Reason, c.Name)
		}
	}
	if ready := Condition(s.Conditions, corev1.PodReady); ready.Status == corev1.ConditionTrue {
		require.Equal(n.t, corev1.PodRunning, s.Phase)
	}
}

// finish ends the pod and delivers all results. A pod can always end.
func (n *node) finish() {
	if !n.stopping {
		n.p.Stop(n.now, 0)
		n.stopping, n.stopBy = true, n.now
		n.step()
	}
	for len(n.starts) > 0 {
		n.startSucceeds()
		n.step()
	}
	for len(n.live) > 0 {
		stopped := 0
		for _, name := range []string{"a", "b", "init", "second", "other", "sidecar"} {
			if c := n.live[name]; c != nil && c.stopped {
				n.exits(name, 0)
				stopped++
			}
		}
		for name, c := range n.live {
			if n.isEphemeral(name) && c.stopped {
				n.exits(name, 0)
				stopped++
			}
		}
		require.NotZero(n.t, stopped, "no container is asked to end")
		n.step()
	}
	for len(n.late) > 0 {
		n.pullComesLate()
	}
	require.True(n.t, n.p.Stopped())
	require.Contains(n.t, []corev1.PodPhase{corev1.PodFailed, corev1.PodSucceeded}, n.p.Phase())
	_, next := n.p.Step(n.now)
	require.Zero(n.t, next)
}
