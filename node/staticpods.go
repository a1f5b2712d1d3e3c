package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/internal/limits"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// Annotations of a mirror pod, in the kubelet's words. They are equal where it is what its file says.
const (
	annotationSource = "kubernetes.io/config.source"
	annotationHash   = "kubernetes.io/config.hash"
)

// staticPodsEvery is how often the folder is looked at, the kubelet's fileCheckFrequency.
const staticPodsEvery = 20 * time.Second

// recordOfMirrors is what an earlier agent has made from the folder. Where there is no folder, nothing is static.
func (a *agent) recordOfMirrors() *mirrors {
	if a.StaticPodPath == "" {
		m, _ := newMirrors("", nil) // reads no file
		return m
	}
	m, err := newMirrors(a.DataDir, a.Names)
	if err != nil {
		a.Log.Warn("static pods are made anew", "err", err)
	}
	return m
}

// cleanupPeriod is how old a forged pod is when it is deleted, the kubelet's housekeeping period: a
// controller whose template has the annotation makes the next one at once.
const cleanupPeriod = 2 * time.Second

// deleteForged takes away a pod that claims to be static and is not from the agent's folder, as the kubelet
// does with a mirror pod of which it has no static pod. What an agent that believed it has started of it
// ends.
func (a *agent) deleteForged(ctx context.Context, key runtime.PodKey, pod *corev1.Pod) error {
	if a.mirrors.pending(pod) {
		return nil // it is looked at again once that is done
	}
	if err := a.dropPod(ctx, key, true); err != nil {
		return err
	}
	if left := cleanupPeriod - a.Clock.Since(pod.CreationTimestamp.Time); left > 0 {
		a.podQueue.AddAfter(key, min(left, cleanupPeriod))
		return nil
	}
	if s := pod.DeletionGracePeriodSeconds; pod.DeletionTimestamp != nil && s != nil && *s == 0 {
		return nil // a finalizer holds it
	}
	a.Log.Info("a pod claims to be static and is not from this agent's folder: it is deleted", "pod", pod.Namespace+"/"+
		pod.Name, "node", key.Node)
	err := a.nodes[key.Node].client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete forged pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// runStaticPods keeps one pod on every node for each manifest in a folder, until ctx ends. Each is an object
// of the API that the agent makes and then runs as any other: what a kubelet calls its mirror pod. Who
// deletes it sees it come back.
func (a *agent) runStaticPods(ctx context.Context) {
	for {
		next := staticPodsEvery
		if a.missing.Load() > 0 {
			next = time.Second // a Node is yet to be registered
		}
		timer := a.Clock.NewTimer(next)
		wanted, err := readStaticPods(a.StaticPodPath)
		for _, name := range a.Names {
			if err == nil {
				err = a.syncStaticPods(ctx, a.nodes[name], wanted)
			}
		}
		if err != nil && ctx.Err() == nil {
			a.Log.Warn("static pods", "folder", a.StaticPodPath, "err", err)
		}
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// readStaticPods reads the manifests of a folder. Names that begin with a dot are not manifests. One that cannot be
// read makes all fail: its pod must not be taken for one that is no longer wanted.
func readStaticPods(dir string) ([]*corev1.Pod, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var pods []*corev1.Pod
	for _, e := range entries {
		if e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		pod := &corev1.Pod{}
		document, err := limits.ExpandYAML(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		if limits.SuspectQuantity(document) { // which may keep the decoder busy for ever
			return nil, fmt.Errorf("%s: a number has too many digits, or too large an exponent", e.Name())
		}
		if err := yaml.UnmarshalStrict(document, pod); err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		if pod.Kind != "Pod" || pod.APIVersion != "v1" || pod.Name == "" {
			return nil, fmt.Errorf("%s: not a v1 Pod with a name", e.Name())
		}
		hash := runtime.Digest(string(text))[:32]
		pod.Annotations = withAnnotations(pod.Annotations, annotationSource, "file", annotationHash, hash,
			corev1.MirrorPodAnnotationKey, hash)
		pods = append(pods, pod)
	}
	return pods, nil
}

func withAnnotations(old map[string]string, pairs ...string) map[string]string {
	all := make(map[string]string, len(old)+len(pairs)/2)
	for key, value := range old {
		all[key] = value
	}
	for i := 0; i < len(pairs); i += 2 {
		all[pairs[i]] = pairs[i+1]
	}
	return all
}

// syncStaticPods makes the mirror pods of a node those that are wanted. One that has changed is deleted first, and made
// again when it is gone.
func (a *agent) syncStaticPods(ctx context.Context, n *hostedNode, wanted []*corev1.Pod) error {
	node, err := n.link.nodes.Get(n.name)
	if apierrors.IsNotFound(err) {
		return nil // it will be registered
	}
	if err != nil {
		return err
	}
	there := map[string]*corev1.Pod{}
	keep := map[string]bool{}
	for _, pod := range a.podsOf(n) {
		if _, made := a.mirrors.of(pod); made {
			there[pod.Namespace+"/"+pod.Name] = pod
			keep[pod.Namespace+"/"+pod.Name] = true
		}
	}
	var failed error
	for _, pod := range wanted {
		mirror := mirrorOf(pod, node)
		key := mirror.Namespace + "/" + mirror.Name
		keep[key] = true
		old := there[key]
		if old != nil && a.upToDate(old, mirror) {
			delete(there, key)
			continue
		}
		if old == nil {
			if err := a.makeMirror(ctx, n, mirror); err != nil {
				failed = errors.Join(failed, fmt.Errorf("static pod %s: %w", key, err))
			}
		}
	}
	failed = errors.Join(failed, a.mirrors.keep(n.name, keep))
	for _, pod := range there {
		if pod.DeletionTimestamp != nil {
			continue
		}
		err := n.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			failed = errors.Join(failed, fmt.Errorf("static pod %s/%s: %w", pod.Namespace, pod.Name, err))
		}
	}
	return failed
}

// upToDate reports that a static pod is what its manifest says now, and that nobody has changed how it is simulated.
func (a *agent) upToDate(old, wanted *corev1.Pod) bool {
	made, _ := a.mirrors.of(old)
	return made.Manifest == wanted.Annotations[annotationHash] && made.Simulation == simulation(old) &&
		!phaseEnded(old.Status.Phase)
}

// makeMirror creates a static pod. A pod of its name that the cache does not show yet, but the record knows,
// is the agent's own.
func (a *agent) makeMirror(ctx context.Context, n *hostedNode, mirror *corev1.Pod) error {
	err := a.mirrors.make(mirror, func() (*corev1.Pod, error) {
		return n.client.CoreV1().Pods(mirror.Namespace).Create(ctx, mirror, metav1.CreateOptions{})
	})
	if pod, gone := n.link.pods.Pods(mirror.Namespace).Get(mirror.Name); gone == nil && pod.Spec.NodeName == n.name {
		a.podQueue.Add(runtime.KeyOf(pod)) // it may have been looked at before it was known whose it is
	}
	if apierrors.IsAlreadyExists(err) && a.mirrors.knows(n.name, mirror.Namespace+"/"+mirror.Name) {
		return nil
	}
	return err
}

// mirrorOf is what a manifest is on a node.
func mirrorOf(pod *corev1.Pod, node *corev1.Node) *corev1.Pod {
	mirror := pod.DeepCopy()
	mirror.Name += "-" + strings.ToLower(node.Name)
	if mirror.Namespace == "" {
		mirror.Namespace = metav1.NamespaceDefault
	}
	mirror.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID,
		Controller: new(true)}}
	mirror.Spec.NodeName = node.Name
	everything := corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	if !slices.Contains(mirror.Spec.Tolerations, everything) {
		mirror.Spec.Tolerations = append(mirror.Spec.Tolerations, everything)
	}
	return mirror
}
