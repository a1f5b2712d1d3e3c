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
	askTimeout = 5 * time.Second // of one agent
	fanOut     = 16              // agents that are asked at a time
	maxSummary = 64 << 20        // bytes of an agent's answer
	// forgetAfter is how long a sample that no request wants is kept.
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

// list is the usage as metrics.k8s.io has it; ok is false where it is not known yet.
func (u *usage) list() (list corev1.ResourceList, at metav1.Time, ok bool) {
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

// sampler has the agents' samples.
type sampler struct {
	agents Agents
	clock  clock.PassiveClock
	log    *slog.Logger

	mu      sync.Mutex
	samples map[string]*sample // by the nodes' names
}

// sample is the place for one agent's answer, and for the question that is under way.
type sample struct {
	mu     sync.Mutex // held while the agent is asked
	until  time.Time
	answer *answer // nil where it did not answer
}

// answer is one agent's answer. It is immutable.
type answer struct {
	node usage
	pods map[types.UID][]containerUsage
}

// of returns the place for a node's sample. Samples that no request has wanted for a while are dropped.
func (s *sampler) of(node string, now time.Time) *sample {
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

// ask samples nodes. Those that do not answer are not in the result.
func (s *sampler) ask(ctx context.Context, nodes []string) map[string]*answer {
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

// sample returns a node's last answer or, where that is too old, a new one; nil if the node does not answer.
func (s *sampler) sample(ctx context.Context, node string) *answer {
	now := s.clock.Now()
	a := s.of(node, now)
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.After(a.until) {
		var err error
		if a.answer, err = s.askAgent(ctx, node); err != nil {
			s.log.Debug("a node has no sample of its usage", "node", node, "error", err)
		}
		a.until = now.Add(window.Duration)
	}
	return a.answer
}

func (s *sampler) askAgent(ctx context.Context, node string) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	res, err := s.agents.AskAgent(ctx, node, "/stats/summary")
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the agent answers %s", res.Status)
	}
	var sum summary
	if err := json.NewDecoder(io.LimitReader(res.Body, maxSummary)).Decode(&sum); err != nil {
		return nil, fmt.Errorf("decoding the agent's summary: %w", err)
	}
	a := &answer{node: sum.Node, pods: make(map[types.UID][]containerUsage, len(sum.Pods))}
	for _, p := range sum.Pods {
		a.pods[p.PodRef.UID] = p.Containers
	}
	return a, nil
}
