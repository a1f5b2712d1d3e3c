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

// A folder is removed by the agent of the Node that it is on, on request by an annotation of the Node: the
// one object that an agent may read and write in any case. The volume stays, held by a finalizer, until the
// agent has answered, so that nothing is forgotten whichever of the two restarts; and what the volume was is never
// another's, for it bears the claim's uid.

const (
	// finalizer is the one by which external provisioners hold their volumes.
	finalizer = "external-provisioner.volume.kubernetes.io/finalizer"
	// AnnotationPrefix, with the volume's name after it, is the key of such a request; its value is the
	// folder's path, and then the answer: Removed, or Failed and why.
	AnnotationPrefix = "node-local.coxswain.dev/"
	Removed          = "removed"
	Failed           = "failed: "

	// agentVersion is in the version of agents that answer. The kubelet is none of them.
	agentVersion = "+coxswain"
)

// ours reports whether a volume is one that we made.
func ours(v *corev1.PersistentVolume) bool {
	return v.Annotations["pv.kubernetes.io/provisioned-by"] == Provisioner && v.Spec.HostPath != nil
}

// reclaim deletes a volume that nobody has any more, with its folder.
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
	case !remove: // the folder of a volume that a user deletes stays
		return p.letGo(ctx, v)
	case v.Status.Phase == corev1.VolumeBound:
		return nil // it goes with its claim
	}
	removed, err := p.folderRemoved(ctx, v)
	if err != nil || !removed {
		return err
	}
	return p.letGo(ctx, v)
}

// deleteVolume deletes the volume's object, which its finalizer then holds.
func (p *provisioner) deleteVolume(ctx context.Context, v *corev1.PersistentVolume) error {
	volumes := p.env.Client().CoreV1().PersistentVolumes()
	if !slices.Contains(v.Finalizers, finalizer) { // made by an earlier release
		v = v.DeepCopy()
		v.Finalizers = append(v.Finalizers, finalizer)
		var err error
		if v, err = volumes.Update(ctx, v, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("hold volume %s: %w", v.Name, err)
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

// folderRemoved asks the agent of the volume's Node to remove its folder, and reports whether that is done.
// Where there is no such Node any more, there is no folder that anybody could reach.
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
	answer, asked := node.Annotations[key]
	switch {
	case answer == Removed:
		// Before the finalizer goes: after a stop between the two the question is asked again, with the same answer.
		return true, p.annotate(ctx, node, key, nil)
	case strings.HasPrefix(answer, Failed):
		why := strings.TrimPrefix(answer, Failed)
		p.recorder.Event(v, corev1.EventTypeWarning, "VolumeFailedDelete", why)
		return false, errors.Join(fmt.Errorf("folder of volume %s: %s", v.Name, why),
			p.annotate(ctx, node, key, v.Spec.HostPath.Path))
	case asked:
		return false, nil // the change of the Node brings us back
	}
	// The cache may show a volume that is gone, whose folder we would ask for once more.
	if live, err := p.env.Client().CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{}); err != nil ||
		live.UID != v.UID {
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return false, err
	}
	return false, p.annotate(ctx, node, key, v.Spec.HostPath.Path)
}

// nodeOf is the Node whose label the volume's affinity names; nil where there is none, of which the server is asked.
func (p *provisioner) nodeOf(ctx context.Context, v *corev1.PersistentVolume) (*corev1.Node, error) {
	host := labels.Set{corev1.LabelHostname: v.Labels[corev1.LabelHostname]}
	if nodes, _ := p.nodes.List(labels.SelectorFromSet(host)); len(nodes) > 0 { // a list from memory does not fail
		return nodes[0], nil
	}
	nodes, err := p.env.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: host.String()})
	if err != nil || len(nodes.Items) == 0 {
		return nil, err
	}
	return &nodes.Items[0], nil
}

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

// letGo takes our finalizer from a volume.
func (p *provisioner) letGo(ctx context.Context, v *corev1.PersistentVolume) error {
	v = v.DeepCopy()
	v.Finalizers = slices.DeleteFunc(v.Finalizers, func(f string) bool { return f == finalizer })
	_, err := p.env.Client().CoreV1().PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("let volume %s go: %w", v.Name, err)
	}
	return nil
}

// nodeChanged enqueues the volumes that an agent has answered about, and at those of a Node that is gone.
func (p *provisioner) nodeChanged(n *corev1.Node, gone bool) {
	volumes, _ := p.volumes.List(labels.Everything()) // a list from memory does not fail
	for _, v := range volumes {
		if _, asked := n.Annotations[AnnotationPrefix+v.Name]; ours(v) &&
			(asked || gone && v.Labels[corev1.LabelHostname] == hostname(n)) {
			p.Enqueue(volumeKey + v.Name)
		}
	}
}

// answered reports whether an annotation of ours differs between two states of a Node.
func answered(old, n *corev1.Node) bool {
	for key, value := range n.Annotations {
		if strings.HasPrefix(key, AnnotationPrefix) && old.Annotations[key] != value {
			return true
		}
	}
	return false
}
