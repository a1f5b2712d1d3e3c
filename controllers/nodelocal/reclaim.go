package nodelocal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// The agent of a Node removes the folders on that Node. The request is an annotation of the Node, because every agent
// may read and write its own Node. A finalizer keeps the volume until the agent has answered, so that a restart of
// either side loses no request. The folder's name contains the claim's uid, so it never belongs to another volume.

const (
	// finalizer is the usual finalizer of external provisioners.
	finalizer = "external-provisioner.volume.kubernetes.io/finalizer"
	// AnnotationPrefix, followed by the volume's name, is the key of a request to remove a folder. Its value is the
	// folder's path, and later the agent's answer: Removed, or Failed with the reason.
	AnnotationPrefix = "node-local.coxswain.dev/"
	Removed          = "removed"
	Failed           = "failed: "

	// agentVersion is part of the version of agents that answer requests. The kubelet does not.
	agentVersion = "+coxswain"
)

// ours reports whether this provisioner created the volume.
func ours(v *corev1.PersistentVolume) bool {
	return v.Annotations["pv.kubernetes.io/provisioned-by"] == Provisioner && v.Spec.HostPath != nil
}

// reclaim deletes a volume that is no longer bound, with its folder.
func (p *provisioner) reclaim(ctx context.Context, name string) error {
	v, err := p.volumes.Get(name)
	if apierrors.IsNotFound(err) || err == nil && !ours(v) {
		return nil
	}
	if err != nil {
		return err
	}
	released := v.Status.Phase == corev1.VolumeReleased || v.Status.Phase == corev1.VolumeFailed
	remove := v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	switch {
	case v.DeletionTimestamp == nil && released && remove:
		return p.deleteVolume(ctx, v)
	case v.DeletionTimestamp == nil || !slices.Contains(v.Finalizers, finalizer):
		return nil
	case !remove: // the folder stays, even if a user deletes the volume
		return p.removeFinalizer(ctx, v)
	case v.Status.Phase == corev1.VolumeBound:
		return nil // it is deleted after its claim
	}
	removed, err := p.folderRemoved(ctx, v)
	if err != nil || !removed {
		return err
	}
	return p.removeFinalizer(ctx, v)
}

// deleteVolume deletes the volume's object. Its finalizer keeps the object until the folder is removed.
func (p *provisioner) deleteVolume(ctx context.Context, v *corev1.PersistentVolume) error {
	volumes := p.env.Client().CoreV1().PersistentVolumes()
	if !slices.Contains(v.Finalizers, finalizer) { // an earlier release created it
		v = v.DeepCopy()
		v.Finalizers = append(v.Finalizers, finalizer)
		var err error
		if v, err = volumes.Update(ctx, v, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("add finalizer to volume %s: %w", v.Name, err)
		}
	}
	err := volumes.Delete(ctx, v.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &v.UID, ResourceVersion: &v.ResourceVersion},
	})
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	if !apierrors.IsConflict(err) {
		p.recorder.Event(v, corev1.EventTypeWarning, "VolumeFailedDelete", err.Error())
	}
	return fmt.Errorf("delete volume %s: %w", v.Name, err)
}

// folderRemoved asks the agent of the volume's Node to remove the folder, and reports whether it is removed. If the
// Node no longer exists, the folder cannot be reached and counts as removed.
func (p *provisioner) folderRemoved(ctx context.Context, v *corev1.PersistentVolume) (bool, error) {
	node, err := p.nodeOf(ctx, v)
	if err != nil || node == nil {
		return node == nil, err
	}
	if !strings.Contains(node.Status.NodeInfo.KubeletVersion, agentVersion) {
		p.recorder.Eventf(v, corev1.EventTypeWarning, "VolumeFailedDelete",
			"the agent of node %q does not remove folders: %s stays there", node.Name, v.Spec.HostPath.Path)
		return true, nil
	}
	key := AnnotationPrefix + v.Name
	answer, requested := node.Annotations[key]
	switch {
	case answer == Removed:
		// The annotation is removed before the finalizer. After a crash in between, the request is repeated and gets
		// the same answer.
		return true, p.annotate(ctx, node, key, nil)
	case strings.HasPrefix(answer, Failed):
		reason := strings.TrimPrefix(answer, Failed)
		p.recorder.Event(v, corev1.EventTypeWarning, "VolumeFailedDelete", reason)
		return false, errors.Join(fmt.Errorf("folder of volume %s: %s", v.Name, reason),
			p.annotate(ctx, node, key, v.Spec.HostPath.Path))
	case requested:
		return false, nil // the agent's answer enqueues the volume again
	}
	// The volume in the cache may already be deleted: then no request is made again.
	if live, err := p.env.Client().CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{}); err != nil ||
		live.UID != v.UID {
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return false, err
	}
	return false, p.annotate(ctx, node, key, v.Spec.HostPath.Path)
}

// nodeOf returns the Node that the volume's affinity names, by its hostname label. It returns nil if neither the cache
// nor the API server has such a Node.
func (p *provisioner) nodeOf(ctx context.Context, v *corev1.PersistentVolume) (*corev1.Node, error) {
	host := labels.Set{corev1.LabelHostname: v.Labels[corev1.LabelHostname]}
	if nodes, _ := p.nodes.List(labels.SelectorFromSet(host)); len(nodes) > 0 { // a list from the cache does not fail
		return nodes[0], nil
	}
	nodes, err := p.env.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: host.String()})
	if err != nil || len(nodes.Items) == 0 {
		return nil, err
	}
	return &nodes.Items[0], nil
}

// annotate sets an annotation of a Node; nil removes it.
func (p *provisioner) annotate(ctx context.Context, node *corev1.Node, key string, value any) error {
	patch, err := json.Marshal(
		map[string]any{"metadata": map[string]any{"uid": node.UID, "annotations": map[string]any{key: value}}})
	if err != nil {
		return err
	}
	if _, err := p.env.Client().CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("annotate node %s: %w", node.Name, err)
	}
	return nil
}

// removeFinalizer removes the provisioner's finalizer from a volume.
func (p *provisioner) removeFinalizer(ctx context.Context, v *corev1.PersistentVolume) error {
	v = v.DeepCopy()
	v.Finalizers = slices.DeleteFunc(v.Finalizers, func(f string) bool { return f == finalizer })
	_, err := p.env.Client().CoreV1().PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove finalizer of volume %s: %w", v.Name, err)
	}
	return nil
}

// nodeChanged enqueues the volumes with an answer of the Node's agent and, if the Node was deleted, all volumes on it.
func (p *provisioner) nodeChanged(n *corev1.Node, deleted bool) {
	volumes, _ := p.volumes.List(labels.Everything()) // a list from the cache does not fail
	for _, v := range volumes {
		if _, requested := n.Annotations[AnnotationPrefix+v.Name]; ours(v) &&
			(requested || deleted && v.Labels[corev1.LabelHostname] == hostname(n)) {
			p.Enqueue(volumeKey + v.Name)
		}
	}
}

// answered reports whether an annotation for a request was added or changed between two states of a Node.
func answered(old, n *corev1.Node) bool {
	for key, value := range n.Annotations {
		if strings.HasPrefix(key, AnnotationPrefix) && old.Annotations[key] != value {
			return true
		}
	}
	return false
}
