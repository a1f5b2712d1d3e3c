package resourcemetrics

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const (
	askTimeout = 5 * time.Second // for one agent
	fanOut     = 16              // requests to agents at a time
	maxSummary = 64 << 20        // bytes of an agent's response
	// forgetAfter is the time that a sample is kept that no request uses.
	forgetAfter = time.Minute
)

// summary is the part of the kubelet's Summary that is needed.
type summary struct {
	Node usage `json:"node"`
	Pods []struct {
		PodRef struct {
			UID types.UID `json:"uid"`
		} `json:"podRef"`
		Containers []containerUsage `json:"containers"`
	} `json:"pods"`
}

type containerUsage struct {
	Name string `json:"name"`
	usage
}

type usage struct {
	CPU *struct {
		Time           metav1.Time `json:"time"`
		UsageNanoCores *uint64     `json:"usageNanoCores"`
	} `json:"cpu"`
	Memory *struct {
		WorkingSetBytes *uint64 `json:"workingSetBytes"`
	} `json:"memory"`
}

// list returns the usage as metrics.k8s.io has it; ok is false if it is not known yet.
func (u *usage) list() (list corev1.ResourceList, measured metav1.Time, ok bool) {
	if u.CPU == nil || u.CPU.UsageNanoCores == nil || u.Memory == nil || u.Memory.WorkingSetBytes == nil {
		return nil, measured, false
	}
	cpu := resource.NewScaledQuantity(int64(*u.CPU.UsageNanoCores), resource.Nano)
	cpu.Format = resource.DecimalSI
	return corev1.ResourceList{
		corev1.ResourceCPU:    *cpu,
		corev1.ResourceMemory: *resource.NewQuantity(int64(*u.Memory.WorkingSetBytes), resource.BinarySI),
	}, u.CPU.Time, true
}

// sampler has the agents' samples.
type sampler struct {
	agents Agents
	clock  clock.PassiveClock
	log    *slog.Logger

	// mu guards the map. With it, a sample's lock is only tried, because it may be held for as long as a request takes.
	mu      sync.Mutex
	samples map[string]*sample // by the nodes' names
}

// sample holds one agent's last answer. Its lock is held during a request to the agent: others that need the answer
// wait for the same request.
type sample struct {
	mu     sync.Mutex // guards the fields
	until  time.Time
	answer *answer // nil if the request failed
}

// answer is the content of one agent's response. It is immutable.
type answer struct {
	node usage
	pods map[types.UID][]containerUsage
}

// entry returns the sample of a node, and creates it if there is none. Then it also drops samples that no request has
// used for a while.
func (s *sampler) entry(node string, now time.Time) *sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.samples[node]
	if a == nil {
		for name, old := range s.samples {
			if old.mu.TryLock() {
				if now.Sub(old.until) > forgetAfter {
					delete(s.samples, name)
				}
				old.mu.Unlock()
			}
		}
		a = &sample{until: now.Add(-time.Nanosecond)}
		s.samples[node] = a
	}
	return a
}

// sampleAll samples nodes. Nodes without a response are not in the result.
func (s *sampler) sampleAll(ctx context.Context, nodes []string) map[string]*answer {
	var mu sync.Mutex
	answers := make(map[string]*answer, len(nodes))
	work := make(chan string)
	var asking sync.WaitGroup
	for range min(fanOut, len(nodes)) {
		asking.Go(func() {
			for node := range work {
				if a := s.sample(ctx, node); a != nil {
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

// sample returns a node's last answer or, if that is too old, a new one; nil if the request failed. A failure is kept
// for as long as an answer.
func (s *sampler) sample(ctx context.Context, node string) *answer {
	now := s.clock.Now()
	a := s.entry(node, now)
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.After(a.until) {
		var err error
		if a.answer, err = s.askAgent(ctx, node); err != nil {
			s.log.Debug("cannot sample the usage of a node", "node", node, "err", err)
		}
		a.until = now.Add(window.Duration)
	}
	return a.answer
}

func (s *sampler) askAgent(ctx context.Context, node string) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	res, err := s.agents.AskAgent(ctx, node, "/stats/summary?only_cpu_and_memory=true")
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the agent answers %s", res.Status)
	}
	var sum summary
	if err := json.NewDecoder(io.LimitReader(res.Body, maxSummary)).Decode(&sum); err != nil {
		return nil, fmt.Errorf("decode the agent's summary: %w", err)
	}
	a := &answer{node: sum.Node, pods: make(map[types.UID][]containerUsage, len(sum.Pods))}
	for _, p := range sum.Pods {
		a.pods[p.PodRef.UID] = p.Containers
	}
	return a, nil
}
