// Package attachdetach attaches volumes to Nodes and detaches them.
//
// Its input is the pods on Nodes and the volumes that they use. Its output is VolumeAttachments, which the
// volume's driver fulfils, and the list of attached volumes in each Node's status, which the Node's agent waits
// for. Only volumes of CSI drivers are attached, and only if the driver requires it; a directory of the node
// needs no attaching. https://kubernetes.io/docs/concepts/storage/volumes/#csi
package attachdetach

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// unmountTimeout bounds how long a volume that no pod uses may stay in the Node's volumesInUse. After it the
// volume is detached nevertheless.
const unmountTimeout = 6 * time.Minute

type attacher struct {
	*controller.Controller
	env         *controller.Env
	pods        cache.SharedIndexInformer
	nodes       corelisters.NodeLister
	claims      corelisters.PersistentVolumeClaimLister
	volumes     corelisters.PersistentVolumeLister
	drivers     storagelisters.CSIDriverLister
	attachments storagelisters.VolumeAttachmentLister
	recorder    record.EventRecorder
	forced      func() *prometheus.CounterVec

	mu sync.Mutex
	// unused maps an attachment's name to the time since when no pod has needed it while the Node still
	// reported it in use. mu guards it; a restart starts the timeout again.
	unused map[string]time.Time
}

// New returns the controller. Its keys are the names of Nodes.
func New(env *controller.Env) (*controller.Controller, error) {
	core, storage := env.Informers.Core().V1(), env.Informers.Storage().V1()
	a := &attacher{
		env: env, pods: core.Pods().Informer(), nodes: core.Nodes().Lister(),
		claims:  core.PersistentVolumeClaims().Lister(),
		volumes: core.PersistentVolumes().Lister(), drivers: storage.CSIDrivers().Lister(),
		attachments: storage.VolumeAttachments().Lister(),
		recorder:    env.Recorder("attachdetach-controller"), unused: map[string]time.Time{},
	}
	if err := errors.Join(controller.IndexByNode(a.pods), controller.IndexByPVC(a.pods)); err != nil {
		return nil, err
	}
	a.addMetrics(env.Metrics)
	a.Controller = controller.New(env, "persistentvolume-attach-detach", a.reconcile)
	enqueueNode := func(pod *corev1.Pod) {
		if pod.Spec.NodeName != "" && len(pod.Spec.Volumes) > 0 {
			a.Enqueue(pod.Spec.NodeName)
		}
	}
	controller.Watch(a.Controller, a.pods, controller.Handler[*corev1.Pod]{
		Add: enqueueNode, Delete: enqueueNode,
		Update: func(old, pod *corev1.Pod) {
			if old.Spec.NodeName != pod.Spec.NodeName || controller.PodEnded(old) != controller.PodEnded(pod) {
				enqueueNode(pod)
			}
		},
	})
	controller.Watch(a.Controller, core.Nodes().Informer(), controller.Handler[*corev1.Node]{
		Add: func(n *corev1.Node) { a.Enqueue(n.Name) }, Delete: func(n *corev1.Node) { a.Enqueue(n.Name) },
		Update: func(old, n *corev1.Node) {
			if !slices.Equal(old.Status.VolumesInUse, n.Status.VolumesInUse) ||
				len(old.Spec.Taints) != len(n.Spec.Taints) {
				a.Enqueue(n.Name)
			}
		},
	})
	controller.Watch(a.Controller, core.PersistentVolumeClaims().Informer(),
		controller.Handler[*corev1.PersistentVolumeClaim]{
			Update: func(old, claim *corev1.PersistentVolumeClaim) {
				if old.Spec.VolumeName != claim.Spec.VolumeName {
					a.enqueueUsers(claim)
				}
			},
		})
	controller.Watch(a.Controller, core.PersistentVolumes().Informer(), controller.Handler[*corev1.PersistentVolume]{})
	controller.Watch(a.Controller, storage.CSIDrivers().Informer(), controller.Handler[*storagev1.CSIDriver]{})
	controller.Watch(a.Controller, storage.VolumeAttachments().Informer(),
		controller.Handler[*storagev1.VolumeAttachment]{
			Add:    func(v *storagev1.VolumeAttachment) { a.Enqueue(v.Spec.NodeName) },
			Update: func(_, v *storagev1.VolumeAttachment) { a.Enqueue(v.Spec.NodeName) },
			Delete: a.detached,
		})
	return a.Controller, nil
}

func (a *attacher) enqueueUsers(claim *corev1.PersistentVolumeClaim) {
	pods, _ := controller.PodsUsingPVC(a.pods, claim.Namespace, claim.Name) // New has added the index
	for _, pod := range pods {
		if pod.Spec.NodeName != "" {
			a.Enqueue(pod.Spec.NodeName)
		}
	}
}

