package podspec

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/kit/volume"
	"github.com/coxswain-dev/coxswain/api/naming"
)

// validateVolumes also records the valid volumes by name, for the checks of mounts. podName is empty for a template.
func validateVolumes(volumes []corev1.Volume, byName map[string]*corev1.VolumeSource, podName string,
	path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range volumes {
		if field.Enough(errs) {
			break
		}
		v, idxPath := &volumes[i], path.Index(i)
		own := validateVolumeSource(v, podName, idxPath)
		if v.Name == "" {
			own = append(own, field.Required(idxPath.Child("name"), ""))
		} else {
			own = append(own, validate.DnsLabel(idxPath.Child("name"), v.Name)...)
		}
		if byName[v.Name] != nil {
			own = append(own, field.Duplicate(idxPath.Child("name"), v.Name))
		}
		if len(own) == 0 {
			byName[v.Name] = &v.VolumeSource
		}
		errs = append(errs, own...)
		if claim := v.PersistentVolumeClaim; claim != nil && podName != "" &&
			madeForPod(volumes, podName, claim.ClaimName) {
			errs = append(errs, field.Invalid(idxPath.Child("persistentVolumeClaim", "claimName"), claim.ClaimName,
				"must not reference a PVC that gets created for an ephemeral volume"))
		}
	}
	return errs
}

// madeForPod reports whether a claim belongs to an ephemeral volume.
func madeForPod(volumes []corev1.Volume, podName, claim string) bool {
	for i := range volumes {
		if volumes[i].Ephemeral != nil && claim == podName+"-"+volumes[i].Name {
			return true
		}
	}
	return false
}

type podSource = corev1.VolumeSource

