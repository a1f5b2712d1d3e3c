package volume

import (
	"net"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
)

func HostPath(h *corev1.HostPathVolumeSource, path *field.Path) field.ErrorList {
	if h.Path == "" {
		return field.ErrorList{field.Required(path.Child("path"), "")}
	}
	errs := validate.NoBacksteps(path.Child("path"), h.Path)
	if h.Type != nil {
		errs = append(errs, validate.OneOf(path.Child("type"), *h.Type,
			corev1.HostPathUnset, corev1.HostPathBlockDev, corev1.HostPathCharDev, corev1.HostPathDirectory,
			corev1.HostPathDirectoryOrCreate, corev1.HostPathFile, corev1.HostPathFileOrCreate,
			corev1.HostPathSocket)...)
	}
	return errs
}

func NFS(n *corev1.NFSVolumeSource, fldPath *field.Path) field.ErrorList {
	errs := validate.Required(fldPath.Child("server"), n.Server)
	errs = append(errs, validate.Required(fldPath.Child("path"), n.Path)...)
	if !path.IsAbs(n.Path) {
		errs = append(errs, field.Invalid(fldPath.Child("path"), n.Path, "must be an absolute path"))
	}
	return errs
}

func GitRepo(g *corev1.GitRepoVolumeSource, path *field.Path) field.ErrorList {
	return append(validate.Required(path.Child("repository"), g.Repository),
		validate.RelativePath(path.Child("directory"), g.Directory)...)
}

// inRange checks a number with a maximum of 255, such as a LUN.
func inRange(path *field.Path, n, low int32) field.ErrorList {
	if n < 0 || n > 255 {
		return field.ErrorList{field.Invalid(path, n, utilvalidation.InclusiveRangeError(int(low), 255))}
	}
	return nil
}

func GCEDisk(d *corev1.GCEPersistentDiskVolumeSource, path *field.Path) field.ErrorList {
	return append(validate.Required(path.Child("pdName"), d.PDName),
		inRange(path.Child("partition"), d.Partition, 1)...)
}

func AWSDisk(d *corev1.AWSElasticBlockStoreVolumeSource, path *field.Path) field.ErrorList {
	return append(validate.Required(path.Child("volumeID"), d.VolumeID),
		inRange(path.Child("partition"), d.Partition, 1)...)
}

const (
	MaxISCSIName = 64
	ISCSITooLong = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if " +
		"iscsi.initiatorName is specified."
)

// iscsiNames are the forms of names in RFC 3720, section 3.2.6.3, by prefix.
var iscsiNames = map[string]*regexp.Regexp{
	"iqn": regexp.MustCompile(`iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$`),
	"eui": regexp.MustCompile(`^eui.[[:alnum:]]{16}$`),
	"naa": regexp.MustCompile(`^naa.[[:alnum:]]{32}$`),
}

func iscsiName(path *field.Path, name, other string) field.ErrorList {
	if form := iscsiNames[name[:min(3, len(name))]]; form == nil {
		return field.ErrorList{field.Invalid(path, name, other)}
	} else if !form.MatchString(name) {
		return field.ErrorList{field.Invalid(path, name, "must be valid format")}
	}
	return nil
}

func ISCSI(i *corev1.ISCSIVolumeSource, path *field.Path) field.ErrorList {
	return ISCSITarget(i, i.SecretRef != nil, "must be valid format starting with iqn, eui, or naa", path)
}

func ISCSITarget(i *corev1.ISCSIVolumeSource, hasSecret bool, other string, path *field.Path) field.ErrorList {
	errs := validate.Required(path.Child("targetPortal"), i.TargetPortal)
	if i.IQN == "" {
		errs = append(errs, field.Required(path.Child("iqn"), ""))
	} else {
		errs = append(errs, iscsiName(path.Child("iqn"), i.IQN, other)...)
	}
	errs = append(errs, inRange(path.Child("lun"), i.Lun, 0)...)
	if (i.DiscoveryCHAPAuth || i.SessionCHAPAuth) && !hasSecret {
		errs = append(errs, field.Required(path.Child("secretRef"), ""))
	}
	if i.InitiatorName != nil {
		errs = append(errs, iscsiName(path.Child("initiatorname"), *i.InitiatorName, other)...)
	}
	return errs
}

