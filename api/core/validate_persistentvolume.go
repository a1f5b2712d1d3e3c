package core

import (
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/resourcelist"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/kit/volume"
	"github.com/coxswain-dev/coxswain/api/naming"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

type pvSource = corev1.PersistentVolumeSource

// persistentVolumeTypes is in the order of Kubernetes' checks.
var persistentVolumeTypes = []volume.Type[pvSource]{
	volume.Source("hostPath", func(v *pvSource) *corev1.HostPathVolumeSource { return v.HostPath }, volume.HostPath),
	volume.Source("gcePersistentDisk", func(v *pvSource) *corev1.GCEPersistentDiskVolumeSource {
		return v.GCEPersistentDisk
	}, volume.GCEDisk).As("gcePersistentDisk", "persistentDisk"),
	volume.Source("awsElasticBlockStore", func(v *pvSource) *corev1.AWSElasticBlockStoreVolumeSource {
		return v.AWSElasticBlockStore
	}, volume.AWSDisk),
	volume.Source("glusterfs", func(v *pvSource) *corev1.GlusterfsPersistentVolumeSource {
		return v.Glusterfs
	}, validateGlusterfsPV),
	volume.Source("flocker", func(v *pvSource) *corev1.FlockerVolumeSource { return v.Flocker }, volume.Flocker),
	volume.Source("nfs", func(v *pvSource) *corev1.NFSVolumeSource { return v.NFS }, volume.NFS),
	volume.Source("rbd", func(v *pvSource) *corev1.RBDPersistentVolumeSource { return v.RBD }, validateRBDPV),
	volume.Source("quobyte", func(v *pvSource) *corev1.QuobyteVolumeSource { return v.Quobyte }, volume.Quobyte),
	volume.Source("cephfs", func(v *pvSource) *corev1.CephFSPersistentVolumeSource {
		return v.CephFS
	}, validateCephFSPV).As("cephFS", "cephfs"),
	volume.Source("iscsi", func(v *pvSource) *corev1.ISCSIPersistentVolumeSource { return v.ISCSI }, validateISCSIPV),
	volume.Source("cinder", func(v *pvSource) *corev1.CinderPersistentVolumeSource {
		return v.Cinder
	}, validateCinderPV),
	volume.Source("fc", func(v *pvSource) *corev1.FCVolumeSource { return v.FC }, volume.FC),
	volume.Source("flexVolume", func(v *pvSource) *corev1.FlexPersistentVolumeSource {
		return v.FlexVolume
	}, validateFlexPV),
	volume.Source("azureFile", func(v *pvSource) *corev1.AzureFilePersistentVolumeSource {
		return v.AzureFile
	}, validateAzureFilePV),
	volume.Source("vsphereVolume", func(v *pvSource) *corev1.VsphereVirtualDiskVolumeSource {
		return v.VsphereVolume
	}, volume.Vsphere),
	volume.Source("photonPersistentDisk", func(v *pvSource) *corev1.PhotonPersistentDiskVolumeSource {
		return v.PhotonPersistentDisk
	}, volume.Photon),
	volume.Source("portworxVolume", func(v *pvSource) *corev1.PortworxVolumeSource {
		return v.PortworxVolume
	}, volume.Portworx),
	volume.Source("azureDisk", func(v *pvSource) *corev1.AzureDiskVolumeSource {
		return v.AzureDisk
	}, volume.AzureDisk),
	volume.Source("scaleIO", func(v *pvSource) *corev1.ScaleIOPersistentVolumeSource {
		return v.ScaleIO
	}, validateScaleIOPV),
	volume.Source("local", func(v *pvSource) *corev1.LocalVolumeSource { return v.Local }, validateLocal),
	volume.Source("storageos", func(v *pvSource) *corev1.StorageOSPersistentVolumeSource {
		return v.StorageOS
	}, validateStorageOSPV),
	volume.Source("csi", func(v *pvSource) *corev1.CSIPersistentVolumeSource { return v.CSI }, validateCSIPV),
}

func validateGlusterfsPV(g *corev1.GlusterfsPersistentVolumeSource, path *field.Path) field.ErrorList {
	errs := append(validate.Required(path.Child("endpoints"), g.EndpointsName),
		validate.Required(path.Child("path"), g.Path)...)
	if namespace := g.EndpointsNamespace; namespace != nil {
		fldPath := path.Child("endpointsNamespace")
		if *namespace == "" {
			return append(errs,
				field.Invalid(fldPath, *namespace,
					"if the endpointnamespace is set, it must be a valid namespace name"))
		}
		errs = append(errs, validate.DnsLabel(fldPath, *namespace)...)
	}
	return errs
}

func validateRBDPV(r *corev1.RBDPersistentVolumeSource, path *field.Path) field.ErrorList {
	return volume.CephImage(r.CephMonitors, r.RBDImage, path)
}

func validateCephFSPV(c *corev1.CephFSPersistentVolumeSource, path *field.Path) field.ErrorList {
	return volume.CephMonitors(c.Monitors, path)
}

func validateISCSIPV(i *corev1.ISCSIPersistentVolumeSource, path *field.Path) field.ErrorList {
	errs := volume.ISCSITarget(&corev1.ISCSIVolumeSource{
		TargetPortal: i.TargetPortal, IQN: i.IQN, Lun: i.Lun, DiscoveryCHAPAuth: i.DiscoveryCHAPAuth,
		SessionCHAPAuth: i.SessionCHAPAuth, InitiatorName: i.InitiatorName,
	}, i.SecretRef != nil, "must be valid format", path)
	if i.SecretRef != nil {
		errs = append(errs, validate.Required(path.Child("secretRef", "name"), i.SecretRef.Name)...)
	}
	return errs
}

// namedSecret checks an optional reference to a secret in a namespace.
func namedSecret(path *field.Path, ref *corev1.SecretReference) field.ErrorList {
	if ref == nil {
		return nil
	}
	return append(validate.Required(path.Child("name"), ref.Name),
		validate.Required(path.Child("namespace"), ref.Namespace)...)
}

func validateCinderPV(c *corev1.CinderPersistentVolumeSource, path *field.Path) field.ErrorList {
	return append(validate.Required(path.Child("volumeID"), c.VolumeID),
		namedSecret(path.Child("secretRef"), c.SecretRef)...)
}

func validateFlexPV(f *corev1.FlexPersistentVolumeSource, path *field.Path) field.ErrorList {
	return volume.FlexOptions(f.Driver, f.Options, path)
}

func validateAzureFilePV(a *corev1.AzureFilePersistentVolumeSource, path *field.Path) field.ErrorList {
	errs := append(validate.Required(path.Child("secretName"), a.SecretName),
		validate.Required(path.Child("shareName"), a.ShareName)...)
	if a.SecretNamespace != nil {
		errs = append(errs, validate.Required(path.Child("secretNamespace"), *a.SecretNamespace)...)
	}
	return errs
}

func validateScaleIOPV(s *corev1.ScaleIOPersistentVolumeSource, path *field.Path) field.ErrorList {
	return volume.ScaleIONames(s.Gateway, s.System, s.VolumeName, path)
}

func validateStorageOSPV(s *corev1.StorageOSPersistentVolumeSource, path *field.Path) field.ErrorList {
	errs := volume.StorageOSNames(s.VolumeName, s.VolumeNamespace, path)
	if s.SecretRef != nil {
		errs = append(errs, validate.Required(path.Child("secretRef", "name"), s.SecretRef.Name)...)
		errs = append(errs, validate.Required(path.Child("secretRef", "namespace"), s.SecretRef.Namespace)...)
	}
	return errs
}

func validateLocal(l *corev1.LocalVolumeSource, path *field.Path) field.ErrorList {
	if l.Path == "" {
		return field.ErrorList{field.Required(path.Child("path"), "")}
	}
	return validate.NoBacksteps(path.Child("path"), l.Path)
}

func validateCSIPV(c *corev1.CSIPersistentVolumeSource, path *field.Path) field.ErrorList {
	errs := append(validate.CSIDriverName(c.Driver, path.Child("driver")),
		validate.Required(path.Child("volumeHandle"), c.VolumeHandle)...)
	for _, s := range []struct {
		name string
		ref  *corev1.SecretReference
	}{
		{"controllerPublishSecretRef", c.ControllerPublishSecretRef}, {"controllerExpandSecretRef",
			c.ControllerExpandSecretRef},
		{"nodePublishSecretRef", c.NodePublishSecretRef}, {"nodeExpandSecretRef", c.NodeExpandSecretRef},
	} {
		if s.ref == nil {
			continue
		}
		fldPath := path.Child(s.name)
		if errs = append(errs, namedSecret(fldPath, s.ref)...); s.ref.Name != "" {
			errs = append(errs, validate.DnsSubdomain(fldPath.Child("name"), s.ref.Name)...)
		}
		if s.ref.Namespace != "" {
			errs = append(errs, validate.DnsLabel(fldPath.Child("namespace"), s.ref.Namespace)...)
		}
	}
	return errs
}

func validatePersistentVolume(v *corev1.PersistentVolume) field.ErrorList {
	specPath, spec := field.NewPath("spec"), &v.Spec
	var errs field.ErrorList
	if len(spec.AccessModes) == 0 {
		errs = append(errs, field.Required(specPath.Child("accessModes"), ""))
	}
	errs = append(errs, podspec.ValidateAccessModes(spec.AccessModes, specPath.Child("accessModes"))...)
	errs = append(errs, validateCapacity(spec.Capacity, specPath.Child("capacity"))...)
	if p := spec.PersistentVolumeReclaimPolicy; p != "" {
		errs = append(errs, validate.OneOf(specPath.Child("persistentVolumeReclaimPolicy"), p,
			corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRecycle,
			corev1.PersistentVolumeReclaimRetain)...)
	}
	affinity := specPath.Child("nodeAffinity")
	switch a := spec.NodeAffinity; {
	case a == nil:
	case a.Required == nil:
		errs = append(errs, field.Required(affinity.Child("required"), "must specify required node constraints"))
	default:
		errs = append(errs, podspec.ValidateNodeSelector(a.Required, affinity.Child("required"))...)
	}
	errs = append(errs, volume.ExactlyOne(persistentVolumeTypes, &spec.PersistentVolumeSource, specPath)...)
	if spec.Local != nil && spec.NodeAffinity == nil {
		errs = append(errs, field.Required(affinity, "Local volume requires node affinity"))
	}
	if i := spec.ISCSI; i != nil && i.InitiatorName != nil && len(v.Name+":"+i.TargetPortal) > volume.MaxISCSIName {
		errs = append(errs, field.Invalid(specPath.Child("iscsi", "targetportal"), i.TargetPortal, volume.ISCSITooLong))
	}
	if h := spec.HostPath; h != nil && path.Clean(h.Path) == "/" &&
		spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		errs = append(errs, field.Forbidden(specPath.Child("persistentVolumeReclaimPolicy"),
			"may not be 'recycle' for a hostPath mount of '/'"))
	}
	if class := spec.StorageClassName; class != "" {
		errs = append(errs, validate.DnsSubdomain(specPath.Child("storageClassName"), class)...)
	}
	if mode := spec.VolumeMode; mode != nil {
		errs = append(errs, validate.OneOf(specPath.Child("volumeMode"), *mode, corev1.PersistentVolumeBlock,
			corev1.PersistentVolumeFilesystem)...)
	}
	return append(errs, validateAttributesClass(spec, specPath)...)
}

