// Package scheduler assigns pods to nodes, as kube-scheduler does.
//
// The input is pods and nodes, and the objects that pods refer to, from informers. The output is bindings,
// FailedScheduling and Scheduled events, the PodScheduled condition, nominations and deletions of preempted pods.
// The files in the order of a pod's way:
//
//	informers.go   puts the pod into the queue, and nodes and bound pods into the cache
//	queue.go       the next pod; sleeping pods, and the events that wake them
//	cycle.go       one attempt: find a node, assume the pod there, bind it in the background
//	place.go       the scheduling cycle on a profile's plugins: filter, score, choose
//	profile.go     a profile's plugins, and the order in which they are called
//	cache.go       the nodes with their pods, including assumed ones
//	snapshot.go    the copy of the cache that one cycle sees
//	nominator.go   the pods that wait for room that preemption makes
//	metrics.go     the metrics that dashboards query
//	resources.go   the resources of all pods, as metrics
//
// The types that plugins and scheduler share are in framework, the plugins in plugins, the configuration file in
// config. To add a plugin, write a type and pass its factory in Options.Registry; see the example.
//
// The scheduler reaches the API server through client-go alone, and has no state that a restart would lose.
package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/internal/client/events"
	"github.com/coxswain-dev/coxswain/internal/client/informer"
	"github.com/coxswain-dev/coxswain/internal/clock/quiescence"
	"github.com/coxswain-dev/coxswain/scheduler/config"
	"github.com/coxswain-dev/coxswain/scheduler/framework"
	"github.com/coxswain-dev/coxswain/scheduler/plugins"
)

// Options configure a scheduler. The zero value runs without leader election and schedules the pods of
// default-scheduler.
type Options struct {
	// LeaderElect lets only one of several schedulers work, by the Lease kube-system/kube-scheduler.
	LeaderElect bool
	// LeaseDuration, RenewDeadline and RetryPeriod have kube-scheduler's meaning; 15 s, 10 s and 2 s
	// where zero.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Identity is the holder's name in the Lease; the host name and a UUID if empty.
	Identity string
	// Clock is the scheduler's time: back-offs and time stamps. (Leader election, which has to agree
	// with other processes, keeps to the wall clock.) The real one where nil.
	Clock clock.WithTicker
	// Log receives the log lines; slog.Default where nil.
	Log *slog.Logger
	// Config has the profiles, which are the schedulers that pods can name in spec.schedulerName, and
	// all other settings. config.Default where nil.
	Config *config.Config
	// Registry contains plugins that profiles can name in addition to the in-tree ones.
	Registry framework.Registry
	// Ready, if not nil, is called once the caches are filled and the scheduler schedules.
	Ready func()
	// Metrics is where the scheduler registers its metrics; nowhere if nil.
	Metrics prometheus.Registerer
	// PodResources, if not nil, collects the resources of pods while the scheduler runs.
	PodResources *PodResources
	// Quiescence, if not nil, receives a probe of the scheduler's remaining work.
	Quiescence *quiescence.Group
	// BindWorkers limits the concurrent bindings and status writes; 64 if zero.
	BindWorkers int
}

// ErrLeadershipLost is returned by Run when another scheduler has taken the Lease. The process can call Run again.
var ErrLeadershipLost = errors.New("leadership lost")