func Glusterfs(g *corev1.GlusterfsVolumeSource, path *field.Path) field.ErrorList {
	return append(validate.Required(path.Child("endpoints"), g.EndpointsName),
		validate.Required(path.Child("path"), g.Path)...)
}

func Flocker(f *corev1.FlockerVolumeSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case f.DatasetName == "" && f.DatasetUUID == "":
		errs = append(errs, field.Required(path, "one of datasetName and datasetUUID is required"))
	case f.DatasetName != "" && f.DatasetUUID != "":
		errs = append(errs,
			field.Invalid(path, "resource", "datasetName and datasetUUID can not be specified simultaneously"))
	}
	if strings.Contains(f.DatasetName, "/") {
		errs = append(errs, field.Invalid(path.Child("datasetName"), f.DatasetName, "must not contain '/'"))
	}
	return errs
}

func CephImage(monitors []string, image string, path *field.Path) field.ErrorList {
	return append(CephMonitors(monitors, path), validate.Required(path.Child("image"), image)...)
}

func CephMonitors(monitors []string, path *field.Path) field.ErrorList {
	if len(monitors) == 0 {
		return field.ErrorList{field.Required(path.Child("monitors"), "")}
	}
	return nil
}

func RBD(r *corev1.RBDVolumeSource, path *field.Path) field.ErrorList {
	return CephImage(r.CephMonitors, r.RBDImage, path)
}

func CephFS(c *corev1.CephFSVolumeSource, path *field.Path) field.ErrorList {
	return CephMonitors(c.Monitors, path)
}

// localSecret checks an optional reference to a secret in the same namespace.
func localSecret(path *field.Path, ref *corev1.LocalObjectReference) field.ErrorList {
	if ref == nil {
		return nil
	}
	return validate.Required(path.Child("name"), ref.Name)
}

func Cinder(c *corev1.CinderVolumeSource, path *field.Path) field.ErrorList {
	return append(validate.Required(path.Child("volumeID"), c.VolumeID),
		localSecret(path.Child("secretRef"), c.SecretRef)...)
}

func Quobyte(q *corev1.QuobyteVolumeSource, path *field.Path) field.ErrorList {
	const form, maxTenant = "must be a host:port pair or multiple pairs separated by commas", 64
	var errs field.ErrorList
	switch {
	case q.Registry == "":
		errs = append(errs, field.Required(path.Child("registry"), form))
	case len(q.Tenant) > maxTenant:
		errs = append(errs,
			field.Required(path.Child("tenant"), "must be a UUID and may not exceed a length of 64 characters"))
	default:
		for pair := range strings.SplitSeq(q.Registry, ",") {
			if field.Enough(errs) {
				break
			}
			if _, _, err := net.SplitHostPort(pair); err != nil {
				errs = append(errs, field.Invalid(path.Child("registry"), q.Registry, form))
			}
		}
	}
	return append(errs, validate.Required(path.Child("volume"), q.Volume)...)
}

