package kubectllite

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// rolloutBars is the picture of a rollout: a bar per ReplicaSet of a deployment, or one bar for another workload, and
// the text of rollout status.
type rolloutBars struct {
	replicaSets dynamic.ResourceInterface

	mu     sync.Mutex // guards the fields below: look and lines run on different goroutines
	bars   []bar
	status string
}

// bar has the numbers of ready, existing and desired pods.
type bar struct {
	name, note        string
	ready, have, want int64
}

// look updates the picture for a new state of the workload. ReplicaSets that cannot be listed have no bars.
func (r *rolloutBars) look(ctx context.Context, obj *unstructured.Unstructured, status string) {
	bars := []bar{workloadBar(obj)}
	if obj.GetKind() == "Deployment" {
		bars = r.setsOf(ctx, obj)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bars, r.status = bars, strings.TrimSuffix(status, "\n")
}

// setsOf returns bars for the deployment's ReplicaSets that have or should have pods, the newest first.
func (r *rolloutBars) setsOf(ctx context.Context, deployment *unstructured.Unstructured) []bar {
	labels, _, _ := unstructured.NestedStringMap(deployment.Object, "spec", "selector", "matchLabels")
	list, err := r.replicaSets.List(ctx,
		metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: labels}),
			ResourceVersion: "0"})
	if err != nil {
		return nil
	}
	revision := func(obj unstructured.Unstructured) int {
		n, _ := strconv.Atoi(obj.GetAnnotations()["deployment.kubernetes.io/revision"])
		return n
	}
	slices.SortFunc(list.Items, func(a, b unstructured.Unstructured) int {
		return cmp.Compare(revision(b), revision(a))
	})
	var bars []bar
	for i := range list.Items {
		set := &list.Items[i]
		if !metav1.IsControlledBy(set, deployment) {
			continue
		}
		one := workloadBar(set)
		if one.have == 0 && one.want == 0 {
			continue
		}
		one.note = fmt.Sprintf("revision %d", revision(*set))
		bars = append(bars, one)
	}
	return bars
}

func workloadBar(obj *unstructured.Unstructured) bar {
	number := func(path ...string) int64 { n, _, _ := unstructured.NestedInt64(obj.Object, path...); return n }
	if obj.GetKind() == "DaemonSet" {
		return bar{name: obj.GetName(), note: "updated " + strconv.FormatInt(number("status", "updatedNumberScheduled"),
			10),
			ready: number("status", "numberReady"), have: number("status", "currentNumberScheduled"),
			want: number("status", "desiredNumberScheduled")}
	}
	one := bar{name: obj.GetName(), ready: number("status", "readyReplicas"), have: number("status", "replicas"),
		want: number("spec", "replicas")}
	if obj.GetKind() == "StatefulSet" {
		one.note = "updated " + strconv.FormatInt(number("status", "updatedReplicas"), 10)
	}
	return one
}

// barWidth is the width of the longest bar in characters.
const barWidth = 30

// lines draws the bars to one scale. Ready pods are full blocks, other pods shaded blocks, missing pods dots.
func (r *rolloutBars) lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	longest, name := int64(1), 0
	for _, b := range r.bars {
		longest, name = max(longest, b.have, b.want), max(name, len(b.name))
	}
	var lines []string
	for _, b := range r.bars {
		cells := func(n int64) int { return int((n*barWidth + longest - 1) / longest) }
		full, shaded := cells(b.ready), cells(max(b.have, b.ready))
		dotted := max(cells(b.want), shaded)
		picture := strings.Repeat("█", full) + strings.Repeat("▒", shaded-full) + strings.Repeat("·", dotted-shaded)
		lines = append(lines, fmt.Sprintf("%-*s  %s%s  %d/%d ready  %s", name, b.name, picture,
			strings.Repeat(" ", barWidth-dotted), b.ready, b.want, b.note))
	}
	return append(lines, r.status)
}

var replicaSetResource = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}

// followLive shows rollout status on a terminal. It ends when follow ends.
func (o *rolloutStatusOptions) followLive(ctx context.Context, namespace string,
	follow func(context.Context, func(*unstructured.Unstructured, string)) error) error {
	client, err := o.DynamicClient()
	if err != nil {
		return err
	}
	picture := &rolloutBars{replicaSets: client.Resource(replicaSetResource).Namespace(namespace)}
	return o.Live(ctx, picture.lines, func(ctx context.Context, changed func()) error {
		return follow(ctx, func(obj *unstructured.Unstructured, status string) {
			picture.look(ctx, obj, status)
			changed()
		})
	})
}
