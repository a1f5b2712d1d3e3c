package controllers

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	admissionregistrationv1 "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	admissionregistrationv1alpha1 "k8s.io/client-go/kubernetes/typed/admissionregistration/v1alpha1"
	admissionregistrationv1beta1 "k8s.io/client-go/kubernetes/typed/admissionregistration/v1beta1"
	internalv1alpha1 "k8s.io/client-go/kubernetes/typed/apiserverinternal/v1alpha1"
	appsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	appsv1beta1 "k8s.io/client-go/kubernetes/typed/apps/v1beta1"
	appsv1beta2 "k8s.io/client-go/kubernetes/typed/apps/v1beta2"
	authenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authenticationv1alpha1 "k8s.io/client-go/kubernetes/typed/authentication/v1alpha1"
	authenticationv1beta1 "k8s.io/client-go/kubernetes/typed/authentication/v1beta1"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	authorizationv1beta1 "k8s.io/client-go/kubernetes/typed/authorization/v1beta1"
	autoscalingv1 "k8s.io/client-go/kubernetes/typed/autoscaling/v1"
	autoscalingv2 "k8s.io/client-go/kubernetes/typed/autoscaling/v2"
	batchv1 "k8s.io/client-go/kubernetes/typed/batch/v1"
	batchv1beta1 "k8s.io/client-go/kubernetes/typed/batch/v1beta1"
	certificatesv1 "k8s.io/client-go/kubernetes/typed/certificates/v1"
	certificatesv1alpha1 "k8s.io/client-go/kubernetes/typed/certificates/v1alpha1"
	certificatesv1beta1 "k8s.io/client-go/kubernetes/typed/certificates/v1beta1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coordinationv1alpha2 "k8s.io/client-go/kubernetes/typed/coordination/v1alpha2"
	coordinationv1beta1 "k8s.io/client-go/kubernetes/typed/coordination/v1beta1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"
	discoveryv1beta1 "k8s.io/client-go/kubernetes/typed/discovery/v1beta1"
	eventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	eventsv1beta1 "k8s.io/client-go/kubernetes/typed/events/v1beta1"
	extensionsv1beta1 "k8s.io/client-go/kubernetes/typed/extensions/v1beta1"
	flowcontrolv1 "k8s.io/client-go/kubernetes/typed/flowcontrol/v1"
	flowcontrolv1beta1 "k8s.io/client-go/kubernetes/typed/flowcontrol/v1beta1"
	flowcontrolv1beta2 "k8s.io/client-go/kubernetes/typed/flowcontrol/v1beta2"
	flowcontrolv1beta3 "k8s.io/client-go/kubernetes/typed/flowcontrol/v1beta3"
	lifecyclev1alpha1 "k8s.io/client-go/kubernetes/typed/lifecycle/v1alpha1"
	networkingv1 "k8s.io/client-go/kubernetes/typed/networking/v1"
	networkingv1beta1 "k8s.io/client-go/kubernetes/typed/networking/v1beta1"
	nodev1 "k8s.io/client-go/kubernetes/typed/node/v1"
	nodev1alpha1 "k8s.io/client-go/kubernetes/typed/node/v1alpha1"
	nodev1beta1 "k8s.io/client-go/kubernetes/typed/node/v1beta1"
	policyv1 "k8s.io/client-go/kubernetes/typed/policy/v1"
	policyv1beta1 "k8s.io/client-go/kubernetes/typed/policy/v1beta1"
	rbacv1 "k8s.io/client-go/kubernetes/typed/rbac/v1"
	rbacv1alpha1 "k8s.io/client-go/kubernetes/typed/rbac/v1alpha1"
	rbacv1beta1 "k8s.io/client-go/kubernetes/typed/rbac/v1beta1"
	resourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	resourcev1alpha3 "k8s.io/client-go/kubernetes/typed/resource/v1alpha3"
	resourcev1beta1 "k8s.io/client-go/kubernetes/typed/resource/v1beta1"
	resourcev1beta2 "k8s.io/client-go/kubernetes/typed/resource/v1beta2"
	schedulingv1 "k8s.io/client-go/kubernetes/typed/scheduling/v1"
	schedulingv1alpha3 "k8s.io/client-go/kubernetes/typed/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/client-go/kubernetes/typed/scheduling/v1beta1"
	storagev1 "k8s.io/client-go/kubernetes/typed/storage/v1"
	storagev1alpha1 "k8s.io/client-go/kubernetes/typed/storage/v1alpha1"
	storagev1beta1 "k8s.io/client-go/kubernetes/typed/storage/v1beta1"
	storagemigrationv1 "k8s.io/client-go/kubernetes/typed/storagemigration/v1"
	storagemigrationv1beta1 "k8s.io/client-go/kubernetes/typed/storagemigration/v1beta1"
	"k8s.io/client-go/metadata"
)

