//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	haWriters  = 8
	haRate     = 200 // writes a second, of all writers
	haNames    = 5   // objects of each writer that it updates over and over
	haEvery    = 10  // each of so many writes creates an object
	haReplicas = 6   // of the Deployment
)

// haLoad is the load while parts fail: writers, each of which begins with another API server and moves to the next one
// when a write fails; rollouts of a Deployment, one after the other; and informers, which must not miss an event.
type haLoad struct {
	*haCluster
	stop    context.CancelFunc
	ended   sync.WaitGroup
	writers []*haWriter
	changes atomic.Int64 // writes acknowledged
	rolled  atomic.Int64 // rollouts completed

	mu    sync.Mutex
	last  time.Time     // time of the last acknowledged write
	pause time.Duration // the longest time without an acknowledged write
	wait  time.Duration // the longest time that one writer waited

	configMaps cache.SharedIndexInformer
	pods       cache.SharedIndexInformer
	seen       podsSeen
}

// haWriter writes to objects of its own. Its fields belong to its goroutine until the load has ended, except last.
type haWriter struct {
	*haLoad
	number  int
	server  int                       // index of its current server
	acked   map[string]int            // the last acknowledged value of each object
	last    atomic.Pointer[time.Time] // time of the last acknowledged write
	wrong   []string                  // violations
	version map[string]string         // resourceVersions
}

func startLoad(h *haCluster) *haLoad {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &haLoad{haCluster: h, stop: cancel, seen: podsSeen{nodes: map[string]string{}, uids: map[string]string{}}}
	h.t.Cleanup(l.end)
	factory := informers.NewSharedInformerFactoryWithOptions(h.client, 0, informers.WithNamespace("default"))
	l.configMaps, l.pods = factory.Core().V1().ConfigMaps().Informer(), factory.Core().V1().Pods().Informer()
	_, err := l.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { l.seen.see(o.(*corev1.Pod)) },
		UpdateFunc: func(_, o any) { l.seen.see(o.(*corev1.Pod)) },
	})
	require.NoError(h.t, err)
	factory.Start(h.t.Context().Done()) // they continue after the load has ended
	factory.WaitForCacheSync(h.t.Context().Done())
	for i := range haWriters {
		w := &haWriter{haLoad: l, number: i, server: i % len(h.each), acked: map[string]int{},
			version: map[string]string{}}
		l.writers = append(l.writers, w)
		l.ended.Go(func() { w.write(ctx) })
	}
	l.ended.Go(func() { l.roll(ctx) })
	return l
}

func (l *haLoad) end() { l.stop(); l.ended.Wait() }

// write writes at its share of the rate until ctx ends. It repeats a write until it is acknowledged.
func (w *haWriter) write(ctx context.Context) {
	tick := time.NewTicker(time.Second * haWriters / haRate)
	defer tick.Stop()
	w.last.Store(new(time.Now()))
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		name := fmt.Sprintf("w%d-%d", w.number, n%haNames)
		if n%haEvery == 0 {
			name = fmt.Sprintf("w%d-made-%d", w.number, n)
		}
		for !w.put(ctx, name, n) {
			if ctx.Err() != nil {
				return
			}
			w.server = (w.server + 1) % len(w.each)
		}
		now := time.Now()
		w.haLoad.acknowledged(now, now.Sub(*w.last.Swap(&now)))
		w.acked[name] = n
	}
}

// acknowledged records the acknowledgement of a writer's write, and the time since its previous one.
func (l *haLoad) acknowledged(now time.Time, waited time.Duration) {
	l.changes.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.last.IsZero() {
		l.pause = max(l.pause, now.Sub(l.last))
	}
	l.last, l.wait = now, max(l.wait, waited)
}

// put makes one attempt. If an earlier attempt may have succeeded without an answer, it reads first.
func (w *haWriter) put(ctx context.Context, name string, value int) bool {
	client := w.each[w.server].CoreV1().ConfigMaps("default")
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: w.version[name],
		Labels: map[string]string{"load": "yes"}}, Data: map[string]string{"value": strconv.Itoa(value)}}
	var done *corev1.ConfigMap
	var err error
	if m.ResourceVersion == "" {
		done, err = client.Create(ctx, m, metav1.CreateOptions{})
	} else {
		done, err = client.Update(ctx, m, metav1.UpdateOptions{})
	}
	if err == nil {
		w.version[name] = done.ResourceVersion
		return true
	}
	if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
		return false
	}
	have, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false
	}
	w.version[name] = have.ResourceVersion
	found, _ := strconv.Atoi(have.Data["value"])
	if found != value && found != w.acked[name] {
		w.wrong = append(w.wrong, fmt.Sprintf("%s is %d: %d was acknowledged, %d under way", name, found, w.acked[name],
			value))
	}
	return found == value
}

