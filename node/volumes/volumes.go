// Package volumes makes the volumes of pods as folders of this machine: emptyDir, configMap, secret, downwardAPI,
// projected, hostPath, and claims of local volumes.
//
//	volumes.go   each kind of volume, and tokens with their renewal
//	payload.go   files that are replaced together through a ..data link, as in the kubelet
//	fsgroup.go   the group of a volume's files
//
// The runtime mounts the folders into containers, and decides which paths of the machine containers must not see.
package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/node/amount"
	"github.com/coxswain-dev/coxswain/node/environment"
)

// Volumes makes the volumes of pods, as folders of this machine. It is safe for concurrent use, for different pods.
type Volumes struct {
	Clock clock.PassiveClock
	// Memory mounts an in-memory file system of at most size bytes, for content that must not reach a disk. If it is
	// nil, all volumes are on the disk.
	Memory func(dir string, size int64) error
	// MemoryDir has a folder for each pod, by its UID, with the volumes in memory. If it is empty, they are mounted
	// beside the pod's other volumes.
	MemoryDir string
	// Visible returns an error for paths of this machine that containers must not see; nil allows every path.
	Visible func(path string) error
	// Roots are folders whose direct subfolders may be volumes of claims, although containers do not see them.
	Roots []string

	mu     sync.Mutex
	tokens map[types.UID]map[string]*cachedToken // by pod, then by volume and path; guarded by mu
}

// Source is the location of a volume on this machine.
type Source struct {
	Path string
	// Own is true if the agent or a claim provides the folder. It may be in a place that containers do not see.
	Own bool
	// ReadOnly is true if containers must not write to the volume. The agent may, with the machine's rights.
	ReadOnly bool
}

// cachedToken is a ServiceAccount's token and the time of its renewal: after four fifths of its lifetime, or after a
// day, as in the kubelet.
type cachedToken struct {
	token string
	renew time.Time // on the wall clock, without a reading of the monotonic clock
}

// SetUp makes or updates a pod's volumes below dir, and returns their locations by name.
func (v *Volumes) SetUp(ctx context.Context, e *environment.Environment, dir string) (map[string]Source, error) {
	sources := map[string]Source{}
	for i := range e.Pod.Spec.Volumes {
		volume := &e.Pod.Spec.Volumes[i]
		source, err := v.one(ctx, e, volume, filepath.Join(dir, volume.Name))
		if err != nil {
			return nil, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", volume.Name, err)
		}
		sources[volume.Name] = source
	}
	return sources, nil
}

func (v *Volumes) one(ctx context.Context, e *environment.Environment, volume *corev1.Volume,
	dir string) (Source, error) {
	switch s := &volume.VolumeSource; {
	case s.HostPath != nil:
		return Source{Path: s.HostPath.Path}, v.hostPath(s.HostPath)
	case s.PersistentVolumeClaim != nil:
		source, err := v.claim(ctx, e, s.PersistentVolumeClaim.ClaimName, nil)
		source.ReadOnly = s.PersistentVolumeClaim.ReadOnly
		return source, err
	case s.Ephemeral != nil:
		return v.claim(ctx, e, e.Pod.Name+"-"+volume.Name, e.Pod)
	case s.EmptyDir != nil:
		if s.EmptyDir.Medium == corev1.StorageMediumMemory {
			dir = v.memoryFolder(e.Pod.UID, dir)
		}
		return Source{Path: dir, Own: true}, v.emptyDir(e.Pod, s.EmptyDir, dir)
	}
	p, err := v.payload(ctx, e, volume)
	if err != nil {
		return Source{}, err
	}
	memory := volume.ConfigMap == nil && v.Memory != nil
	if memory {
		dir = v.memoryFolder(e.Pod.UID, dir)
	}
	if err := v.payloadFolder(dir, memory); err != nil {
		return Source{}, err
	}
	return Source{Path: dir, Own: true, ReadOnly: true}, p.write(dir, FSGroup(e.Pod))
}

// memoryFolder returns the folder of a volume in memory that would be in dir if it were on the disk. A volume of an
// earlier agent that is there stays.
func (v *Volumes) memoryFolder(pod types.UID, dir string) string {
	if _, err := os.Stat(dir); err == nil || v.MemoryDir == "" {
		return dir
	}
	return filepath.Join(v.MemoryDir, string(pod), filepath.Base(dir))
}