// lazily is a clientset that is made when it is first used. Most controllers never make a request in the life of a
// control plane for a test, and each clientset has sixty clients.
type lazily func() kubernetes.Interface

var _ kubernetes.Interface = lazily(nil)

// lazyMetadata is such a client for metadata.
type lazyMetadata func() metadata.Interface

// Resource implements metadata.Interface.
func (c lazyMetadata) Resource(gvr schema.GroupVersionResource) metadata.Getter {
	return c().Resource(gvr)
}

// Discovery implements kubernetes.Interface.
func (c lazily) Discovery() discovery.DiscoveryInterfaces { return c().Discovery() }

// AdmissionregistrationV1 implements kubernetes.Interface.
func (c lazily) AdmissionregistrationV1() admissionregistrationv1.AdmissionregistrationV1Interface {
	return c().AdmissionregistrationV1()
}

// AdmissionregistrationV1alpha1 implements kubernetes.Interface.
func (c lazily) AdmissionregistrationV1alpha1() admissionregistrationv1alpha1.AdmissionregistrationV1alpha1Interface {
	return c().AdmissionregistrationV1alpha1()
}

// AdmissionregistrationV1beta1 implements kubernetes.Interface.
func (c lazily) AdmissionregistrationV1beta1() admissionregistrationv1beta1.AdmissionregistrationV1beta1Interface {
	return c().AdmissionregistrationV1beta1()
}

// InternalV1alpha1 implements kubernetes.Interface.
func (c lazily) InternalV1alpha1() internalv1alpha1.InternalV1alpha1Interface {
	return c().InternalV1alpha1()
}

// AppsV1 implements kubernetes.Interface.
func (c lazily) AppsV1() appsv1.AppsV1Interface { return c().AppsV1() }

// AppsV1beta1 implements kubernetes.Interface.
func (c lazily) AppsV1beta1() appsv1beta1.AppsV1beta1Interface { return c().AppsV1beta1() }

// AppsV1beta2 implements kubernetes.Interface.
func (c lazily) AppsV1beta2() appsv1beta2.AppsV1beta2Interface { return c().AppsV1beta2() }

// AuthenticationV1 implements kubernetes.Interface.
func (c lazily) AuthenticationV1() authenticationv1.AuthenticationV1Interface {
	return c().AuthenticationV1()
}

// AuthenticationV1alpha1 implements kubernetes.Interface.
func (c lazily) AuthenticationV1alpha1() authenticationv1alpha1.AuthenticationV1alpha1Interface {
	return c().AuthenticationV1alpha1()
}

// AuthenticationV1beta1 implements kubernetes.Interface.
func (c lazily) AuthenticationV1beta1() authenticationv1beta1.AuthenticationV1beta1Interface {
	return c().AuthenticationV1beta1()
}

// AuthorizationV1 implements kubernetes.Interface.
func (c lazily) AuthorizationV1() authorizationv1.AuthorizationV1Interface {
	return c().AuthorizationV1()
}

// AuthorizationV1beta1 implements kubernetes.Interface.
func (c lazily) AuthorizationV1beta1() authorizationv1beta1.AuthorizationV1beta1Interface {
	return c().AuthorizationV1beta1()
}

// AutoscalingV1 implements kubernetes.Interface.
func (c lazily) AutoscalingV1() autoscalingv1.AutoscalingV1Interface { return c().AutoscalingV1() }

