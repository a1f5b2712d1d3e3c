package api

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"
)

// setDefault gives *field the value where it has none.
func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// setDefaultPtr points *field to the value where it is nil.
func setDefaultPtr[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// defaultPod fills a pod. What only a pod has, and not the template of a workload, is here;
// the rest is in defaultPodSpec.
func defaultPod(p *corev1.Pod) {
	spec := &p.Spec
	for _, list := range [][]corev1.Container{spec.Containers, spec.InitContainers} {
		for i := range list {
			requestLimits(&list[i].Resources)
			if spec.HostNetwork {
				hostPorts(list[i].Ports)
			}
		}
	}
	requestPodLimits(p)
	setDefaultPtr(&spec.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
	defaultPodSpec(spec)
}

// requestLimits requests what is limited and not requested.
func requestLimits(r *corev1.ResourceRequirements) {
	if len(r.Limits) > 0 && r.Requests == nil {
		r.Requests = make(corev1.ResourceList, len(r.Limits))
	}
	for name, limit := range r.Limits {
		if _, ok := r.Requests[name]; !ok {
			r.Requests[name] = limit.DeepCopy()
		}
	}
}

// requestPodLimits does the same for the resources of the pod as a whole, where the sum of
// the containers' requests goes before the pod's limit.
func requestPodLimits(p *corev1.Pod) {
	r := p.Spec.Resources
	if r == nil || (len(r.Limits) == 0 && len(r.Requests) == 0) {
		return
	}
	request := func(name corev1.ResourceName, q resource.Quantity) {
		if _, ok := r.Requests[name]; ok || !podresource.IsSupportedPodLevelResource(name) {
			return
		}
		if r.Requests == nil {
			r.Requests = corev1.ResourceList{}
		}
		r.Requests[name] = q.DeepCopy()
	}
	for name, q := range podresource.AggregateContainerRequests(p, podresource.PodResourcesOptions{}) {
		request(name, q)
	}
	for name, q := range r.Limits {
		request(name, q)
	}
}

func hostPorts(ports []corev1.ContainerPort) {
	for i := range ports {
		setDefault(&ports[i].HostPort, ports[i].ContainerPort)
	}
}

// defaultPodSpec fills the spec of a pod or of a pod template.
func defaultPodSpec(spec *corev1.PodSpec) {
	setDefault(&spec.DNSPolicy, corev1.DNSClusterFirst)
	setDefault(&spec.RestartPolicy, corev1.RestartPolicyAlways)
	setDefault(&spec.SchedulerName, corev1.DefaultSchedulerName)
	setDefaultPtr(&spec.TerminationGracePeriodSeconds, int64(corev1.DefaultTerminationGracePeriodSeconds))
	setDefaultPtr(&spec.SecurityContext, corev1.PodSecurityContext{})
	// serviceAccount is the older name of serviceAccountName; both are shown.
	setDefault(&spec.ServiceAccountName, spec.DeprecatedServiceAccount)
	spec.DeprecatedServiceAccount = spec.ServiceAccountName

	for i := range spec.Volumes {
		defaultVolume(&spec.Volumes[i].VolumeSource)
	}
	for i := range spec.InitContainers {
		defaultContainer(&spec.InitContainers[i])
	}
	for i := range spec.Containers {
		defaultContainer(&spec.Containers[i])
	}
	for i := range spec.EphemeralContainers {
		// The two types have the same fields in the same order, so one converts to the other.
		c := corev1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon)
		defaultContainer(&c)
		spec.EphemeralContainers[i].EphemeralContainerCommon = corev1.EphemeralContainerCommon(c)
	}
	roundResources(spec.Overhead)
	if r := spec.Resources; r != nil {
		roundResources(r.Limits)
		roundResources(r.Requests)
	}
}

func defaultContainer(c *corev1.Container) {
	setDefault(&c.ImagePullPolicy, pullPolicy(c.Image))
	setDefault(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	setDefault(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for i := range c.Ports {
		setDefault(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			defaultFieldRef(from.FieldRef)
			if from.FileKeyRef != nil {
				setDefaultPtr(&from.FileKeyRef.Optional, false)
			}
		}
	}
	roundResources(c.Resources.Limits)
	roundResources(c.Resources.Requests)
	defaultProbe(c.LivenessProbe)
	defaultProbe(c.ReadinessProbe)
	defaultProbe(c.StartupProbe)
	if c.Lifecycle != nil {
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				defaultHTTPGet(h.HTTPGet)
			}
		}
	}
}

// pullPolicy is Always for an image whose tag is or means "latest".
func pullPolicy(image string) corev1.PullPolicy {
	name, _, digested := strings.Cut(image, "@")
	tag := ""
	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		tag = name[colon+1:]
	}
	if tag == "latest" || (tag == "" && !digested) {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

func defaultProbe(p *corev1.Probe) {
	if p == nil {
		return
	}
	setDefault(&p.TimeoutSeconds, 1)
	setDefault(&p.PeriodSeconds, 10)
	setDefault(&p.SuccessThreshold, 1)
	setDefault(&p.FailureThreshold, 3)
	defaultHTTPGet(p.HTTPGet)
	if p.GRPC != nil {
		setDefaultPtr(&p.GRPC.Service, "")
	}
}

func defaultHTTPGet(h *corev1.HTTPGetAction) {
	if h == nil {
		return
	}
	setDefault(&h.Path, "/")
	setDefault(&h.Scheme, corev1.URISchemeHTTP)
}

func defaultFieldRef(ref *corev1.ObjectFieldSelector) {
	if ref != nil {
		setDefault(&ref.APIVersion, "v1")
	}
}

// roundResources rounds quantities up to thousandths, the finest that Kubernetes counts.
func roundResources(list corev1.ResourceList) {
	for name, q := range list {
		if q.RoundUp(resource.Milli) {
			continue
		}
		list[name] = q
	}
}

func defaultVolume(v *corev1.VolumeSource) {
	if *v == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	switch {
	case v.Secret != nil:
		setDefaultPtr(&v.Secret.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	case v.ConfigMap != nil:
		setDefaultPtr(&v.ConfigMap.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	case v.DownwardAPI != nil:
		setDefaultPtr(&v.DownwardAPI.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		defaultDownwardAPI(v.DownwardAPI.Items)
	case v.Projected != nil:
		defaultProjected(v.Projected)
	case v.HostPath != nil:
		setDefaultPtr(&v.HostPath.Type, corev1.HostPathUnset)
	case v.EmptyDir != nil:
		if limit := v.EmptyDir.SizeLimit; limit != nil {
			limit.RoundUp(resource.Milli)
		}
	case v.Image != nil:
		setDefault(&v.Image.PullPolicy, pullPolicy(v.Image.Reference))
	case v.Ephemeral != nil:
		if t := v.Ephemeral.VolumeClaimTemplate; t != nil {
			defaultClaimSpec(&t.Spec)
		}
	default:
		defaultLegacyVolume(v)
	}
}

func defaultDownwardAPI(items []corev1.DownwardAPIVolumeFile) {
	for i := range items {
		defaultFieldRef(items[i].FieldRef)
	}
}

func defaultProjected(p *corev1.ProjectedVolumeSource) {
	setDefaultPtr(&p.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
	for i := range p.Sources {
		source := &p.Sources[i]
		if source.DownwardAPI != nil {
			defaultDownwardAPI(source.DownwardAPI.Items)
		}
		if source.ServiceAccountToken != nil {
			setDefaultPtr(&source.ServiceAccountToken.ExpirationSeconds, 60*60)
		}
		if source.PodCertificate != nil {
			setDefaultPtr(&source.PodCertificate.MaxExpirationSeconds, 24*60*60)
		}
	}
}

// defaultLegacyVolume fills sources that CSI drivers have long replaced.
func defaultLegacyVolume(v *corev1.VolumeSource) {
	switch {
	case v.ISCSI != nil:
		setDefault(&v.ISCSI.ISCSIInterface, "default")
	case v.RBD != nil:
		setDefault(&v.RBD.RBDPool, "rbd")
		setDefault(&v.RBD.RadosUser, "admin")
		setDefault(&v.RBD.Keyring, "/etc/ceph/keyring")
	case v.ScaleIO != nil:
		setDefault(&v.ScaleIO.StorageMode, "ThinProvisioned")
		setDefault(&v.ScaleIO.FSType, "xfs")
	case v.AzureDisk != nil:
		setDefaultPtr(&v.AzureDisk.CachingMode, corev1.AzureDataDiskCachingReadWrite)
		setDefaultPtr(&v.AzureDisk.Kind, corev1.AzureSharedBlobDisk)
		setDefaultPtr(&v.AzureDisk.FSType, "ext4")
		setDefaultPtr(&v.AzureDisk.ReadOnly, false)
	}
}

// defaultClaimSpec fills the spec of a persistent volume claim or of a template for one.
func defaultClaimSpec(spec *corev1.PersistentVolumeClaimSpec) {
	setDefaultPtr(&spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	roundResources(spec.Resources.Requests)
	roundResources(spec.Resources.Limits)
	if ref := spec.DataSourceRef; spec.DataSource == nil && ref != nil && ptr.Deref(ref.Namespace, "") == "" {
		spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: ref.APIGroup, Kind: ref.Kind, Name: ref.Name}
	} else if source := spec.DataSource; source != nil && ref == nil {
		spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: source.APIGroup, Kind: source.Kind, Name: source.Name}
	}
}