// podVolumeTypes is in the order of Kubernetes' checks: if two are set, the later one is rejected.
var podVolumeTypes = []volume.Type[podSource]{
	volume.Source("emptyDir", func(v *podSource) *corev1.EmptyDirVolumeSource { return v.EmptyDir }, validateEmptyDir),
	volume.Source("hostPath", func(v *podSource) *corev1.HostPathVolumeSource { return v.HostPath }, volume.HostPath),
	volume.Source("gitRepo", func(v *podSource) *corev1.GitRepoVolumeSource { return v.GitRepo }, volume.GitRepo),
	volume.Source("gcePersistentDisk", func(v *podSource) *corev1.GCEPersistentDiskVolumeSource {
		return v.GCEPersistentDisk
	}, volume.GCEDisk).As("gcePersistentDisk", "persistentDisk"),
	volume.Source("awsElasticBlockStore", func(v *podSource) *corev1.AWSElasticBlockStoreVolumeSource {
		return v.AWSElasticBlockStore
	}, volume.AWSDisk),
	volume.Source("secret", func(v *podSource) *corev1.SecretVolumeSource { return v.Secret }, validateSecretVolume),
	volume.Source("nfs", func(v *podSource) *corev1.NFSVolumeSource { return v.NFS }, volume.NFS),
	volume.Source("iscsi", func(v *podSource) *corev1.ISCSIVolumeSource { return v.ISCSI }, volume.ISCSI),
	volume.Source("glusterfs", func(v *podSource) *corev1.GlusterfsVolumeSource {
		return v.Glusterfs
	}, volume.Glusterfs),
	volume.Source("flocker", func(v *podSource) *corev1.FlockerVolumeSource { return v.Flocker }, volume.Flocker),
	volume.Source("persistentVolumeClaim", func(v *podSource) *corev1.PersistentVolumeClaimVolumeSource {
		return v.PersistentVolumeClaim
	}, validateClaimVolume),
	volume.Source("rbd", func(v *podSource) *corev1.RBDVolumeSource { return v.RBD }, volume.RBD),
	volume.Source("cinder", func(v *podSource) *corev1.CinderVolumeSource { return v.Cinder }, volume.Cinder),
	volume.Source("cephfs", func(v *podSource) *corev1.CephFSVolumeSource {
		return v.CephFS
	}, volume.CephFS).As("cephFS", "cephfs"),
	volume.Source("quobyte", func(v *podSource) *corev1.QuobyteVolumeSource { return v.Quobyte }, volume.Quobyte),
	volume.Source("downwardAPI", func(v *podSource) *corev1.DownwardAPIVolumeSource {
		return v.DownwardAPI
	}, validateDownwardAPI).As("downwarAPI", "downwardAPI"),
	volume.Source("fc", func(v *podSource) *corev1.FCVolumeSource { return v.FC }, volume.FC),
	volume.Source("flexVolume", func(v *podSource) *corev1.FlexVolumeSource { return v.FlexVolume }, volume.Flex),
	volume.Source("configMap", func(v *podSource) *corev1.ConfigMapVolumeSource {
		return v.ConfigMap
	}, validateConfigMapVolume),
	volume.Source("azureFile", func(v *podSource) *corev1.AzureFileVolumeSource {
		return v.AzureFile
	}, volume.AzureFile),
	volume.Source("vsphereVolume", func(v *podSource) *corev1.VsphereVirtualDiskVolumeSource {
		return v.VsphereVolume
	}, volume.Vsphere),
	volume.Source("photonPersistentDisk", func(v *podSource) *corev1.PhotonPersistentDiskVolumeSource {
		return v.PhotonPersistentDisk
	}, volume.Photon),
	volume.Source("portworxVolume", func(v *podSource) *corev1.PortworxVolumeSource {
		return v.PortworxVolume
	}, volume.Portworx),
	volume.Source("azureDisk", func(v *podSource) *corev1.AzureDiskVolumeSource {
		return v.AzureDisk
	}, volume.AzureDisk),
	volume.Source("storageos", func(v *podSource) *corev1.StorageOSVolumeSource {
		return v.StorageOS
	}, volume.StorageOS),
	volume.Source("projected", func(v *podSource) *corev1.ProjectedVolumeSource {
		return v.Projected
	}, validateProjected),
	volume.Source("scaleIO", func(v *podSource) *corev1.ScaleIOVolumeSource { return v.ScaleIO }, volume.ScaleIO),
	volume.Source("csi", func(v *podSource) *corev1.CSIVolumeSource { return v.CSI }, validateCSIVolume),
	volume.Source("ephemeral", func(v *podSource) *corev1.EphemeralVolumeSource {
		return v.Ephemeral
	}, validateEphemeralVolume),
	volume.Source("image", func(v *podSource) *corev1.ImageVolumeSource { return v.Image }, validateImageVolume),
}

// validateVolumeSource also makes the checks that depend on the names of the volume and of the pod.
func validateVolumeSource(v *corev1.Volume, podName string, path *field.Path) field.ErrorList {
	errs := volume.ExactlyOne(podVolumeTypes, &v.VolumeSource, path)
	if i := v.ISCSI; i != nil && i.InitiatorName != nil && len(v.Name+":"+i.TargetPortal) > volume.MaxISCSIName {
		errs = append(errs, field.Invalid(path.Child("name"), v.Name, volume.ISCSITooLong))
	}
	if podName == "" {
		return errs
	}
	if v.Image != nil && v.Image.Reference == "" {
		errs = append(errs, field.Required(path.Child("image", "reference"), ""))
	}
	if v.Ephemeral != nil && v.Name != "" {
		claim := podName + "-" + v.Name
		for _, complaint := range naming.NameIsDNSSubdomain(claim, false) {
			if field.Enough(errs) {
				break
			}
			errs = append(errs,
				field.Invalid(path.Child("name"), v.Name, fmt.Sprintf("PVC name %q: %v", claim, complaint)))
		}
	}
	return errs
}