func (o *Options) complete() {
	if o.Config == nil {
		o.Config = config.Default()
	}
	def := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	l := &o.Config.LeaderElection
	def(&o.LeaseDuration, l.LeaseDuration.Duration)
	def(&o.RenewDeadline, l.RenewDeadline.Duration)
	def(&o.RetryPeriod, l.RetryPeriod.Duration)
	if o.Identity == "" {
		host, _ := os.Hostname() // the UUID alone makes it unique
		o.Identity = host + "_" + string(uuid.NewUUID())
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.BindWorkers == 0 {
		o.BindWorkers = 64
	}
}

// Run schedules pods until ctx ends, then returns nil when all its goroutines have ended. It returns early if the
// options are invalid, or with ErrLeadershipLost if another scheduler has taken the Lease.
func Run(ctx context.Context, config *rest.Config, o Options) error {
	config = rest.CopyConfig(config)
	if config.QPS == 0 && config.RateLimiter == nil {
		config.QPS = -1 // the number of binding workers limits the load, and flow control is the server's
	}
	if config.UserAgent == "" {
		config.UserAgent = "coxswain-scheduler"
	}
	connections, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("scheduler: client: %w", err)
	}
	defer utilnet.CloseIdleConnectionsFor(connections.Transport)
	client, err := kubernetes.NewForConfigAndClient(config, connections)
	if err != nil {
		return fmt.Errorf("scheduler: client: %w", err)
	}
	return run(ctx, client, o)
}