func validateCapacity(capacity corev1.ResourceList, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(capacity) == 0 {
		errs = append(errs, field.Required(path, ""))
	}
	if _, ok := capacity[corev1.ResourceStorage]; !ok || len(capacity) > 1 {
		errs = append(errs, field.NotSupported(path, capacity, []corev1.ResourceName{corev1.ResourceStorage}))
	}
	for _, name := range resourcelist.SortedNames(capacity) {
		if field.Enough(errs) {
			break
		}
		q, keyPath := capacity[name], path.Key(string(name))
		if q.Sign() < 0 {
			errs = append(errs, field.Invalid(keyPath, q.String(), "must be a valid resource quantity"))
		}
		if q.Sign() <= 0 {
			errs = append(errs, field.Invalid(keyPath, q.String(), "must be greater than zero"))
		}
	}
	return errs
}

func validateAttributesClass(spec *corev1.PersistentVolumeSpec, path *field.Path) field.ErrorList {
	class, fldPath := spec.VolumeAttributesClassName, path.Child("volumeAttributesClassName")
	if class == nil {
		return nil
	}
	var errs field.ErrorList
	if *class == "" {
		errs = append(errs, field.Required(fldPath, "an empty string is disallowed"))
	} else {
		errs = append(errs, validate.DnsSubdomain(fldPath, *class)...)
	}
	if spec.CSI == nil {
		errs = append(errs,
			field.Required(path.Child("csi"), "has to be specified when using volumeAttributesClassName"))
	}
	return errs
}