func FC(f *corev1.FCVolumeSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	targetWWNsPath := path.Child("targetWWNs")
	switch {
	case len(f.TargetWWNs) == 0 && len(f.WWIDs) == 0:
		errs = append(errs, field.Required(targetWWNsPath, "must specify either targetWWNs or wwids, but not both"))
	case len(f.TargetWWNs) > 0 && len(f.WWIDs) > 0:
		errs = append(errs,
			field.Invalid(targetWWNsPath, f.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously"))
	}
	if len(f.TargetWWNs) == 0 {
		return errs
	}
	if f.Lun == nil {
		return append(errs, field.Required(path.Child("lun"), "lun is required if targetWWNs is specified"))
	}
	return append(errs, inRange(path.Child("lun"), *f.Lun, 0)...)
}

func Flex(f *corev1.FlexVolumeSource, path *field.Path) field.ErrorList {
	return FlexOptions(f.Driver, f.Options, path)
}

// FlexOptions rejects the options that the kubelet itself passes to drivers.
func FlexOptions(driver string, options map[string]string, path *field.Path) field.ErrorList {
	errs := validate.Required(path.Child("driver"), driver)
	for key := range options {
		if field.Enough(errs) {
			break
		}
		namespace, _, _ := strings.Cut(key, "/")
		namespace = "." + strings.ToLower(namespace)
		if strings.HasSuffix(namespace, ".kubernetes.io") || strings.HasSuffix(namespace, ".k8s.io") {
			errs = append(errs, field.Invalid(path.Child("options").Key(key), key,
				"kubernetes.io and k8s.io namespaces are reserved"))
		}
	}
	return errs
}

func AzureFile(a *corev1.AzureFileVolumeSource, path *field.Path) field.ErrorList {
	return append(validate.Required(path.Child("secretName"), a.SecretName),
		validate.Required(path.Child("shareName"), a.ShareName)...)
}

func AzureDisk(a *corev1.AzureDiskVolumeSource, path *field.Path) field.ErrorList {
	errs := append(validate.Required(path.Child("diskName"), a.DiskName),
		validate.Required(path.Child("diskURI"), a.DataDiskURI)...)
	if a.CachingMode != nil {
		errs = append(errs, validate.OneOf(path.Child("cachingMode"), *a.CachingMode,
			corev1.AzureDataDiskCachingNone, corev1.AzureDataDiskCachingReadOnly,
			corev1.AzureDataDiskCachingReadWrite)...)
	}
	if a.Kind == nil {
		return errs
	}
	errs = append(errs, validate.OneOf(path.Child("kind"), *a.Kind, corev1.AzureDedicatedBlobDisk,
		corev1.AzureManagedDisk, corev1.AzureSharedBlobDisk)...)
	prefix, form := "https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"
	if *a.Kind == corev1.AzureManagedDisk {
		prefix, form = "/subscriptions/",
			"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"
	}
	if !strings.HasPrefix(a.DataDiskURI, prefix) {
		errs = append(errs, field.NotSupported(path.Child("diskURI"), a.DataDiskURI, []string{form}))
	}
	return errs
}

func Vsphere(v *corev1.VsphereVirtualDiskVolumeSource, path *field.Path) field.ErrorList {
	return validate.Required(path.Child("volumePath"), v.VolumePath)
}

func Photon(p *corev1.PhotonPersistentDiskVolumeSource, path *field.Path) field.ErrorList {
	return validate.Required(path.Child("pdID"), p.PdID)
}

func Portworx(p *corev1.PortworxVolumeSource, path *field.Path) field.ErrorList {
	return validate.Required(path.Child("volumeID"), p.VolumeID)
}

func StorageOSNames(name, namespace string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path.Child("volumeName"), "")}
	}
	errs := validate.DnsLabel(path.Child("volumeName"), name)
	if namespace != "" {
		errs = append(errs, validate.DnsLabel(path.Child("volumeNamespace"), namespace)...)
	}
	return errs
}

func StorageOS(s *corev1.StorageOSVolumeSource, path *field.Path) field.ErrorList {
	return append(StorageOSNames(s.VolumeName, s.VolumeNamespace, path),
		localSecret(path.Child("secretRef"), s.SecretRef)...)
}

func ScaleIONames(gateway, system, volume string, path *field.Path) field.ErrorList {
	return slices.Concat(validate.Required(path.Child("gateway"), gateway),
		validate.Required(path.Child("system"), system), validate.Required(path.Child("volumeName"), volume))
}

func ScaleIO(s *corev1.ScaleIOVolumeSource, path *field.Path) field.ErrorList {
	return ScaleIONames(s.Gateway, s.System, s.VolumeName, path)
}
