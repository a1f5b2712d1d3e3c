// Package resourcemetrics implements metrics.k8s.io: the CPU and memory that nodes and pods use, for kubectl top and
// the autoscaler. New returns the two kinds; each is read like a collection, by Get and List.
//
// The figures come from the nodes' agents (sample.go): their /stats/summary is requested on demand, from a few agents
// at a time, and is good for some seconds. If a node's agent does not respond, the node and its pods have no metrics.
// The agents are reached through Agents, stored Nodes and Pods through Objects; the server must not be imported.
package resourcemetrics

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// Agents sends requests to nodes' agents.
type Agents interface {
	// AskAgent sends a GET to the agent of a node. The caller closes the response's body.
	AskAgent(ctx context.Context, node, path string) (*http.Response, error)
}

// Objects are the stored objects of one kind; *storage.Collection implements it.
type Objects interface {
	Get(ctx context.Context, namespace, name string, at storage.At) (*storage.Object, error)
	List(ctx context.Context, r storage.ListRequest) (*storage.List, error)
}

// Options assemble the metrics. All are required.
type Options struct {
	Agents Agents
	// Nodes and Pods have metrics. NodeName is the index of spec.nodeName among the fields of the stored Pods.
	Nodes, Pods Objects
	NodeName    int
	Clock       clock.PassiveClock
	Log         *slog.Logger
}

// Kind is NodeMetrics or PodMetrics: an object for each stored Node or Pod with known usage. Its methods are safe
// for concurrent use.
type Kind struct {
	objects Objects
	measure func(ctx context.Context, objects []*storage.Object) []api.Object
}

// New returns the kinds NodeMetrics and PodMetrics, which share their samples.
func New(o Options) (nodes, pods *Kind) {
	s := &sampler{agents: o.Agents, clock: o.Clock, log: o.Log, samples: map[string]*sample{}}
	return &Kind{objects: o.Nodes, measure: s.measureNodes},
		&Kind{objects: o.Pods, measure: func(ctx context.Context, objects []*storage.Object) []api.Object {
			return s.measurePods(ctx, objects, o.NodeName)
		}}
}

// Get returns the metrics of one object, or storage.ErrNotFound.
func (k *Kind) Get(ctx context.Context, namespace, name string) (api.Object, error) {
	o, err := k.objects.Get(ctx, namespace, name, storage.At{Any: true})
	if err != nil {
		return nil, err
	}
	found := k.measure(ctx, []*storage.Object{o})
	if len(found) == 0 {
		return nil, storage.ErrNotFound
	}
	return found[0], nil
}

// List returns the metrics of the objects in a scope, and the revision of the objects.
func (k *Kind) List(ctx context.Context, scope storage.Scope) ([]api.Object, int64, error) {
	l, err := k.objects.List(ctx, storage.ListRequest{Scope: scope, At: storage.At{Any: true}})
	if err != nil {
		return nil, 0, err
	}
	return k.measure(ctx, l.Items), l.Revision, nil
}

func (s *sampler) measureNodes(ctx context.Context, nodes []*storage.Object) []api.Object {
	names := make([]string, len(nodes))
	for i, o := range nodes {
		names[i] = o.Key.Name
	}
	answers := s.sampleAll(ctx, names)
	var found []api.Object
	for _, o := range nodes {
		a := answers[o.Key.Name]
		if a == nil {
			continue
		}
		if list, measured, ok := a.node.list(); ok {
			found = append(found, &metricsv1beta1.NodeMetrics{ObjectMeta: s.meta(o), Timestamp: measured,
				Window: window, Usage: list})
		}
	}
	return found
}

func (s *sampler) measurePods(ctx context.Context, pods []*storage.Object, nodeName int) []api.Object {
	on := map[string]bool{}
	var names []string
	for _, o := range pods {
		if node := o.Fields[nodeName]; node != "" && !on[node] {
			on[node] = true
			names = append(names, node)
		}
	}
	answers := s.sampleAll(ctx, names)
	var found []api.Object
	for _, o := range pods {
		a := answers[o.Fields[nodeName]]
		if a == nil {
			continue
		}
		m := &metricsv1beta1.PodMetrics{ObjectMeta: s.meta(o), Window: window}
		for _, c := range a.pods[types.UID(o.UID)] {
			if list, measured, ok := c.list(); ok {
				m.Timestamp = measured
				m.Containers = append(m.Containers, metricsv1beta1.ContainerMetrics{Name: c.Name, Usage: list})
			}
		}
		if len(m.Containers) > 0 {
			found = append(found, m)
		}
	}
	return found
}

// window is the time that a sample is used for, and the reported duration of its measurement.
var window = metav1.Duration{Duration: 10 * time.Second}

// meta returns the metadata of an object's metrics.
func (s *sampler) meta(o *storage.Object) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: o.Key.Name, Namespace: o.Key.Namespace,
		CreationTimestamp: metav1.NewTime(s.clock.Now())}
	if len(o.Labels) > 0 {
		m.Labels = make(map[string]string, len(o.Labels))
		for _, l := range o.Labels {
			m.Labels[l.Key] = l.Value
		}
	}
	return m
}