// payloadFolder makes the folder of a payload. Content that may be secret is in memory, and never on a disk.
func (v *Volumes) payloadFolder(dir string, memory bool) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil // it stays as it is
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil || !memory {
		return err
	}
	if err := v.Memory(dir, 0); err != nil {
		return errors.Join(err, os.Remove(dir))
	}
	return os.Chmod(dir, 0o755)
}

// hostPath checks a path that a user chose, and makes it where its type asks for that.
func (v *Volumes) hostPath(s *corev1.HostPathVolumeSource) error {
	if err := v.Check(s.Path); err != nil {
		return err
	}
	return hostPath(s)
}

// Check returns an error for a path that containers must not see.
func (v *Volumes) Check(path string) error {
	if v.Visible == nil {
		return nil
	}
	if err := v.Visible(path); err != nil {
		return fmt.Errorf("path %s: %w", path, err)
	}
	return nil
}

// Renewal returns when the first of a pod's tokens is due for renewal, on the wall clock; zero if the pod has no
// tokens.
func (v *Volumes) Renewal(pod types.UID) time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	var first time.Time
	for _, cached := range v.tokens[pod] {
		if first.IsZero() || cached.renew.Before(first) {
			first = cached.renew
		}
	}
	return first
}

// Forget drops the cached tokens of a pod.
func (v *Volumes) Forget(pod types.UID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.tokens, pod)
}

// FSGroup returns a pod's fsGroup; nil if it has none.
func FSGroup(pod *corev1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

func (v *Volumes) emptyDir(pod *corev1.Pod, s *corev1.EmptyDirVolumeSource, dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if s.Medium == corev1.StorageMediumMemory {
		var size int64
		if s.SizeLimit != nil {
			size = amount.Of(*s.SizeLimit, 0)
		}
		if err := v.Memory(dir, size); err != nil {
			_ = os.Remove(dir)
			return err
		}
	}
	mode := fs.FileMode(0o777)
	if s.Mode != nil {
		mode = fs.FileMode(*s.Mode & 0o777)
		if *s.Mode&0o1000 != 0 {
			mode |= fs.ModeSticky
		}
	}
	if gid := FSGroup(pod); gid != nil {
		if err := os.Chown(dir, -1, int(*gid)); err != nil {
			return err
		}
		mode |= fs.ModeSetgid | 0o070
	}
	return os.Chmod(dir, mode)
}

// hostPath checks a file or folder of the host against its type, and makes it where the type asks for that.
func hostPath(s *corev1.HostPathVolumeSource) error {
	kind := corev1.HostPathUnset
	if s.Type != nil {
		kind = *s.Type
	}
	info, err := os.Stat(s.Path)
	if errors.Is(err, fs.ErrNotExist) {
		switch kind {
		case corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate:
			return os.MkdirAll(s.Path, 0o755)
		case corev1.HostPathFileOrCreate:
			// O_EXCL does not follow a symbolic link, which could lead to a path that containers must not see.
			f, err := os.OpenFile(s.Path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
			if err != nil {
				return err
			}
			return f.Close()
		}
	}
	if err != nil {
		return fmt.Errorf("hostPath type check failed: %w", err)
	}
	ok := true
	switch mode := info.Mode(); kind {
	case corev1.HostPathDirectory, corev1.HostPathDirectoryOrCreate:
		ok = mode.IsDir()
	case corev1.HostPathFile, corev1.HostPathFileOrCreate:
		ok = mode.IsRegular()
	case corev1.HostPathSocket:
		ok = mode&fs.ModeSocket != 0
	case corev1.HostPathCharDev:
		ok = mode&fs.ModeCharDevice != 0
	case corev1.HostPathBlockDev:
		ok = mode&fs.ModeDevice != 0 && mode&fs.ModeCharDevice == 0
	}
	if !ok {
		return fmt.Errorf("hostPath type check failed: %s is not a %s", s.Path, kind)
	}
	return nil
}

// claim returns the folder behind a PersistentVolumeClaim: its PersistentVolume must be a folder of this machine. If
// owner is not nil, it is the pod that an ephemeral volume's claim must belong to; another claim of that name is
// refused.
func (v *Volumes) claim(ctx context.Context, e *environment.Environment, name string, owner *corev1.Pod) (
	Source, error) {
	claim, err := e.Client.CoreV1().PersistentVolumeClaims(e.Pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Source{}, err
	}
	if owner != nil && !metav1.IsControlledBy(claim, owner) {
		return Source{}, fmt.Errorf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", claim.Namespace,
			claim.Name, owner.Namespace, owner.Name)
	}
	if claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "" {
		return Source{}, fmt.Errorf("claim %q is not bound", name)
	}
	pv, err := e.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return Source{}, err
	}
	var source Source
	switch s := &pv.Spec.PersistentVolumeSource; {
	case s.HostPath != nil:
		source.Path = s.HostPath.Path
	case s.Local != nil:
		source.Path = s.Local.Path
	default:
		return source, fmt.Errorf("volume %q is neither of hostPath nor local, which is what this agent can mount",
			pv.Name)
	}
	source.Own = slices.Contains(v.Roots, filepath.Dir(filepath.Clean(source.Path)))
	if !source.Own {
		if err := v.Check(source.Path); err != nil {
			return source, err
		}
	}
	if s := pv.Spec.HostPath; s != nil {
		return source, claimedFolder(s, FSGroup(e.Pod))
	}
	if gid := FSGroup(e.Pod); gid != nil {
		return source, setGroup(source.Path, int(*gid), onRootMismatch(e.Pod))
	}
	_, err = os.Stat(source.Path)
	return source, err
}

