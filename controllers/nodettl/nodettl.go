// Package nodettl annotates each Node with the time that its agent may use cached Secrets and ConfigMaps. The
// larger the cluster, the longer the time, so that the API server does not get too many requests.
package nodettl

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// steps are the steps of kube-controller-manager. They overlap: within an overlap, a cluster keeps its step.
var steps = []struct {
	minNodes, maxNodes int
	seconds            int
}{
	{0, 100, 0},
	{90, 500, 15},
	{450, 1000, 30},
	{900, 2000, 60},
	{1800, math.MaxInt, 300},
}

type ttl struct {
	*controller.Controller
	env   *controller.Env
	nodes corelisters.NodeLister

	mu    sync.Mutex
	count int
	step  int // index in steps
}

// New returns the controller. Its keys are Nodes.
func New(env *controller.Env) (*controller.Controller, error) {
	nodes := env.Informers.Core().V1().Nodes()
	t := &ttl{env: env, nodes: nodes.Lister()}
	t.Controller = controller.New(env, "ttl", t.reconcile)
	controller.Watch(t.Controller, nodes.Informer(), controller.Handler[*corev1.Node]{
		Add:    func(n *corev1.Node) { t.counted(1); t.EnqueueObject(n) },
		Update: func(_, n *corev1.Node) { t.EnqueueObject(n) },
		Delete: func(*corev1.Node) { t.counted(-1) },
	})
	return t.Controller, nil
}

// counted adds change to the number of Nodes, and enqueues all Nodes if another step is reached.
func (t *ttl) counted(change int) {
	t.mu.Lock()
	t.count += change
	before := t.step
	for t.step > 0 && t.count < steps[t.step].minNodes {
		t.step--
	}
	for t.count > steps[t.step].maxNodes {
		t.step++
	}
	changed := t.step != before
	t.mu.Unlock()
	if !changed {
		return
	}
	nodes, _ := t.nodes.List(labels.Everything()) // a lister returns no errors
	for _, n := range nodes {
		t.EnqueueObject(n)
	}
}

// seconds returns the value of the annotation.
func (t *ttl) seconds() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return steps[t.step].seconds
}

func (t *ttl) reconcile(ctx context.Context, name string) error {
	n, err := t.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	value := strconv.Itoa(t.seconds())
	if err != nil || n.Annotations[corev1.ObjectTTLAnnotationKey] == value {
		return err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.UID,
			"annotations": map[string]string{corev1.ObjectTTLAnnotationKey: value}},
	})
	if err != nil {
		return err
	}
	_, err = t.env.Client().CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("annotate node %s: %w", name, err)
	}
	return nil
}
