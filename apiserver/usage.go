package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// metrics.k8s.io is answered from what the nodes' agents say of themselves and their pods: each is asked for
// /stats/summary when somebody wants to know, a few at a time, and what it said holds for some seconds. A node that does not
// answer has no metrics, and its pods have none.

const (
	usageHolds   = 10 * time.Second // and is the window that is told
	usageTimeout = 5 * time.Second  // of one agent
	usageFanOut  = 16               // agents that are asked at a time
	maxSummary   = 64 << 20
)

// summary is the part of the kubelet's Summary that is needed.
type summary struct {
	Node summaryUsage `json:"node"`
	Pods []struct {
		PodRef struct {
			UID types.UID `json:"uid"`
		} `json:"podRef"`
		Containers []summaryContainer `json:"containers"`
	} `json:"pods"`
}

type summaryContainer struct {
	Name string `json:"name"`
	summaryUsage
}

type summaryUsage struct {
	CPU *struct {
		Time           metav1.Time `json:"time"`
		UsageNanoCores *uint64     `json:"usageNanoCores"`
	} `json:"cpu"`
	Memory *struct {
		WorkingSetBytes *uint64 `json:"workingSetBytes"`
	} `json:"memory"`
}

// list is the usage as metrics.k8s.io has it; ok is false where it is not known yet.
func (u *summaryUsage) list() (list corev1.ResourceList, at metav1.Time, ok bool) {
	if u.CPU == nil || u.CPU.UsageNanoCores == nil || u.Memory == nil || u.Memory.WorkingSetBytes == nil {
		return nil, at, false
	}
	cpu := resource.NewScaledQuantity(int64(*u.CPU.UsageNanoCores), resource.Nano)
	cpu.Format = resource.DecimalSI
	return corev1.ResourceList{
		corev1.ResourceCPU:    *cpu,
		corev1.ResourceMemory: *resource.NewQuantity(int64(*u.Memory.WorkingSetBytes), resource.BinarySI),
	}, u.CPU.Time, true
}

// usages are what agents have said, by the nodes' names. The zero value is ready for use, by several at once.
type usages struct {
	mu   sync.Mutex
	said map[string]*said
}

// said is one agent's answer, or the question that is under way.
type said struct {
	mu      sync.Mutex // held while it is asked
	until   time.Time
	summary *summary // nil where it did not answer
	pods    map[types.UID][]summaryContainer
}

// of is the place for a node's answer. Those that nobody has asked for in a while are dropped.
func (u *usages) of(node string, now time.Time) *said {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.said == nil {
		u.said = map[string]*said{}
	}
	a := u.said[node]
	if a == nil {
		for name, old := range u.said {
			if old.mu.TryLock() {
				if now.Sub(old.until) > time.Minute {
					delete(u.said, name)
				}
				old.mu.Unlock()
			}
		}
		a = &said{until: now.Add(-time.Nanosecond)}
		u.said[node] = a
	}
	return a
}

// usage asks nodes what they take. Those that do not answer are not in the result.
func (s *Server) usage(ctx context.Context, nodes []string) map[string]*said {
	var mu sync.Mutex
	answers := make(map[string]*said, len(nodes))
	work := make(chan string)
	var asking sync.WaitGroup
	for range min(usageFanOut, len(nodes)) {
		asking.Go(func() {
			for node := range work {
				if a := s.usageOf(ctx, node); a.summary != nil {
					mu.Lock()
					answers[node] = a
					mu.Unlock()
				}
			}
		})
	}
	for _, node := range nodes {
		work <- node
	}
	close(work)
	asking.Wait()
	return answers
}

// usageOf is what a node said last or, where that does not hold any more, says now. What is returned is not changed.
func (s *Server) usageOf(ctx context.Context, node string) *said {
	now := s.Clock.Now()
	a := s.usages.of(node, now)
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.After(a.until) {
		sum, err := s.askUsage(ctx, node)
		if err != nil {
			s.Log.Debug("a node does not tell what it takes", "node", node, "error", err)
		}
		a.summary, a.pods, a.until = sum, map[types.UID][]summaryContainer{}, now.Add(usageHolds)
		if sum != nil {
			for i := range sum.Pods {
				a.pods[sum.Pods[i].PodRef.UID] = sum.Pods[i].Containers
			}
		}
	}
	return &said{summary: a.summary, pods: a.pods}
}

