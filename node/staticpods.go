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

// Annotations of a mirror pod, as in the kubelet. annotationHash has the digest of the pod's manifest.
const (
	annotationSource = "kubernetes.io/config.source"
	annotationHash   = "kubernetes.io/config.hash"
)

// staticPodsEvery is the interval of reads of the folder: the kubelet's fileCheckFrequency.
const staticPodsEvery = 20 * time.Second

// recordOfMirrors returns an earlier agent's record of mirror pods. Without a folder it is empty.
func (a *agent) recordOfMirrors() *mirrors {
	if a.StaticPodPath == "" && len(a.Components) == 0 {
		m, _ := newMirrors("", nil) // reads no file
		return m
	}
	m, err := newMirrors(a.DataDir, a.Names)
	if err != nil {
		a.Log.Warn("cannot read the record of static pods: they are created again", "err", err)
	}
	return m
}

// cleanupPeriod is the minimum age of a forged pod that is deleted: the kubelet's housekeeping period. It slows down a
// controller whose template has the annotation, because that creates the next pod at once.
const cleanupPeriod = 2 * time.Second

// deleteForged deletes a pod that claims to be static and is not from the agent's folder, as the kubelet does with a
// mirror pod that has no static pod. Containers that an earlier agent has started for it end.
func (a *agent) deleteForged(ctx context.Context, key runtime.PodKey, pod *corev1.Pod) error {
	if a.mirrors.pending(pod) {
		return nil // makeMirror queues the pod again when the creation is done
	}
	if err := a.dropPod(ctx, key, true); err != nil {
		return err
	}
	if left := cleanupPeriod - a.Clock.Since(pod.CreationTimestamp.Time); left > 0 {
		a.podQueue.AddAfter(key, min(left, cleanupPeriod))
		return nil
	}
	if s := pod.DeletionGracePeriodSeconds; pod.DeletionTimestamp != nil && s != nil && *s == 0 {
		return nil // a finalizer keeps it
	}
	a.Log.Info("deleting a pod that claims to be static and is not from this agent's folder", "pod", pod.Namespace+"/"+
		pod.Name, "node", key.Node)
	err := a.nodes[key.Node].client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete forged pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// runStaticPods keeps one pod on every node for each manifest in a folder, and the pods of components on the first one,
// until ctx ends. The agent creates each pod in the API and then runs it like any other; a kubelet calls such an object
// a mirror pod. A deleted one is created again at once.
func (a *agent) runStaticPods(ctx context.Context) {
	for {
		next := staticPodsEvery
		if a.missing.Load() > 0 {
			next = time.Second // some Nodes are not registered yet
		}
		timer := a.Clock.NewTimer(next)
		manifests, err := readStaticPods(a.StaticPodPath)
		components, invalid := a.componentManifests()
		err = errors.Join(err, invalid)
		for _, name := range a.Names {
			if err == nil {
				err = a.syncStaticPods(ctx, a.nodes[name], slices.Concat(manifests, components))
				components = nil // they are on the first Node only
			}
		}
		if err != nil && ctx.Err() == nil {
			a.Log.Warn("cannot sync static pods", "folder", a.StaticPodPath, "err", err)
		}
		select {
		case <-timer.C():
		case <-a.staticDue:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// wakeStaticPods makes runStaticPods start its next round at once.
func (a *agent) wakeStaticPods() {
	select {
	case a.staticDue <- struct{}{}:
	default: // it is due already
	}
}

// readStaticPods reads the manifests in a folder, except files whose names begin with a dot. It returns an error if one
// cannot be read, because a missing pod would be deleted.
func readStaticPods(dir string) ([]*corev1.Pod, error) {
	if dir == "" {
		return nil, nil
	}
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
		if limits.SuspectQuantity(document) { // the decoder could take forever
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

// syncStaticPods creates and deletes mirror pods of a node, so that there is one for each manifest. A mirror pod whose
// manifest has changed is deleted first, and created again when it is gone.
func (a *agent) syncStaticPods(ctx context.Context, n *hostedNode, manifests []*corev1.Pod) error {
	node, err := n.link.nodes.Get(n.name)
	if apierrors.IsNotFound(err) {
		return nil // the Node will be registered
	}
	if err != nil {
		return err
	}
	existing := map[string]*corev1.Pod{}
	keep := map[string]bool{}
	for _, pod := range a.podsOf(n) {
		if _, made := a.mirrors.record(pod); made {
			existing[pod.Namespace+"/"+pod.Name] = pod
			keep[pod.Namespace+"/"+pod.Name] = true
		}
	}
	var failed error
	for _, pod := range manifests {
		mirror := mirrorOf(pod, node)
		key := mirror.Namespace + "/" + mirror.Name
		keep[key] = true
		old := existing[key]
		if old != nil && a.upToDate(old, mirror) {
			delete(existing, key)
			continue
		}
		if old == nil {
			if err := a.makeMirror(ctx, n, mirror); err != nil {
				failed = errors.Join(failed, fmt.Errorf("create static pod %s: %w", key, err))
			}
		}
	}
	failed = errors.Join(failed, a.mirrors.keep(n.name, keep))
	for _, pod := range existing {
		if pod.DeletionTimestamp != nil {
			continue
		}
		err := n.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			failed = errors.Join(failed, fmt.Errorf("delete static pod %s/%s: %w", pod.Namespace, pod.Name, err))
		}
	}
	return failed
}

// upToDate reports whether a mirror pod was created from the present manifest, has not ended, and still has its
// original simulation annotations.
func (a *agent) upToDate(old, mirror *corev1.Pod) bool {
	made, _ := a.mirrors.record(old)
	return made.Manifest == mirror.Annotations[annotationHash] && made.Simulation == simulation(old) &&
		!phaseEnded(old.Status.Phase)
}

// makeMirror creates a mirror pod. If a pod of its name exists that the cache does not show yet, but the record has, it
// is the agent's own.
func (a *agent) makeMirror(ctx context.Context, n *hostedNode, mirror *corev1.Pod) error {
	err := a.mirrors.make(mirror, func() (*corev1.Pod, error) {
		return n.client.CoreV1().Pods(mirror.Namespace).Create(ctx, mirror, metav1.CreateOptions{})
	})
	if pod, gone := n.link.pods.Pods(mirror.Namespace).Get(mirror.Name); gone == nil && pod.Spec.NodeName == n.name {
		a.podQueue.Add(runtime.KeyOf(pod)) // deleteForged may have skipped it while it was pending
	}
	if apierrors.IsAlreadyExists(err) && a.mirrors.knows(n.name, mirror.Namespace+"/"+mirror.Name) {
		return nil
	}
	return err
}

// mirrorOf returns the mirror pod of a manifest on a node.
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