// claimedFolder checks or makes the hostPath folder of a claim's volume. A new folder is writable for any user that
// the pod may run as, as with other provisioners of local folders.
func claimedFolder(s *corev1.HostPathVolumeSource, gid *int64) error {
	_, err := os.Stat(s.Path)
	made := errors.Is(err, fs.ErrNotExist)
	if err := hostPath(s); err != nil || !made || s.Type == nil || *s.Type != corev1.HostPathDirectoryOrCreate {
		return err
	}
	mode := fs.FileMode(0o777)
	if gid != nil {
		if err := os.Chown(s.Path, -1, int(*gid)); err != nil {
			return err
		}
		mode |= fs.ModeSetgid
	}
	return os.Chmod(s.Path, mode)
}

// payload returns the content of a volume that is made from API objects.
func (v *Volumes) payload(ctx context.Context, e *environment.Environment, volume *corev1.Volume) (payload, error) {
	p := payload{}
	switch s := &volume.VolumeSource; {
	case s.ConfigMap != nil:
		return p, addConfigMap(ctx, e, p, s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.DefaultMode,
			s.ConfigMap.Optional)
	case s.Secret != nil:
		return p, addSecret(ctx, e, p, s.Secret.SecretName, s.Secret.Items, s.Secret.DefaultMode, s.Secret.Optional)
	case s.DownwardAPI != nil:
		return p, addFields(e, p, s.DownwardAPI.Items, s.DownwardAPI.DefaultMode)
	case s.Projected != nil:
		for i := range s.Projected.Sources {
			if err := v.project(ctx, e, p, volume.Name, &s.Projected.Sources[i], s.Projected.DefaultMode); err != nil {
				return nil, err
			}
		}
		return p, nil
	}
	return nil, errors.New("this agent mounts emptyDir, configMap, secret, downwardAPI, projected, hostPath and " +
		"persistentVolumeClaim, and no other volumes")
}

func (v *Volumes) project(ctx context.Context, e *environment.Environment, p payload, volume string,
	s *corev1.VolumeProjection,
	mode *int32) error {
	switch {
	case s.ConfigMap != nil:
		return addConfigMap(ctx, e, p, s.ConfigMap.Name, s.ConfigMap.Items, mode, s.ConfigMap.Optional)
	case s.Secret != nil:
		return addSecret(ctx, e, p, s.Secret.Name, s.Secret.Items, mode, s.Secret.Optional)
	case s.DownwardAPI != nil:
		return addFields(e, p, s.DownwardAPI.Items, mode)
	case s.ServiceAccountToken != nil:
		token, err := v.token(ctx, e, volume, s.ServiceAccountToken)
		if err != nil {
			return err
		}
		p[filepath.Clean(s.ServiceAccountToken.Path)] = payloadFile{[]byte(token), parseMode(nil, mode)}
		return nil
	}
	return errors.New(
		"this agent projects configMap, secret, downwardAPI and serviceAccountToken, and no other sources")
}

