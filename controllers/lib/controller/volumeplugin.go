package controller

import corev1 "k8s.io/api/core/v1"

// VolumePlugin returns the name of a volume's plugin in Kubernetes' metrics, with the driver of a CSI volume; "N/A" if
// it has none of the plugins that Kubernetes still has.
func VolumePlugin(v *corev1.PersistentVolume) string {
	switch source := &v.Spec.PersistentVolumeSource; {
	case source.CSI != nil:
		return "kubernetes.io/csi:" + source.CSI.Driver
	case source.HostPath != nil:
		return "kubernetes.io/host-path"
	case source.Local != nil:
		return "kubernetes.io/local-volume"
	case source.NFS != nil:
		return "kubernetes.io/nfs"
	case source.ISCSI != nil:
		return "kubernetes.io/iscsi"
	case source.FC != nil:
		return "kubernetes.io/fc"
	case source.FlexVolume != nil:
		return "flexvolume-" + source.FlexVolume.Driver
	}
	return "N/A"
}