// AutoscalingV2 implements kubernetes.Interface.
func (c lazily) AutoscalingV2() autoscalingv2.AutoscalingV2Interface { return c().AutoscalingV2() }

// BatchV1 implements kubernetes.Interface.
func (c lazily) BatchV1() batchv1.BatchV1Interface { return c().BatchV1() }

// BatchV1beta1 implements kubernetes.Interface.
func (c lazily) BatchV1beta1() batchv1beta1.BatchV1beta1Interface { return c().BatchV1beta1() }

// CertificatesV1 implements kubernetes.Interface.
func (c lazily) CertificatesV1() certificatesv1.CertificatesV1Interface { return c().CertificatesV1() }

// CertificatesV1beta1 implements kubernetes.Interface.
func (c lazily) CertificatesV1beta1() certificatesv1beta1.CertificatesV1beta1Interface {
	return c().CertificatesV1beta1()
}

// CertificatesV1alpha1 implements kubernetes.Interface.
func (c lazily) CertificatesV1alpha1() certificatesv1alpha1.CertificatesV1alpha1Interface {
	return c().CertificatesV1alpha1()
}

// CoordinationV1alpha2 implements kubernetes.Interface.
func (c lazily) CoordinationV1alpha2() coordinationv1alpha2.CoordinationV1alpha2Interface {
	return c().CoordinationV1alpha2()
}

// CoordinationV1beta1 implements kubernetes.Interface.
func (c lazily) CoordinationV1beta1() coordinationv1beta1.CoordinationV1beta1Interface {
	return c().CoordinationV1beta1()
}

// CoordinationV1 implements kubernetes.Interface.
func (c lazily) CoordinationV1() coordinationv1.CoordinationV1Interface { return c().CoordinationV1() }

// CoreV1 implements kubernetes.Interface.
func (c lazily) CoreV1() corev1.CoreV1Interface { return c().CoreV1() }

// DiscoveryV1 implements kubernetes.Interface.
func (c lazily) DiscoveryV1() discoveryv1.DiscoveryV1Interface { return c().DiscoveryV1() }

// DiscoveryV1beta1 implements kubernetes.Interface.
func (c lazily) DiscoveryV1beta1() discoveryv1beta1.DiscoveryV1beta1Interface {
	return c().DiscoveryV1beta1()
}

// EventsV1 implements kubernetes.Interface.
func (c lazily) EventsV1() eventsv1.EventsV1Interface { return c().EventsV1() }

// EventsV1beta1 implements kubernetes.Interface.
func (c lazily) EventsV1beta1() eventsv1beta1.EventsV1beta1Interface { return c().EventsV1beta1() }

// ExtensionsV1beta1 implements kubernetes.Interface.
func (c lazily) ExtensionsV1beta1() extensionsv1beta1.ExtensionsV1beta1Interface {
	return c().ExtensionsV1beta1()
}

// FlowcontrolV1 implements kubernetes.Interface.
func (c lazily) FlowcontrolV1() flowcontrolv1.FlowcontrolV1Interface { return c().FlowcontrolV1() }

// FlowcontrolV1beta1 implements kubernetes.Interface.
func (c lazily) FlowcontrolV1beta1() flowcontrolv1beta1.FlowcontrolV1beta1Interface {
	return c().FlowcontrolV1beta1()
}

// FlowcontrolV1beta2 implements kubernetes.Interface.
func (c lazily) FlowcontrolV1beta2() flowcontrolv1beta2.FlowcontrolV1beta2Interface {
	return c().FlowcontrolV1beta2()
}

// FlowcontrolV1beta3 implements kubernetes.Interface.
func (c lazily) FlowcontrolV1beta3() flowcontrolv1beta3.FlowcontrolV1beta3Interface {
	return c().FlowcontrolV1beta3()
}

// LifecycleV1alpha1 implements kubernetes.Interface.
func (c lazily) LifecycleV1alpha1() lifecyclev1alpha1.LifecycleV1alpha1Interface {
	return c().LifecycleV1alpha1()
}