func run(ctx context.Context, client kubernetes.Interface, o Options) error {
	o.complete()
	s, err := newScheduler(client, o)
	if err != nil {
		return fmt.Errorf("scheduler: %w", err)
	}
	if o.Metrics != nil {
		if err := s.metrics.register(o.Metrics, s); err != nil {
			return fmt.Errorf("scheduler: %w", err)
		}
		defer s.metrics.unregister(o.Metrics)
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A scheduler that does not lead keeps its caches up to date, so that it can take over at once.
	stopInformers, err := s.startInformers(ctx)
	if err != nil {
		return fmt.Errorf("scheduler: informers: %w", err)
	}
	defer stopInformers()
	defer o.PodResources.follow(s.pods)()
	defer cancel()
	defer o.Quiescence.Add(s.busy)()
	if !o.LeaderElect {
		s.lead(ctx)
		return nil
	}
	return s.elect(ctx)
}

// scheduler is one running scheduler.
type scheduler struct {
	options   Options
	client    kubernetes.Interface
	informers *informer.Factory
	profiles  map[string]*profile
	cache     *cache
	snapshot  *snapshot // owned by the scheduling loop
	nominator *nominator
	queue     *queue
	pods      corelisters.PodLister
	synced    []toolscache.DoneChecker
	recorder  *events.Recorder
	metrics   *metrics

	workers chan struct{} // a semaphore of BindWorkers
	binding sync.WaitGroup
	waiting sync.Map // types.UID to context.CancelCauseFunc: pods in Permit or PreBind
}

func newScheduler(client kubernetes.Interface, o Options) (*scheduler, error) {
	s := &scheduler{
		options: o, client: client, informers: newInformers(client, o.Log), profiles: map[string]*profile{},
		cache: newCache(), snapshot: newSnapshot(), nominator: newNominator(), metrics: newMetrics(o.Clock),
		workers: make(chan struct{}, o.BindWorkers),
	}
	s.recorder = events.NewRecorder(func(string) kubernetes.Interface { return client }, o.Clock, o.Log)
	registry := plugins.Registry()
	for name, factory := range o.Registry {
		if registry[name] != nil {
			return nil, fmt.Errorf("plugin %s is in tree already", name)
		}
		registry[name] = factory
	}
	var first *profile
	for i := range o.Config.Profiles {
		c := &o.Config.Profiles[i]
		p, err := newProfile(c, field.NewPath("profiles").Index(i), registry, &handle{scheduler: s})
		if err != nil {
			return nil, err
		}
		p.parallel = min(int(*o.Config.Parallelism), runtime.GOMAXPROCS(0))
		p.percentage = int(*o.Config.PercentageOfNodesToScore)
		if c.PercentageOfNodesToScore != nil {
			p.percentage = int(*c.PercentageOfNodesToScore)
		}
		p.nominator = s.nominator
		p.measure(s.metrics)
		s.profiles[p.name] = p
		if first == nil {
			first = p
		}
		if p.queueSort.Name() != first.queueSort.Name() {
			return nil, fmt.Errorf(
				"profiles[%d]: has queue sort plugin %s, but there is one queue for all profiles, and it has %s",
				i, p.queueSort.Name(), first.queueSort.Name())
		}
	}
	s.queue = newQueue(queueOptions{
		clock:          o.Clock,
		initialBackoff: time.Duration(*o.Config.PodInitialBackoffSeconds) * time.Second,
		maxBackoff:     time.Duration(*o.Config.PodMaxBackoffSeconds) * time.Second,
		less:           first.queueSort.Less,
		preEnqueue:     s.preEnqueue,
		hints: func(pod *framework.PodInfo, plugin string) []framework.EventHint {
			return s.profileOf(pod).hints[plugin]
		},
		incoming: func(at place, event string) { s.metrics.incoming.WithLabelValues(string(at), event).Inc() },
	})
	return s, nil
}

// busy describes the scheduler's remaining work. Pods that wait for a change or in a Permit plugin do not count.
func (s *scheduler) busy(revision int64) string {
	waits := func(uid types.UID) bool {
		_, waits := s.waiting.Load(uid)
		return waits
	}
	// In the order of the pod's way, so that no work is missed while it moves on.
	work := cmp.Or(s.informers.Busy(revision), s.queue.busy(waits), s.recorder.Busy())
	if work != "" {
		work = "scheduler: " + work
	}
	return work
}

// profileOf returns the profile that a pod names; nil if it is another scheduler's.
func (s *scheduler) profileOf(pod *framework.PodInfo) *profile {
	return s.profiles[schedulerName(pod.Pod)]
}

func schedulerName(pod *corev1.Pod) string {
	if pod.Spec.SchedulerName == "" {
		return corev1.DefaultSchedulerName
	}
	return pod.Spec.SchedulerName
}

func (s *scheduler) preEnqueue(pod *framework.PodInfo) *framework.Status {
	for _, plugin := range s.profileOf(pod).preEnqueue {
		if status := plugin.PreEnqueue(pod.Pod); !status.OK() {
			return status
		}
	}
	return nil
}

// lead schedules until ctx ends and the last binding is done.
func (s *scheduler) lead(ctx context.Context) {
	// Wait for the handlers, not only for the stores: a node that has not reached the cache cannot be chosen.
	s.informers.WaitForCacheSyncWithContext(ctx)
	if !toolscache.WaitFor(ctx, "", s.synced...) {
		return
	}
	var background sync.WaitGroup
	s.recorder.Start(ctx)
	background.Go(func() { s.queue.run(ctx) })
	s.options.Log.Info("scheduling", "profiles", len(s.profiles))
	if s.options.Ready != nil {
		s.options.Ready()
	}
	for a := s.queue.pop(); a != nil; a = s.queue.pop() {
		s.scheduleOne(ctx, a)
	}
	s.binding.Wait()
	background.Wait()
	s.recorder.Wait()
}

// elect waits for the Lease and leads until ctx ends or the Lease is lost.
func (s *scheduler) elect(ctx context.Context) error {
	elected := make(chan context.Context, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: s.options.Config.LeaderElection.ResourceNamespace,
				Name: s.options.Config.LeaderElection.ResourceName},
			Client:     s.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: s.options.Identity},
		},
		LeaseDuration: s.options.LeaseDuration, RenewDeadline: s.options.RenewDeadline,
		RetryPeriod:     s.options.RetryPeriod,
		ReleaseOnCancel: true,
		Name:            "kube-scheduler",
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { elected <- ctx },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("scheduler: leader election: %w", err)
	}
	// The elector does not wait for its callback. The callback therefore only sends a signal, and the scheduler
	// leads here, where run waits for it.
	var election sync.WaitGroup
	ended := make(chan struct{})
	election.Go(func() {
		defer close(ended)
		elector.Run(ctx)
	})
	defer election.Wait()
	select {
	case leading := <-elected: // ends with ctx and with the Lease
		s.lead(leading)
	case <-ended:
	}
	if ctx.Err() == nil {
		return fmt.Errorf("scheduler: %w", ErrLeadershipLost)
	}
	return nil
}
