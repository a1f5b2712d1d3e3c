// Package nodelocal provisions volumes that are folders on a node, and creates the StorageClass for them. With it a
// StatefulSet gets volumes on a cluster without other storage.
//
// It is an external provisioner in Kubernetes' sense. It depends only on the contract between binder and provisioner,
// so that it also works with a kube-controller-manager:
//
//   - A claim whose annotation volume.kubernetes.io/storage-provisioner names it gets a volume that is pre-bound to the
//     claim, with the annotation pv.kubernetes.io/provisioned-by.
//   - It deletes each of its volumes that is Released and has the reclaim policy Delete.
//
// The volume is a hostPath of type DirectoryOrCreate with affinity to one node. The node agent creates and removes the
// folder itself (reclaim.go). The size is not enforced: the folder can fill its file system.
// https://kubernetes.io/docs/concepts/storage/persistent-volumes/#dynamic
package nodelocal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/volume"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

const (
	// Provisioner is the provisioner's name in StorageClasses.
	Provisioner = "coxswain.dev/node-local"
	// PathParameter is the class parameter for the folder on the node that contains the class's volumes. Its default is
	// Settings.Storage.NodeLocalRoot.
	PathParameter = "path"

	volumeKey  = "volume:"
	minBackoff = 100 * time.Millisecond
	maxBackoff = time.Minute
)

type provisioner struct {
	*controller.Controller
	env      *controller.Env
	settings controller.StorageSettings
	claims   corelisters.PersistentVolumeClaimLister
	volumes  corelisters.PersistentVolumeLister
	nodes    corelisters.NodeLister
	classes  storagelisters.StorageClassLister
	recorder record.EventRecorder
}

// New returns the controller. Its keys are claims and volumes.
func New(env *controller.Env) (*controller.Controller, error) {
	core, classes := env.Informers.Core().V1(), env.Informers.Storage().V1().StorageClasses()
	p := &provisioner{
		env: env, settings: env.Settings.Storage, claims: core.PersistentVolumeClaims().Lister(),
		volumes: core.PersistentVolumes().Lister(),
		nodes:   core.Nodes().Lister(), classes: classes.Lister(), recorder: env.Recorder(Provisioner),
	}
	p.Controller = controller.NewWithBackoff(env, "node-local", p.reconcile, minBackoff, maxBackoff)
	claimChanged := func(c *corev1.PersistentVolumeClaim) {
		if c.Annotations[volume.AnnStorageProvisioner] == Provisioner && c.Spec.VolumeName == "" {
			p.EnqueueObject(c)
		}
	}
	volumeChanged := func(v *corev1.PersistentVolume) {
		if ours(v) && (v.Status.Phase == corev1.VolumeReleased || v.DeletionTimestamp != nil) {
			p.Enqueue(volumeKey + v.Name)
		}
	}
	controller.Watch(p.Controller, core.PersistentVolumeClaims().Informer(),
		controller.Handler[*corev1.PersistentVolumeClaim]{
			Add: claimChanged, Update: func(_, c *corev1.PersistentVolumeClaim) { claimChanged(c) },
		})
	controller.Watch(p.Controller, core.PersistentVolumes().Informer(), controller.Handler[*corev1.PersistentVolume]{
		Add: volumeChanged, Update: func(_, v *corev1.PersistentVolume) { volumeChanged(v) },
	})
	controller.Watch(p.Controller, core.Nodes().Informer(), controller.Handler[*corev1.Node]{
		Update: func(old, n *corev1.Node) {
			if answered(old, n) {
				p.nodeChanged(n, false)
			}
		},
		Delete: func(n *corev1.Node) { p.nodeChanged(n, true) },
	})
	controller.Watch(p.Controller, classes.Informer(), controller.Handler[*storagev1.StorageClass]{})
	if *p.settings.NodeLocalClass != "" {
		p.Enqueue(classKey)
	}
	return p.Controller, nil
}

func (p *provisioner) reconcile(ctx context.Context, key string) error {
	if key == classKey {
		return p.createClass(ctx)
	}
	if name, ok := strings.CutPrefix(key, volumeKey); ok {
		return p.reclaim(ctx, name)
	}
	return p.provision(ctx, key)
}

// errRefused marks a permanent failure: the claim asks for a feature that folders do not have.
var errRefused = errors.New("refused")

// refuse returns an errRefused with a message.
func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errRefused}, args...)...)
}