// measure makes parts fail. When all writers' writes are acknowledged again, it returns the longest time without any
// acknowledged write, and the longest that one writer waited.
func (l *haLoad) measure(limit time.Duration, fail func()) (pause, wait time.Duration) {
	l.t.Helper()
	l.mu.Lock()
	l.pause, l.wait = 0, 0
	l.mu.Unlock()
	fail()
	from := time.Now()
	for _, w := range l.writers {
		eventually(l.t, limit, fmt.Sprintf("the writes of writer %d are acknowledged again", w.number), func() bool {
			return w.last.Load().After(from)
		})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pause, l.wait
}

// roll rolls a Deployment from image to image, despite all failures.
func (l *haLoad) roll(ctx context.Context) {
	selector, template := podsOf("rolling", "image-0", map[string]string{"sim.coxswain.dev/ready-after": "200ms"})
	deployments := l.client.AppsV1().Deployments("default")
	want := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "rolling"},
		Spec: appsv1.DeploymentSpec{Replicas: new(int32(haReplicas)), Selector: selector, Template: template}}
	pause := time.NewTicker(100 * time.Millisecond)
	defer pause.Stop()
	for image := 0; ctx.Err() == nil; <-pause.C {
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		d, err := deployments.Get(short, "rolling", metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			_, _ = deployments.Create(short, want, metav1.CreateOptions{})
		case err == nil && complete(d):
			l.rolled.Add(1)
			image++
			d.Spec.Template.Spec.Containers[0].Image = fmt.Sprint("image-", image)
			_, _ = deployments.Update(short, d, metav1.UpdateOptions{}) // the next turn retries a failure
		}
		cancel()
	}
}

func complete(d *appsv1.Deployment) bool {
	s := d.Status
	return s.ObservedGeneration == d.Generation && s.UpdatedReplicas == haReplicas &&
		s.AvailableReplicas == haReplicas && s.Replicas == haReplicas
}

// podsSeen is an informer's record of pods.
type podsSeen struct {
	mu          sync.Mutex
	uids, nodes map[string]string // UIDs by name, and nodes by UID
	wrong       []string
}

// see records a pod. A pod must not be on two nodes, nor two pods have one name in turn: names are random.
func (p *podsSeen) see(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	uid := string(pod.UID)
	if before, ok := p.uids[pod.Name]; ok && before != uid {
		p.wrong = append(p.wrong, fmt.Sprintf("pod %s is %s and was %s", pod.Name, uid, before))
	}
	p.uids[pod.Name] = uid
	if before := p.nodes[uid]; before != "" && before != pod.Spec.NodeName {
		p.wrong = append(p.wrong, fmt.Sprintf("pod %s runs on %q and ran on %s", pod.Name, pod.Spec.NodeName, before))
	}
	p.nodes[uid] = pod.Spec.NodeName
}

// check ends the load. It requires that no acknowledged write is lost, that the Deployment has the right pods, and that
// informers agree with the servers.
func (l *haLoad) check() {
	l.t.Helper()
	l.end()
	var server kubernetes.Interface
	for i, c := range l.each { // each shows the same
		server = c
		l.checkWrites(server, i)
	}
	eventually(l.t, 30*time.Second, "the last rollout ends", func() bool {
		d, err := server.AppsV1().Deployments("default").Get(l.t.Context(), "rolling", metav1.GetOptions{})
		return err == nil && complete(d)
	})
	var versions map[string]string
	eventually(l.t, 30*time.Second, "the old pods are gone", func() bool {
		pods, err := server.CoreV1().Pods("default").List(l.t.Context(), metav1.ListOptions{LabelSelector: "kind=rolling"})
		versions = map[string]string{}
		for _, p := range pods.Items {
			versions[p.Name] = p.ResourceVersion
		}
		return err == nil && len(versions) == haReplicas
	})
	eventually(l.t, time.Minute, "the informer has the pods that the server has", func() bool {
		have := map[string]string{}
		for _, o := range l.pods.GetStore().List() {
			if p := o.(*corev1.Pod); p.Labels["kind"] == "rolling" {
				have[p.Name] = p.ResourceVersion
			}
		}
		return maps.Equal(have, versions)
	})
	l.seen.mu.Lock()
	defer l.seen.mu.Unlock()
	require.Empty(l.t, l.seen.wrong)
	l.t.Logf("%d writes acknowledged, %d rollouts completed, %d pods seen", l.changes.Load(), l.rolled.Load(),
		len(l.seen.uids))
	require.Positive(l.t, l.rolled.Load())
}

func (l *haLoad) checkWrites(server kubernetes.Interface, number int) {
	l.t.Helper()
	list, err := server.CoreV1().ConfigMaps("default").List(l.t.Context(), metav1.ListOptions{LabelSelector: "load=yes"})
	require.NoError(l.t, err, "API server %d", number+1)
	values, versions := map[string]int{}, map[string]string{}
	for _, m := range list.Items {
		values[m.Name], err = strconv.Atoi(m.Data["value"])
		require.NoError(l.t, err)
		versions[m.Name] = m.ResourceVersion
	}
	for _, w := range l.writers {
		require.Empty(l.t, w.wrong)
		for name, value := range w.acked {
			// One write may have been in progress when the load ended.
			require.GreaterOrEqual(l.t, values[name], value, "API server %d lost a write of %s", number+1, name)
		}
	}
	eventually(l.t, time.Minute, "the informer agrees with the server", func() bool {
		have := map[string]string{}
		for _, o := range l.configMaps.GetStore().List() {
			if m := o.(*corev1.ConfigMap); m.Labels["load"] != "" {
				have[m.Name] = m.ResourceVersion
			}
		}
		return maps.Equal(have, versions)
	})
}
