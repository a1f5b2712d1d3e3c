package core

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
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

// volumeType is a type of volume: second is its name in the error about a second type, name the one in the errors of
// its check. The names may differ from the field's name.
type volumeType[V any] struct {
	second, name string
	set          func(v *V) bool
	check        func(v *V, path *field.Path) field.ErrorList
}

// source returns a row of the table of volume types, for a field of the volume.
func source[V, S any](name string, get func(v *V) *S,
	check func(s *S, path *field.Path) field.ErrorList) volumeType[V] {
	return volumeType[V]{
		second: name, name: name,
		set:   func(v *V) bool { return get(v) != nil },
		check: func(v *V, path *field.Path) field.ErrorList { return check(get(v), path) },
	}
}

// as sets the names in Kubernetes' errors.
func (t volumeType[V]) as(second, name string) volumeType[V] {
	t.second, t.name = second, name
	return t
}

// validateOneSource requires exactly one volume type, and checks it.
func validateOneSource[V any](types []volumeType[V], v *V, path *field.Path) (errs field.ErrorList) {
	found := 0
	for i := range types {
		t := &types[i]
		if !t.set(v) {
			continue
		}
		if found++; found > 1 {
			errs = append(errs, field.Forbidden(path.Child(t.second), "may not specify more than 1 volume type"))
			continue
		}
		errs = append(errs, field.Checked(t.check, v, path.Child(t.name))...)
	}
	if found == 0 {
		errs = append(errs, field.Required(path, "must specify a volume type"))
	}
	return errs
}

type podSource = corev1.VolumeSource

// podVolumeTypes is in the order of Kubernetes' checks: if two are set, the later one is rejected.
var podVolumeTypes = []volumeType[podSource]{
	source("emptyDir", func(v *podSource) *corev1.EmptyDirVolumeSource { return v.EmptyDir }, validateEmptyDir),
	source("hostPath", func(v *podSource) *corev1.HostPathVolumeSource { return v.HostPath }, validateHostPath),
	source("gitRepo", func(v *podSource) *corev1.GitRepoVolumeSource { return v.GitRepo }, validateGitRepo),
	source("gcePersistentDisk", func(v *podSource) *corev1.GCEPersistentDiskVolumeSource {
		return v.GCEPersistentDisk
	}, validateGCEDisk).as("gcePersistentDisk", "persistentDisk"),
	source("awsElasticBlockStore", func(v *podSource) *corev1.AWSElasticBlockStoreVolumeSource {
		return v.AWSElasticBlockStore
	}, validateAWSDisk),
	source("secret", func(v *podSource) *corev1.SecretVolumeSource { return v.Secret }, validateSecretVolume),
	source("nfs", func(v *podSource) *corev1.NFSVolumeSource { return v.NFS }, validateNFS),
	source("iscsi", func(v *podSource) *corev1.ISCSIVolumeSource { return v.ISCSI }, validateISCSI),
	source("glusterfs", func(v *podSource) *corev1.GlusterfsVolumeSource { return v.Glusterfs }, validateGlusterfs),
	source("flocker", func(v *podSource) *corev1.FlockerVolumeSource { return v.Flocker }, validateFlocker),
	source("persistentVolumeClaim", func(v *podSource) *corev1.PersistentVolumeClaimVolumeSource {
		return v.PersistentVolumeClaim
	}, validateClaimVolume),
	source("rbd", func(v *podSource) *corev1.RBDVolumeSource { return v.RBD }, validateRBD),
	source("cinder", func(v *podSource) *corev1.CinderVolumeSource { return v.Cinder }, validateCinder),
	source("cephfs", func(v *podSource) *corev1.CephFSVolumeSource {
		return v.CephFS
	}, validateCephFS).as("cephFS", "cephfs"),
	source("quobyte", func(v *podSource) *corev1.QuobyteVolumeSource { return v.Quobyte }, validateQuobyte),
	source("downwardAPI", func(v *podSource) *corev1.DownwardAPIVolumeSource {
		return v.DownwardAPI
	}, validateDownwardAPI).as("downwarAPI", "downwardAPI"),
	source("fc", func(v *podSource) *corev1.FCVolumeSource { return v.FC }, validateFC),
	source("flexVolume", func(v *podSource) *corev1.FlexVolumeSource { return v.FlexVolume }, validateFlex),
	source("configMap", func(v *podSource) *corev1.ConfigMapVolumeSource {
		return v.ConfigMap
	}, validateConfigMapVolume),
	source("azureFile", func(v *podSource) *corev1.AzureFileVolumeSource { return v.AzureFile }, validateAzureFile),
	source("vsphereVolume", func(v *podSource) *corev1.VsphereVirtualDiskVolumeSource {
		return v.VsphereVolume
	}, validateVsphere),
	source("photonPersistentDisk", func(v *podSource) *corev1.PhotonPersistentDiskVolumeSource {
		return v.PhotonPersistentDisk
	}, validatePhoton),
	source("portworxVolume", func(v *podSource) *corev1.PortworxVolumeSource {
		return v.PortworxVolume
	}, validatePortworx),
	source("azureDisk", func(v *podSource) *corev1.AzureDiskVolumeSource { return v.AzureDisk }, validateAzureDisk),
	source("storageos", func(v *podSource) *corev1.StorageOSVolumeSource { return v.StorageOS }, validateStorageOS),
	source("projected", func(v *podSource) *corev1.ProjectedVolumeSource { return v.Projected }, validateProjected),
	source("scaleIO", func(v *podSource) *corev1.ScaleIOVolumeSource { return v.ScaleIO }, validateScaleIO),
	source("csi", func(v *podSource) *corev1.CSIVolumeSource { return v.CSI }, validateCSIVolume),
	source("ephemeral", func(v *podSource) *corev1.EphemeralVolumeSource {
		return v.Ephemeral
	}, validateEphemeralVolume),
	source("image", func(v *podSource) *corev1.ImageVolumeSource { return v.Image }, validateImageVolume),
}

// validateVolumeSource also makes the checks that depend on the names of the volume and of the pod.
func validateVolumeSource(v *corev1.Volume, podName string, path *field.Path) field.ErrorList {
	errs := validateOneSource(podVolumeTypes, &v.VolumeSource, path)
	if i := v.ISCSI; i != nil && i.InitiatorName != nil && len(v.Name+":"+i.TargetPortal) > maxISCSIName {
		errs = append(errs, field.Invalid(path.Child("name"), v.Name, isISCSITooLong))
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