// provision creates a volume for a claim that names this provisioner. A claim that waits for its first consumer is
// skipped until the scheduler has selected a node.
func (p *provisioner) provision(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil // the key has another format
	}
	c, err := p.claims.PersistentVolumeClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || c.Spec.VolumeName != "" || c.DeletionTimestamp != nil ||
		c.Annotations[volume.AnnStorageProvisioner] != Provisioner {
		return err
	}
	class, err := p.classes.Get(volume.GetPersistentVolumeClaimClass(c))
	if err != nil || class.Provisioner != Provisioner {
		return err
	}
	delayed := class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	selected := c.Annotations[volume.AnnSelectedNode]
	if delayed && selected == "" {
		return nil // the scheduler's write of the selected node enqueues the claim again
	}
	p.recorder.Eventf(c, corev1.EventTypeNormal, "Provisioning",
		"External provisioner is provisioning volume for claim %q", key)
	v, err := p.create(ctx, c, class, selected)
	switch {
	case err == nil:
		p.recorder.Eventf(c, corev1.EventTypeNormal, "ProvisioningSucceeded", "Successfully provisioned volume %s",
			v.Name)
		return nil
	case errors.Is(err, errRefused), errors.Is(err, errNoNode):
		p.recorder.Eventf(c, corev1.EventTypeWarning, "ProvisioningFailed",
			"failed to provision volume with StorageClass %q: %v", class.Name, err)
	}
	if errors.Is(err, errRefused) {
		return nil
	}
	if errors.Is(err, errNoNode) && delayed {
		return p.reschedule(ctx, c)
	}
	return err
}

// reschedule removes the selected node, which no longer exists, so that the scheduler selects another one.
func (p *provisioner) reschedule(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	c = c.DeepCopy()
	delete(c.Annotations, volume.AnnSelectedNode)
	if _, err := p.env.Client().CoreV1().PersistentVolumeClaims(c.Namespace).Update(ctx, c,
		metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("let claim %s be scheduled again: %w", controller.KeyOf(c), err)
	}
	return nil
}

func (p *provisioner) create(ctx context.Context, c *corev1.PersistentVolumeClaim, class *storagev1.StorageClass,
	selected string) (*corev1.PersistentVolume, error) {
	if err := possible(c); err != nil {
		return nil, err
	}
	node, err := p.node(class, selected)
	if err != nil {
		return nil, err
	}
	v := volumeFor(c, class, node, p.settings.NodeLocalRoot)
	created, err := p.env.Client().CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return v, nil // an earlier attempt created it: its name contains the claim's uid
	}
	if err != nil {
		return nil, fmt.Errorf("create volume %s for claim %s: %w", v.Name, controller.KeyOf(c), err)
	}
	return created, nil
}

// possible returns an errRefused if a folder cannot satisfy the claim.
func possible(c *corev1.PersistentVolumeClaim) error {
	for _, mode := range c.Spec.AccessModes {
		if mode != corev1.ReadWriteOnce && mode != corev1.ReadWriteOncePod {
			return refuse("access mode %s: a folder of one node has ReadWriteOnce and ReadWriteOncePod only", mode)
		}
	}
	switch {
	case c.Spec.VolumeMode != nil && *c.Spec.VolumeMode == corev1.PersistentVolumeBlock:
		return refuse("volume mode Block: a folder is a Filesystem")
	case c.Spec.Selector != nil:
		return refuse("claim.spec.selector is not supported for dynamic provisioning")
	case c.Spec.DataSource != nil || c.Spec.DataSourceRef != nil:
		return refuse("claim.spec.dataSource is not supported")
	}
	return nil
}

// errNoNode means that currently no node can have the volume.
var errNoNode = errors.New("no node for the volume")

// node returns the node that the scheduler has selected. For a claim that does not wait for the scheduler it returns
// the usable node with the fewest volumes.
func (p *provisioner) node(class *storagev1.StorageClass, selected string) (*corev1.Node, error) {
	if selected != "" {
		node, err := p.nodes.Get(selected)
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("%w: node %q not found", errNoNode, selected)
		}
		return node, err
	}
	nodes, err := p.nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	volumes, err := p.volumes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	count := map[string]int{}
	for _, v := range volumes {
		count[v.Labels[corev1.LabelHostname]]++
	}
	var best *corev1.Node
	for _, n := range nodes {
		if !usable(n, class.AllowedTopologies) {
			continue
		}
		if best == nil || count[hostname(n)] < count[hostname(best)] || count[hostname(n)] == count[hostname(best)] &&
			n.Name < best.Name {
			best = n
		}
	}
	if best == nil {
		return nil, fmt.Errorf("%w: none is ready and of the class's topology", errNoNode)
	}
	return best, nil
}