// NetworkingV1 implements kubernetes.Interface.
func (c lazily) NetworkingV1() networkingv1.NetworkingV1Interface { return c().NetworkingV1() }

// NetworkingV1beta1 implements kubernetes.Interface.
func (c lazily) NetworkingV1beta1() networkingv1beta1.NetworkingV1beta1Interface {
	return c().NetworkingV1beta1()
}

// NodeV1 implements kubernetes.Interface.
func (c lazily) NodeV1() nodev1.NodeV1Interface { return c().NodeV1() }

// NodeV1alpha1 implements kubernetes.Interface.
func (c lazily) NodeV1alpha1() nodev1alpha1.NodeV1alpha1Interface { return c().NodeV1alpha1() }

// NodeV1beta1 implements kubernetes.Interface.
func (c lazily) NodeV1beta1() nodev1beta1.NodeV1beta1Interface { return c().NodeV1beta1() }

// PolicyV1 implements kubernetes.Interface.
func (c lazily) PolicyV1() policyv1.PolicyV1Interface { return c().PolicyV1() }

// PolicyV1beta1 implements kubernetes.Interface.
func (c lazily) PolicyV1beta1() policyv1beta1.PolicyV1beta1Interface { return c().PolicyV1beta1() }

// RbacV1 implements kubernetes.Interface.
func (c lazily) RbacV1() rbacv1.RbacV1Interface { return c().RbacV1() }

// RbacV1beta1 implements kubernetes.Interface.
func (c lazily) RbacV1beta1() rbacv1beta1.RbacV1beta1Interface { return c().RbacV1beta1() }

// RbacV1alpha1 implements kubernetes.Interface.
func (c lazily) RbacV1alpha1() rbacv1alpha1.RbacV1alpha1Interface { return c().RbacV1alpha1() }

// ResourceV1 implements kubernetes.Interface.
func (c lazily) ResourceV1() resourcev1.ResourceV1Interface { return c().ResourceV1() }

// ResourceV1beta2 implements kubernetes.Interface.
func (c lazily) ResourceV1beta2() resourcev1beta2.ResourceV1beta2Interface {
	return c().ResourceV1beta2()
}

// ResourceV1beta1 implements kubernetes.Interface.
func (c lazily) ResourceV1beta1() resourcev1beta1.ResourceV1beta1Interface {
	return c().ResourceV1beta1()
}

// ResourceV1alpha3 implements kubernetes.Interface.
func (c lazily) ResourceV1alpha3() resourcev1alpha3.ResourceV1alpha3Interface {
	return c().ResourceV1alpha3()
}

// SchedulingV1alpha3 implements kubernetes.Interface.
func (c lazily) SchedulingV1alpha3() schedulingv1alpha3.SchedulingV1alpha3Interface {
	return c().SchedulingV1alpha3()
}

// SchedulingV1beta1 implements kubernetes.Interface.
func (c lazily) SchedulingV1beta1() schedulingv1beta1.SchedulingV1beta1Interface {
	return c().SchedulingV1beta1()
}

// SchedulingV1 implements kubernetes.Interface.
func (c lazily) SchedulingV1() schedulingv1.SchedulingV1Interface { return c().SchedulingV1() }

// StorageV1beta1 implements kubernetes.Interface.
func (c lazily) StorageV1beta1() storagev1beta1.StorageV1beta1Interface { return c().StorageV1beta1() }

// StorageV1 implements kubernetes.Interface.
func (c lazily) StorageV1() storagev1.StorageV1Interface { return c().StorageV1() }

// StorageV1alpha1 implements kubernetes.Interface.
func (c lazily) StorageV1alpha1() storagev1alpha1.StorageV1alpha1Interface {
	return c().StorageV1alpha1()
}

// StoragemigrationV1 implements kubernetes.Interface.
func (c lazily) StoragemigrationV1() storagemigrationv1.StoragemigrationV1Interface {
	return c().StoragemigrationV1()
}

// StoragemigrationV1beta1 implements kubernetes.Interface.
func (c lazily) StoragemigrationV1beta1() storagemigrationv1beta1.StoragemigrationV1beta1Interface {
	return c().StoragemigrationV1beta1()
}
