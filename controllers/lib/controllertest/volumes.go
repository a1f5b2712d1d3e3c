package controllertest

import (
	"fmt"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CreateVolume creates a PersistentVolume of the class "disks".
func (c *Cluster) CreateVolume(name, size string, edit func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	path := &corev1.HostPathVolumeSource{Path: "/disks/" + name}
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName:       "disks",
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: path},
		},
	}
	if edit != nil {
		edit(v)
	}
	v, err := c.Client.CoreV1().PersistentVolumes().Create(c.Context(), v, metav1.CreateOptions{})
	require.NoError(c, err)
	return v
}

// Volume returns the present state of a PersistentVolume.
func (c *Cluster) Volume(name string) *corev1.PersistentVolume {
	v, err := c.Client.CoreV1().PersistentVolumes().Get(c.Context(), name, metav1.GetOptions{})
	require.NoError(c, err)
	return v
}

// EditVolume changes a PersistentVolume as a user does.
func (c *Cluster) EditVolume(name string, change func(*corev1.PersistentVolume)) {
	c.Helper()
	Edit(c, c.Client.CoreV1().PersistentVolumes(), name, change)
}

// CreateClaim creates a PersistentVolumeClaim of the class "disks".
func (c *Cluster) CreateClaim(name, size string,
	edit func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new("disks"),
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
		},
	}
	if edit != nil {
		edit(claim)
	}
	claim, err := c.Client.CoreV1().PersistentVolumeClaims("default").Create(c.Context(), claim,
		metav1.CreateOptions{})
	require.NoError(c, err)
	return claim
}

// Claim returns the present state of a PersistentVolumeClaim.
func (c *Cluster) Claim(name string) *corev1.PersistentVolumeClaim {
	claim, err := c.Client.CoreV1().PersistentVolumeClaims("default").Get(c.Context(), name, metav1.GetOptions{})
	require.NoError(c, err)
	return claim
}

// AwaitClaim waits until a claim has a phase and a volume.
func (c *Clocked) AwaitClaim(name string, phase corev1.PersistentVolumeClaimPhase,
	volume string) *corev1.PersistentVolumeClaim {
	c.Helper()
	var claim *corev1.PersistentVolumeClaim
	c.Reaches(fmt.Sprintf("claim %s is %s with volume %q", name, phase, volume), func() bool {
		claim = c.Claim(name)
		return claim.Status.Phase == phase && claim.Spec.VolumeName == volume
	})
	return claim
}

// DropClaim deletes a claim and waits until it is gone.
func (c *Clocked) DropClaim(name string) {
	c.Helper()
	claims := c.Client.CoreV1().PersistentVolumeClaims("default")
	require.NoError(c, claims.Delete(c.Context(), name, metav1.DeleteOptions{}))
	c.Reaches("claim "+name+" is gone", func() bool {
		_, err := claims.Get(c.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}