// detached enqueues the attachment's Node, and the Nodes of all pods that use the volume's claim: they may have
// waited for a volume that only one Node may have.
func (a *attacher) detached(v *storagev1.VolumeAttachment) {
	a.Enqueue(v.Spec.NodeName)
	if v.Spec.Source.PersistentVolumeName == nil {
		return
	}
	volume, err := a.volumes.Get(*v.Spec.Source.PersistentVolumeName)
	if err != nil || volume.Spec.ClaimRef == nil {
		return
	}
	a.enqueueUsers(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: volume.Spec.ClaimRef.Namespace, Name: volume.Spec.ClaimRef.Name}})
}

// use is a volume and the pods of one Node that use it.
type use struct {
	volume *corev1.PersistentVolume
	pods   []*corev1.Pod
}

// uniqueName returns the volume's name in Node statuses.
func uniqueName(v *corev1.PersistentVolume) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + v.Spec.CSI.Driver + "^" + v.Spec.CSI.VolumeHandle)
}

// attachmentName returns the name of the volume's VolumeAttachment. It is deterministic, so that no controller,
// also after a restart, creates a second one.
func attachmentName(v *corev1.PersistentVolume, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(v.Spec.CSI.VolumeHandle+v.Spec.CSI.Driver+node)))
}

func (a *attacher) reconcile(ctx context.Context, node string) error {
	required, err := a.required(node)
	if err != nil {
		return err
	}
	all, err := a.attachments.List(labels.Everything())
	if err != nil {
		return err
	}
	var errs []error
	have := map[string]*storagev1.VolumeAttachment{}
	for _, v := range all {
		if v.Spec.NodeName != node || !strings.HasPrefix(v.Name, "csi-") || v.Spec.Source.PersistentVolumeName == nil {
			continue
		}
		have[v.Name] = v
		if required[v.Name] == nil {
			errs = append(errs, a.detach(ctx, node, v))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(required)) {
		if v := have[name]; v == nil {
			errs = append(errs, a.attach(ctx, name, node, required[name], all))
		} else {
			a.reportToPods(v, required[name])
		}
	}
	return errors.Join(append(errs, a.report(ctx, node, have))...)
}

// required returns the volumes that the Node's pods need attached, by the names of their attachments.
func (a *attacher) required(node string) (map[string]*use, error) {
	pods, err := controller.OnNode(a.pods, node)
	if err != nil {
		return nil, err
	}
	required := map[string]*use{}
	for _, pod := range pods {
		if controller.PodEnded(pod) {
			continue
		}
		for i := range pod.Spec.Volumes {
			v := a.volumeOf(pod, &pod.Spec.Volumes[i])
			if v == nil || !a.attachable(v) {
				continue
			}
			name := attachmentName(v, node)
			if required[name] == nil {
				required[name] = &use{volume: v}
			}
			required[name].pods = append(required[name].pods, pod)
		}
	}
	return required, nil
}

// volumeOf returns the PersistentVolume bound to a pod's volume, or nil if there is none, or none yet.
func (a *attacher) volumeOf(pod *corev1.Pod, v *corev1.Volume) *corev1.PersistentVolume {
	name := controller.PVCName(pod, v)
	if name == "" {
		return nil
	}
	claim, err := a.claims.PersistentVolumeClaims(pod.Namespace).Get(name)
	if err != nil || claim.Spec.VolumeName == "" || claim.Status.Phase != corev1.ClaimBound {
		return nil
	}
	volume, err := a.volumes.Get(claim.Spec.VolumeName)
	if err != nil || volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != claim.UID {
		return nil
	}
	return volume
}

// attachable reports whether the volume's driver must attach it, which is the default of a CSIDriver.
func (a *attacher) attachable(v *corev1.PersistentVolume) bool {
	if v.Spec.CSI == nil {
		return false
	}
	driver, err := a.drivers.Get(v.Spec.CSI.Driver)
	return err != nil || driver.Spec.AttachRequired == nil || *driver.Spec.AttachRequired
}

func (a *attacher) attach(ctx context.Context, name, node string, u *use, all []*storagev1.VolumeAttachment) error {
	if other := exclusive(u.volume, node, all); other != "" {
		for _, pod := range u.pods {
			a.recorder.Eventf(pod, corev1.EventTypeWarning, "FailedAttachVolume",
				"Multi-Attach error for volume %q Volume is already exclusively attached to one node and can't be "+
					"attached to another", u.volume.Name)
		}
		return nil // detached enqueues this Node when the other attachment is deleted
	}
	_, err := a.env.Client().StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: u.volume.Spec.CSI.Driver, NodeName: node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &u.volume.Name},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("attach volume %s to node %s: %w", u.volume.Name, node, err)
	}
	return nil
}