func (s *Server) askUsage(ctx context.Context, node string) (*summary, error) {
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	host, port, err := s.kubeletAt(ctx, node)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+net.JoinHostPort(host, port)+"/stats/summary", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set(nodeHeader, node)
	res, err := s.backends.kubelets.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the agent answers %s", res.Status)
	}
	sum := &summary{}
	return sum, json.NewDecoder(io.LimitReader(res.Body, maxSummary)).Decode(sum)
}

// compute answers a GET or LIST of a kind that api registers as computed.
func (s *Server) compute(w http.ResponseWriter, r *request) error {
	if r.res.Kind == "ComponentStatus" {
		return s.componentStatus(w, r)
	}
	of := s.Registry.Snapshot().Kind(corev1.SchemeGroupVersion.WithKind("Pod"))
	measure := s.measurePods
	if r.res.Kind == "NodeMetrics" {
		of = s.Registry.Snapshot().Kind(corev1.SchemeGroupVersion.WithKind("Node"))
		measure = s.measureNodes
	}
	if r.verb == "get" {
		o, err := s.collection(of).Get(r.Context(), r.namespace, r.name, storage.At{Any: true})
		if err != nil {
			return err
		}
		found, err := measure(r.Context(), of, []*storage.Object{o})
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return apierrors.NewNotFound(r.res.GroupResource(), r.name)
		}
		doc, err := encode(r.res, found[0])
		if err != nil {
			return err
		}
		return s.writeObject(w, r, http.StatusOK, &storage.Object{JSON: doc})
	}
	scope, err := r.scope()
	if err != nil {
		return err
	}
	l, err := s.collection(of).List(r.Context(), storage.ListRequest{Scope: scope, At: storage.At{Any: true}})
	if err != nil {
		return err
	}
	found, err := measure(r.Context(), of, l.Items)
	if err != nil {
		return err
	}
	result := &storage.List{Revision: l.Revision}
	for _, m := range found {
		doc, err := encode(r.res, m)
		if err != nil {
			return err
		}
		result.Items = append(result.Items, &storage.Object{JSON: doc})
	}
	return s.writeList(w, r, result)
}

// metricsMeta is of what was measured.
func metricsMeta(o *storage.Object, now time.Time) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: o.Key.Name, Namespace: o.Key.Namespace, CreationTimestamp: metav1.NewTime(now)}
	if len(o.Labels) > 0 {
		m.Labels = make(map[string]string, len(o.Labels))
		for _, l := range o.Labels {
			m.Labels[l.Key] = l.Value
		}
	}
	return m
}

func (s *Server) measureNodes(ctx context.Context, _ *api.Resource, nodes []*storage.Object) ([]api.Object, error) {
	names := make([]string, len(nodes))
	for i, o := range nodes {
		names[i] = o.Key.Name
	}
	answers := s.usage(ctx, names)
	var found []api.Object
	for _, o := range nodes {
		a := answers[o.Key.Name]
		if a == nil {
			continue
		}
		if list, at, ok := a.summary.Node.list(); ok {
			found = append(found, &metricsv1beta1.NodeMetrics{
				ObjectMeta: metricsMeta(o, s.Clock.Now()), Timestamp: at, Window: metav1.Duration{Duration: usageHolds}, Usage: list,
			})
		}
	}
	return found, nil
}

func (s *Server) measurePods(ctx context.Context, res *api.Resource, pods []*storage.Object) ([]api.Object, error) {
	at := slices.Index(res.Fields, "spec.nodeName")
	on := map[string]bool{}
	for _, o := range pods {
		if node := o.Fields[at]; node != "" {
			on[node] = true
		}
	}
	var names []string
	for node := range on {
		names = append(names, node)
	}
	answers := s.usage(ctx, names)
	var found []api.Object
	for _, o := range pods {
		a := answers[o.Fields[at]]
		if a == nil {
			continue
		}
		m := &metricsv1beta1.PodMetrics{ObjectMeta: metricsMeta(o, s.Clock.Now()), Window: metav1.Duration{Duration: usageHolds}}
		for _, c := range a.pods[types.UID(o.UID)] {
			if list, at, ok := c.list(); ok {
				m.Timestamp = at
				m.Containers = append(m.Containers, metricsv1beta1.ContainerMetrics{Name: c.Name, Usage: list})
			}
		}
		if len(m.Containers) > 0 {
			found = append(found, m)
		}
	}
	return found, nil
}