// token returns a ServiceAccount's token that is bound to the pod: the cached one until its renewal is due.
func (v *Volumes) token(ctx context.Context, e *environment.Environment, volume string,
	s *corev1.ServiceAccountTokenProjection) (
	string, error) {
	key := volume + "\x00" + s.Path
	now := v.Clock.Now()
	v.mu.Lock()
	cached := v.tokens[e.Pod.UID][key]
	v.mu.Unlock()
	if cached != nil && now.Before(cached.renew) {
		return cached.token, nil
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: s.ExpirationSeconds,
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: e.Pod.Name,
			UID: e.Pod.UID},
	}}
	if s.Audience != "" {
		request.Spec.Audiences = []string{s.Audience}
	}
	account := e.Pod.Spec.ServiceAccountName
	answer, err := e.Client.CoreV1().ServiceAccounts(e.Pod.Namespace).CreateToken(ctx, account, request,
		metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of ServiceAccount %q: %w", account, err)
	}
	life := answer.Status.ExpirationTimestamp.Sub(now)
	cached = &cachedToken{answer.Status.Token, now.Add(min(life*4/5, 24*time.Hour)).Round(0)}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.tokens == nil {
		v.tokens = map[types.UID]map[string]*cachedToken{}
	}
	if v.tokens[e.Pod.UID] == nil {
		v.tokens[e.Pod.UID] = map[string]*cachedToken{}
	}
	v.tokens[e.Pod.UID][key] = cached
	return cached.token, nil
}

func addConfigMap(ctx context.Context, e *environment.Environment, p payload, name string, items []corev1.KeyToPath,
	mode *int32,
	optional *bool) error {
	cm, err := e.References.ConfigMap(ctx, e.Client, e.Pod, name)
	if apierrors.IsNotFound(err) && ptr.Deref(optional, false) {
		return nil
	}
	if err != nil {
		return err
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for key, value := range cm.Data {
		data[key] = []byte(value)
	}
	for key, value := range cm.BinaryData {
		data[key] = value
	}
	return addKeys(p, data, items, mode, optional)
}

func addSecret(ctx context.Context, e *environment.Environment, p payload, name string, items []corev1.KeyToPath,
	mode *int32,
	optional *bool) error {
	secret, err := e.References.Secret(ctx, e.Client, e.Pod, name)
	if apierrors.IsNotFound(err) && ptr.Deref(optional, false) {
		return nil
	}
	if err != nil {
		return err
	}
	return addKeys(p, secret.Data, items, mode, optional)
}

// addKeys adds the keys that items select, or all keys.
func addKeys(p payload, data map[string][]byte, items []corev1.KeyToPath, mode *int32, optional *bool) error {
	if len(items) == 0 {
		for key, value := range data {
			p[key] = payloadFile{value, parseMode(nil, mode)}
		}
	}
	for _, item := range items {
		value, ok := data[item.Key]
		if !ok && !ptr.Deref(optional, false) {
			return fmt.Errorf("references non-existent key: %s", item.Key)
		}
		if ok {
			p[filepath.Clean(item.Path)] = payloadFile{value, parseMode(item.Mode, mode)}
		}
	}
	return nil
}

func addFields(e *environment.Environment, p payload, items []corev1.DownwardAPIVolumeFile, mode *int32) error {
	for _, item := range items {
		var value string
		var err error
		if item.FieldRef != nil {
			value, err = environment.FieldValue(e.Pod, item.FieldRef.FieldPath)
		} else {
			value, err = environment.ResourceValue(e.Pod, nil, item.ResourceFieldRef, e.Allocatable)
		}
		if err != nil {
			return err
		}
		p[filepath.Clean(item.Path)] = payloadFile{[]byte(value), parseMode(item.Mode, mode)}
	}
	return nil
}