// exclusive returns another Node to which the volume is attached, if its access modes allow only one Node; ""
// if there is none.
func exclusive(v *corev1.PersistentVolume, node string, all []*storagev1.VolumeAttachment) string {
	for _, mode := range v.Spec.AccessModes {
		if mode == corev1.ReadWriteMany || mode == corev1.ReadOnlyMany {
			return ""
		}
	}
	for _, other := range all {
		if name := other.Spec.Source.PersistentVolumeName; name != nil && *name == v.Name &&
			other.Spec.NodeName != node {
			return other.Spec.NodeName
		}
	}
	return ""
}

// reportToPods records the driver's answer as Events of the pending pods that use the volume.
func (a *attacher) reportToPods(v *storagev1.VolumeAttachment, u *use) {
	a.mu.Lock()
	delete(a.unused, v.Name)
	a.mu.Unlock()
	for _, pod := range u.pods {
		switch failure := v.Status.AttachError; {
		case pod.Status.Phase != corev1.PodPending:
		case v.Status.Attached:
			a.recorder.Eventf(pod, corev1.EventTypeNormal, "SuccessfulAttachVolume",
				"AttachVolume.Attach succeeded for volume %q ", u.volume.Name)
		case failure != nil:
			a.recorder.Eventf(pod, corev1.EventTypeWarning, "FailedAttachVolume",
				"AttachVolume.Attach failed for volume %q : %s", u.volume.Name, failure.Message)
		}
	}
}

// detach deletes the attachment of a volume that no pod of the Node uses, once the Node does not use it either.
func (a *attacher) detach(ctx context.Context, node string, v *storagev1.VolumeAttachment) error {
	if v.DeletionTimestamp != nil {
		return nil
	}
	wait, forced, err := a.stillInUse(ctx, node, v)
	if err != nil {
		return err
	}
	if wait > 0 {
		a.EnqueueAfter(node, wait)
		return nil
	}
	err = a.env.Client().StorageV1().VolumeAttachments().Delete(ctx, v.Name,
		*metav1.NewPreconditionDeleteOptions(string(v.UID)))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("detach volume %s from node %s: %w", *v.Spec.Source.PersistentVolumeName, node, err)
	}
	if forced != "" {
		a.forced().WithLabelValues(forced).Inc()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.unused, v.Name)
	return nil
}

// stillInUse returns how long to wait for the Node to release the volume; 0 if the Node does not use it. forced is the
// reason to detach a volume that the Node uses. It reads the Node from the API server: by a stale cache a volume could
// be detached from under a running pod.
func (a *attacher) stillInUse(ctx context.Context, node string, v *storagev1.VolumeAttachment) (wait time.Duration,
	forced string, err error) {
	n, err := a.env.Client().CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, "", nil
	}
	if err != nil {
		return 0, "", fmt.Errorf("get node %s: %w", node, err)
	}
	volume, err := a.volumes.Get(*v.Spec.Source.PersistentVolumeName)
	if err != nil || volume.Spec.CSI == nil || !slices.Contains(n.Status.VolumesInUse, uniqueName(volume)) {
		return 0, "", nil
	}
	if slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService }) {
		return 0, "out-of-service", nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.env.Clock.Now()
	if _, ok := a.unused[v.Name]; !ok {
		a.unused[v.Name] = now
	}
	return a.unused[v.Name].Add(unmountTimeout).Sub(now), "timeout", nil
}

// report writes the attached volumes into the Node's status.
func (a *attacher) report(ctx context.Context, node string, have map[string]*storagev1.VolumeAttachment) error {
	n, err := a.nodes.Get(node)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	attached := []corev1.AttachedVolume{}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		v := have[name]
		volume, err := a.volumes.Get(*v.Spec.Source.PersistentVolumeName)
		if err == nil && volume.Spec.CSI != nil && v.Status.Attached && v.DeletionTimestamp == nil {
			attached = append(attached, corev1.AttachedVolume{Name: uniqueName(volume)})
		}
	}
	if equality.Semantic.DeepEqual(n.Status.VolumesAttached, attached) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.UID}, "status": map[string]any{"volumesAttached": attached},
	})
	if err != nil {
		return err
	}
	_, err = a.env.Client().CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{},
		"status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("volumesAttached of node %s: %w", node, err)
	}
	return nil
}