func validatePersistentVolumeUpdate(v, old *corev1.PersistentVolume) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	is, was := v.Spec.PersistentVolumeSource.DeepCopy(), &old.Spec.PersistentVolumeSource
	if is.CSI != nil && was.CSI != nil && was.CSI.ControllerExpandSecretRef == nil {
		is.CSI.ControllerExpandSecretRef = nil // may be set once
	}
	if !equality.Semantic.DeepEqual(is, was) {
		errs = append(errs, field.Forbidden(path.Child("persistentvolumesource"),
			fmt.Sprintf("spec.persistentvolumesource is immutable after creation\n%v", validate.Diff(was, is))))
	}
	errs = append(errs, validate.Unchanged(v.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode"))...)
	if old.Spec.NodeAffinity != nil && !equality.Semantic.DeepEqual(v.Spec.NodeAffinity, old.Spec.NodeAffinity) {
		errs = append(errs, field.Invalid(field.NewPath("nodeAffinity"), v.Spec.NodeAffinity, validate.Immutable+
			", except for updating from beta label to GA"))
	}
	if old.Spec.VolumeAttributesClassName != nil && v.Spec.VolumeAttributesClassName == nil {
		errs = append(errs, field.Forbidden(path.Child("volumeAttributesClassName"),
			"update from non-nil value to nil is forbidden"))
	}
	return errs
}

// validateClaimUpdate lets a bound claim grow and change its attributes class, and lets an unbound claim be bound and
// get a storage class. It rejects all other changes.
func validateClaimUpdate(c, old *corev1.PersistentVolumeClaim) field.ErrorList {
	path := field.NewPath("spec")
	errs := validate.Unchanged(c.Annotations[corev1.BetaStorageClassAnnotation],
		old.Annotations[corev1.BetaStorageClassAnnotation],
		field.NewPath("metadata", "annotations", corev1.BetaStorageClassAnnotation))
	rest, was := c.Spec.DeepCopy(), old.Spec.DeepCopy()
	if old.Spec.VolumeName == "" {
		was.VolumeName = rest.VolumeName
	}
	if annotated, ok := old.Annotations[corev1.BetaStorageClassAnnotation]; was.StorageClassName == nil &&
		rest.StorageClassName != nil && (!ok || annotated == *rest.StorageClassName) {
		rest.StorageClassName = nil
	}
	if old.Status.Phase == corev1.ClaimBound {
		if rest.Resources.Requests != nil {
			rest.Resources.Requests[corev1.ResourceStorage] = was.Resources.Requests[corev1.ResourceStorage]
		}
		if rest.VolumeAttributesClassName != nil {
			rest.VolumeAttributesClassName = was.VolumeAttributesClassName
		}
	}
	if !equality.Semantic.DeepEqual(rest, was) {
		errs = append(errs, field.Forbidden(path,
			fmt.Sprintf("spec is immutable after creation except resources.requests and volumeAttributesClassName "+
				"for bound claims\n%v", validate.Diff(was, rest))))
	}
	is, before, capacity := c.Spec.Resources.Requests[corev1.ResourceStorage],
		old.Spec.Resources.Requests[corev1.ResourceStorage], old.Status.Capacity[corev1.ResourceStorage]
	if is.Cmp(before) < 0 && is.Cmp(capacity) <= 0 {
		errs = append(errs, field.Forbidden(path.Child("resources", "requests", "storage"),
			"field can not be less than status.capacity"))
	}
	errs = append(errs, validate.Unchanged(c.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode"))...)
	if old.Spec.VolumeAttributesClassName == nil {
		return errs
	}
	switch class, fldPath := c.Spec.VolumeAttributesClassName, path.Child("volumeAttributesClassName"); {
	case class == nil:
		errs = append(errs, field.Forbidden(fldPath, "update from non-nil value to nil is forbidden"))
	case *class == "" && *old.Spec.VolumeAttributesClassName != "":
		errs = append(errs, field.Forbidden(fldPath, "update from non-nil value to an empty string is forbidden"))
	}
	return errs
}

var claimResizes = []corev1.ClaimResourceStatus{
	corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimControllerResizeInfeasible,
	corev1.PersistentVolumeClaimNodeResizeInProgress, corev1.PersistentVolumeClaimNodeResizeInfeasible,
	corev1.PersistentVolumeClaimNodeResizePending,
}

func validateClaimStatus(c, _ *corev1.PersistentVolumeClaim) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("status")
	for _, name := range resourcelist.SortedNames(c.Status.Capacity) {
		if field.Enough(errs) {
			break
		}
		if q := c.Status.Capacity[name]; q.Sign() < 0 {
			errs = append(errs, field.Invalid(path.Child("capacity").Key(string(name)), q.String(),
				"must be a valid resource quantity"))
		}
	}
	storageOnly := func(name corev1.ResourceName, fldPath *field.Path) field.ErrorList {
		if bad := validate.Complaints(fldPath, name, naming.IsQualifiedName(string(name))); len(bad) > 0 ||
			!resourcelist.IsNative(name) {
			return bad
		}
		return validate.OneOf(fldPath, name, corev1.ResourceStorage)
	}
	for name, status := range c.Status.AllocatedResourceStatuses {
		if field.Enough(errs) {
			break
		}
		fldPath := path.Child("allocatedResourceStatus")
		errs = append(errs, storageOnly(name, fldPath)...)
		errs = append(errs, validate.OneOf(fldPath, status, claimResizes...)...)
	}
	for _, name := range resourcelist.SortedNames(c.Status.AllocatedResources) {
		if field.Enough(errs) {
			break
		}
		fldPath := path.Child("allocatedResources")
		if bad := storageOnly(name, fldPath); len(bad) > 0 {
			errs = append(errs, bad...)
		} else if q := c.Status.AllocatedResources[name]; q.Sign() < 0 {
			errs = append(errs,
				field.Invalid(fldPath.Key(string(name)), q.String(), "must be a valid resource quantity"))
		}
	}
	return errs
}

// ValidateAccessAndSource checks a volume's access modes, and that it has exactly one source.
func ValidateAccessAndSource(spec *corev1.PersistentVolumeSpec, path *field.Path) field.ErrorList {
	errs := podspec.ValidateAccessModes(spec.AccessModes, path.Child("accessModes"))
	return append(errs, volume.ExactlyOne(persistentVolumeTypes, &spec.PersistentVolumeSource, path)...)
}
