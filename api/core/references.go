package core

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/api"
)

// References lists the fields of the group's types that contain names of other objects. Other groups embed these
// types.
var References = api.NewReferences(map[reflect.Type][]string{
	reflect.TypeFor[corev1.ObjectReference]():                   {"Name", "Namespace"},
	reflect.TypeFor[corev1.LocalObjectReference]():              {"Name"},
	reflect.TypeFor[corev1.TypedLocalObjectReference]():         {"Name"},
	reflect.TypeFor[corev1.TypedObjectReference]():              {"Name", "Namespace"},
	reflect.TypeFor[corev1.SecretReference]():                   {"Name", "Namespace"},
	reflect.TypeFor[corev1.SecretVolumeSource]():                {"SecretName"},
	reflect.TypeFor[corev1.AzureFileVolumeSource]():             {"SecretName"},
	reflect.TypeFor[corev1.AzureFilePersistentVolumeSource]():   {"SecretName", "SecretNamespace"},
	reflect.TypeFor[corev1.GlusterfsVolumeSource]():             {"EndpointsName"},
	reflect.TypeFor[corev1.GlusterfsPersistentVolumeSource]():   {"EndpointsName", "EndpointsNamespace"},
	reflect.TypeFor[corev1.PersistentVolumeClaimVolumeSource](): {"ClaimName"},
	reflect.TypeFor[corev1.ClusterTrustBundleProjection]():      {"Name"},
	reflect.TypeFor[corev1.ConfigMapNodeConfigSource]():         {"Name", "Namespace"},
	reflect.TypeFor[corev1.PodSpec](): {"NodeName", "ServiceAccountName", "DeprecatedServiceAccount",
		"PriorityClassName", "RuntimeClassName"},
	reflect.TypeFor[corev1.PodStatus]():                          {"NominatedNodeName"},
	reflect.TypeFor[corev1.PodSchedulingGroup]():                 {"PodGroupName"},
	reflect.TypeFor[corev1.PodResourceClaim]():                   {"ResourceClaimName", "ResourceClaimTemplateName"},
	reflect.TypeFor[corev1.PodResourceClaimStatus]():             {"ResourceClaimName"},
	reflect.TypeFor[corev1.PodExtendedResourceClaimStatus]():     {"ResourceClaimName"},
	reflect.TypeFor[corev1.NodeAllocatableResourceClaimStatus](): {"ResourceClaimName"},
	reflect.TypeFor[corev1.PersistentVolumeSpec]():               {"StorageClassName", "VolumeAttributesClassName"},
	reflect.TypeFor[corev1.PersistentVolumeClaimSpec](): {"VolumeName", "StorageClassName",
		"VolumeAttributesClassName"},
	reflect.TypeFor[corev1.PersistentVolumeClaimStatus](): {"CurrentVolumeAttributesClassName"},
	reflect.TypeFor[corev1.ModifyVolumeStatus]():          {"TargetVolumeAttributesClassName"},
	reflect.TypeFor[corev1.EndpointAddress]():             {"NodeName"},
})