func validateEmptyDir(e *corev1.EmptyDirVolumeSource, path *field.Path) field.ErrorList {
	if limit := e.SizeLimit; limit != nil && limit.Sign() < 0 {
		return field.ErrorList{field.Forbidden(path.Child("sizeLimit"),
			"SizeLimit field must be a valid resource quantity")}
	}
	return nil
}

func validateSecretVolume(s *corev1.SecretVolumeSource, path *field.Path) field.ErrorList {
	errs := validate.Required(path.Child("secretName"), s.SecretName)
	errs = append(errs, validateMode(s.DefaultMode, path.Child("defaultMode"))...)
	return append(errs, validateItems(s.Items, path)...)
}

func validateConfigMapVolume(c *corev1.ConfigMapVolumeSource, path *field.Path) field.ErrorList {
	errs := validate.Required(path.Child("name"), c.Name)
	errs = append(errs, validateMode(c.DefaultMode, path.Child("defaultMode"))...)
	return append(errs, validateItems(c.Items, path)...)
}

func validateDownwardAPI(d *corev1.DownwardAPIVolumeSource, path *field.Path) field.ErrorList {
	errs := validateMode(d.DefaultMode, path.Child("defaultMode"))
	return append(errs, validateDownwardItems(d.Items, path)...)
}

func validateClaimVolume(c *corev1.PersistentVolumeClaimVolumeSource, path *field.Path) field.ErrorList {
	return validate.Required(path.Child("claimName"), c.ClaimName)
}

func validateImageVolume(i *corev1.ImageVolumeSource, path *field.Path) field.ErrorList {
	return validate.RequiredOneOf(path.Child("pullPolicy"), i.PullPolicy, corev1.PullAlways, corev1.PullIfNotPresent,
		corev1.PullNever)
}

func validateCSIVolume(c *corev1.CSIVolumeSource, path *field.Path) field.ErrorList {
	errs := validate.CSIDriverName(c.Driver, path.Child("driver"))
	if ref := c.NodePublishSecretRef; ref != nil {
		if ref.Name == "" {
			errs = append(errs, field.Required(path.Child("nodePublishSecretRef", "name"), ""))
		} else {
			errs = append(errs, validate.DnsSubdomain(path.Child("name"), ref.Name)...)
		}
	}
	return errs
}

func validateEphemeralVolume(e *corev1.EphemeralVolumeSource, path *field.Path) field.ErrorList {
	path = path.Child("volumeClaimTemplate")
	if e.VolumeClaimTemplate == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	errs := ValidateTemplateMeta(&e.VolumeClaimTemplate.ObjectMeta, path.Child("metadata"))
	return append(errs, ValidateClaimSpec(&e.VolumeClaimTemplate.Spec, path.Child("spec"))...)
}

// ValidateTemplateMeta allows only labels and annotations.
func ValidateTemplateMeta(m *metav1.ObjectMeta, path *field.Path) field.ErrorList {
	errs := validate.Annotations(m.Annotations, path.Child("annotations"))
	errs = append(errs, validate.Labels(m.Labels, path.Child("labels"))...)
	for _, f := range []setField{
		{"name", m.Name != ""}, {"generateName", m.GenerateName != ""}, {"namespace", m.Namespace != ""},
		{"selfLink", m.SelfLink != ""},
		{"uID", m.UID != ""}, {"resourceVersion", m.ResourceVersion != ""}, {"generation", m.Generation != 0},
		{"creationTimestamp", !m.CreationTimestamp.IsZero()}, {"deletionTimestamp", m.DeletionTimestamp != nil},
		{"deletionGracePeriodSeconds", m.DeletionGracePeriodSeconds != nil},
		{"ownerReferences", m.OwnerReferences != nil},
		{"finalizers", m.Finalizers != nil}, {"managedFields", m.ManagedFields != nil},
	} {
		if f.set {
			errs = append(errs, field.Forbidden(path.Child(f.name), "cannot be set"))
		}
	}
	return errs
}
