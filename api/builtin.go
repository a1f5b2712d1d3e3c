package api

// Builtin returns the kinds every server has from its start, in the order discovery
// shows them. Each call makes new registrations, so that several registries in one
// process share nothing they could write to.
func Builtin() []*Resource {
	coreEvents, autoscalers := events(), horizontalPodAutoscalers()
	return []*Resource{
		// core/v1
		bindings(),
		componentStatuses(),
		configMaps(),
		endpoints(),
		coreEvents,
		limitRanges(),
		namespaces(),
		nodes(),
		persistentVolumeClaims(),
		persistentVolumes(),
		podTemplates(),
		pods(),
		replicationControllers(),
		resourceQuotas(),
		secrets(),
		serviceAccounts(),
		services(),
		// apps/v1
		controllerRevisions(),
		daemonSets(),
		deployments(),
		replicaSets(),
		statefulSets(),
		// authentication.k8s.io/v1
		selfSubjectReviews(),
		tokenReviews(),
		// authorization.k8s.io/v1
		localSubjectAccessReviews(),
		selfSubjectAccessReviews(),
		selfSubjectRulesReviews(),
		subjectAccessReviews(),
		// events.k8s.io/v1
		eventsOf(coreEvents),
		// autoscaling
		autoscalers,
		autoscalersV1(autoscalers),
		// batch/v1
		cronJobs(),
		jobs(),
		// certificates.k8s.io/v1
		certificateSigningRequests(),
		clusterTrustBundles(),
		podCertificateRequests(),
		// resource.k8s.io/v1
		deviceClasses(),
		deviceTaintRules(),
		resourceClaims(),
		resourceClaimTemplates(),
		resourceSlices(),
		// networking.k8s.io/v1
		ingressClasses(),
		ingresses(),
		ipAddresses(),
		networkPolicies(),
		serviceCIDRs(),
		// policy/v1
		podDisruptionBudgets(),
		// rbac.authorization.k8s.io/v1
		clusterRoleBindings(),
		clusterRoles(),
		roleBindings(),
		roles(),
		// storage.k8s.io/v1
		csiDrivers(),
		csiNodes(),
		csiStorageCapacities(),
		storageClasses(),
		volumeAttachments(),
		volumeAttributesClasses(),
		// storagemigration.k8s.io/v1
		storageVersionMigrations(),
		// admissionregistration.k8s.io/v1
		mutatingPolicies(),
		mutatingPolicyBindings(),
		mutatingWebhooks(),
		validatingPolicies(),
		validatingPolicyBindings(),
		validatingWebhooks(),
		// scheduling.k8s.io/v1
		priorityClasses(),
		// coordination.k8s.io/v1
		leases(),
		// node.k8s.io/v1
		runtimeClasses(),
		// discovery.k8s.io/v1
		endpointSlices(),
		// flowcontrol.apiserver.k8s.io/v1
		flowSchemas(),
		priorityLevels(),
	}
}
