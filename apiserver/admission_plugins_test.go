package apiserver_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/testenv"
)

const (
	claims         = "/api/v1/namespaces/default/persistentvolumeclaims"
	services       = "/api/v1/namespaces/default/services"
	storageClasses = "/apis/storage.k8s.io/v1/storageclasses"
	requests       = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
)

// podOf returns a pod with these fields in its spec.
func podOf(name string, spec m) m {
	p := pod(name)
	for key, value := range spec {
		p["spec"].(m)[key] = value
	}
	return p
}

// annotate changes the namespace default.
func (s *server) annotate(key, value string) {
	s.t.Helper()
	s.patch(namespaces+"/default", mergePatch, m{"metadata": m{"annotations": m{key: value}}}).ok(http.StatusOK)
}

// spec creates an object and returns a field of its spec.
func (s *server) spec(path string, body m, fields ...string) any {
	s.t.Helper()
	return s.create(path, body).at(append([]string{"spec"}, fields...)...)
}

func toleration(list any, key string) bool {
	all, _ := list.([]any)
	return slices.ContainsFunc(all, func(t any) bool { return t.(m)["key"] == key })
}

// may grants a user one right, and returns its client.
func (s *server) may(user, group, resource string, verbs ...string) *server {
	s.t.Helper()
	s.create(clusterRoles, m{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
		"metadata": m{"name": user}, "rules": []m{
			{"apiGroups": []string{group}, "resources": []string{resource}, "verbs": verbs},
		}})
	s.create(clusterRoleBindings, clusterRoleBinding(user, user, subject("User", user)))
	return s.as(user)
}

func (s *server) signingRequest(name, signer string, organizations ...string) m {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(s.t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: "x", Organization: organizations}}, key)
	require.NoError(s.t, err)
	return m{
		"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": m{"name": name},
		"spec": m{"request": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			"signerName": signer, "usages": []string{"client auth"}},
	}
}

func (a *answer) forbidden(words string) bool {
	return a.code == http.StatusForbidden && strings.Contains(string(a.body), words)
}

// pluginCase is an effect that is only observed if the plugin runs.
type pluginCase struct {
	// without lists other plugins with the same effect.
	without []string
	happens func(s *server) bool
}

var pluginCases = map[string]pluginCase{
	"NamespaceAutoProvision": {happens: func(s *server) bool {
		return s.do(http.MethodPost, "/api/v1/namespaces/new/configmaps", configMap("a")).code == http.StatusCreated &&
			s.get(namespaces+"/new").code == http.StatusOK
	}},
	"NamespaceLifecycle": {happens: func(s *server) bool {
		return s.do(http.MethodPost, "/api/v1/namespaces/none/configmaps",
			configMap("a")).code == http.StatusNotFound && s.delete(namespaces+"/default", nil).forbidden(
			"this namespace may not be deleted")
	}},
	"NamespaceExists": {without: []string{"NamespaceLifecycle"}, happens: func(s *server) bool {
		return s.do(http.MethodPost, "/api/v1/namespaces/none/configmaps", configMap("a")).code == http.StatusNotFound
	}},
	"LimitPodHardAntiAffinityTopology": {happens: func(s *server) bool {
		return s.do(http.MethodPost, pods,
			podOf("a", m{"affinity": m{"podAntiAffinity": m{"requiredDuringSchedulingIgnoredDuringExecution": []m{
				{"topologyKey": "zone", "labelSelector": m{"matchLabels": m{"a": "b"}}},
			}}}})).forbidden("kubernetes.io/hostname")
	}},
	"LimitRanger": {happens: func(s *server) bool {
		s.create("/api/v1/namespaces/default/limitranges",
			m{"metadata": m{"name": "l"}, "spec": m{"limits": []m{{"type": "Container", "default": m{"cpu": "300m"}}}}})
		containers := s.spec(pods, pod("a"), "containers").([]any)
		limits, _ := containers[0].(m)["resources"].(m)["limits"].(m)
		return limits["cpu"] == "300m"
	}},
	"ServiceAccount": {happens: func(s *server) bool {
		if !s.do(http.MethodPost, pods, pod("a")).forbidden("error looking up service account default/default") {
			return false
		}
		s.create(accounts, m{"metadata": m{"name": "default"}})
		return s.spec(pods, pod("a"), "serviceAccountName") == "default"
	}},
	"NodeRestriction": {happens: func(s *server) bool {
		for _, name := range []string{"node-a", "node-b"} {
			s.create(nodes, m{"metadata": m{"name": name}})
		}
		a := s.as("system:node:node-a", "system:nodes")
		label := func(node string) *answer {
			return a.patch(nodes+"/"+node, mergePatch, m{"metadata": m{"labels": m{"a": "b"}}})
		}
		label("node-a").ok(http.StatusOK)
		return label("node-b").forbidden(`node \"node-a\" is not allowed to modify node \"node-b\"`)
	}},
	"TaintNodesByCondition": {happens: func(s *server) bool {
		return toleration(s.spec(nodes, m{"metadata": m{"name": "n"}}, "taints"), "node.kubernetes.io/not-ready")
	}},
	"AlwaysPullImages": {happens: func(s *server) bool {
		containers := s.spec(pods,
			podOf("a", m{"containers": []m{{"name": "a", "image": "a:1", "imagePullPolicy": "Never"}}}),
			"containers").([]any)
		return containers[0].(m)["imagePullPolicy"] == "Always"
	}},
	"PodSecurity": {happens: func(s *server) bool {
		s.patch(namespaces+"/default", mergePatch,
			m{"metadata": m{"labels": m{"pod-security.kubernetes.io/enforce": "restricted"}}}).ok(http.StatusOK)
		return s.do(http.MethodPost, pods, pod("a")).forbidden("violates PodSecurity")
	}},
	"PodNodeSelector": {happens: func(s *server) bool {
		s.annotate("scheduler.alpha.kubernetes.io/node-selector", "a=b")
		return s.spec(pods, pod("a"), "nodeSelector", "a") == "b"
	}},
	"Priority": {happens: func(s *server) bool {
		s.create("/apis/scheduling.k8s.io/v1/priorityclasses", m{"metadata": m{"name": "high"}, "value": 1000})
		return s.spec(pods, podOf("a", m{"priorityClassName": "high"}), "priority") == int64(1000)
	}},
	"DefaultTolerationSeconds": {happens: func(s *server) bool {
		return toleration(s.spec(pods, pod("a"), "tolerations"), "node.kubernetes.io/unreachable")
	}},
	"PodTolerationRestriction": {happens: func(s *server) bool {
		s.annotate("scheduler.alpha.kubernetes.io/defaultTolerations", `[{"key":"k","operator":"Exists"}]`)
		return toleration(s.spec(pods, pod("a"), "tolerations"), "k")
	}},
	"ExtendedResourceToleration": {happens: func(s *server) bool {
		return toleration(s.spec(pods, podOf("a", m{"containers": []m{
			{"name": "a", "image": "a", "resources": m{"limits": m{"example.com/gpu": "1"}}},
		}}), "tolerations"), "example.com/gpu")
	}},
	"DefaultStorageClass": {happens: func(s *server) bool {
		s.create(storageClasses,
			m{"metadata": m{"name": "fast", "annotations": m{"storageclass.kubernetes.io/is-default-class": "true"}},
				"provisioner": "example.com/p"})
		return s.spec(claims, claimOf(""), "storageClassName") == "fast"
	}},
	"StorageObjectInUseProtection": {happens: func(s *server) bool {
		finalizers, _ := s.create(claims, claimOf("")).at("metadata", "finalizers").([]any)
		return slices.Contains(finalizers, any("kubernetes.io/pvc-protection"))
	}},
	"OwnerReferencesPermissionEnforcement": {happens: func(s *server) bool {
		uid := s.create(configMaps, configMap("owner")).at("metadata", "uid")
		owned := with(configMap("owned"), "ownerReferences",
			[]m{{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid, "blockOwnerDeletion": true}})
		return s.may("jane", "", "configmaps", "create", "delete").do(http.MethodPost, configMaps,
			owned).forbidden("cannot set blockOwnerDeletion")
	}},
	"PersistentVolumeClaimResize": {happens: func(s *server) bool {
		s.create(storageClasses, m{"metadata": m{"name": "fixed"}, "provisioner": "example.com/p"})
		s.create(claims, claimOf("fixed"))
		s.patch(claims+"/claim/status", mergePatch,
			m{"status": m{"phase": "Bound", "capacity": m{"storage": "1Gi"}}}).ok(http.StatusOK)
		return s.patch(claims+"/claim", mergePatch,
			m{"spec": m{"resources": m{"requests": m{"storage": "2Gi"}}}}).forbidden("can be resized")
	}},
	"RuntimeClass": {happens: func(s *server) bool {
		s.create("/apis/node.k8s.io/v1/runtimeclasses", m{"metadata": m{"name": "sandbox"}, "handler": "sandbox",
			"overhead": m{"podFixed": m{"cpu": "10m"}}})
		return s.spec(pods, podOf("a", m{"runtimeClassName": "sandbox"}), "overhead", "cpu") == "10m"
	}},
	"CertificateApproval": {happens: func(s *server) bool {
		s.create(requests, s.signingRequest("r", "example.com/signer"))
		stored := s.get(requests + "/r").object().Object
		stored["status"] = m{"conditions": []m{{"type": "Approved", "status": "True", "reason": "r"}}}
		return s.may("jane", "certificates.k8s.io", "certificatesigningrequests/approval", "update").put(requests+
			"/r/approval", stored).
			forbidden("user not permitted to approve requests")
	}},
	"CertificateSigning": {happens: func(s *server) bool {
		s.create(requests, s.signingRequest("r", "example.com/signer"))
		stored := s.get(requests + "/r").object().Object
		stored["status"] = m{"conditions": []m{{"type": "Failed", "status": "True", "reason": "r"}}}
		return s.may("jane", "certificates.k8s.io", "certificatesigningrequests/status", "update").put(requests+
			"/r/status", stored).
			forbidden("user not permitted to sign requests")
	}},
	"ClusterTrustBundleAttest": {happens: func(s *server) bool {
		return s.may("jane", "certificates.k8s.io", "clustertrustbundles", "create").do(http.MethodPost, trustBundles,
			s.trustBundle("example.com:signer:a", "example.com/signer")).
			forbidden("user not permitted to attest for signerName")
	}},
	"CertificateSubjectRestriction": {happens: func(s *server) bool {
		return s.do(http.MethodPost, requests, s.signingRequest("r", "kubernetes.io/kube-apiserver-client",
			"system:masters")).forbidden("system:masters")
	}},
	"DefaultIngressClass": {happens: func(s *server) bool {
		const networking = "/apis/networking.k8s.io/v1"
		s.create(networking+"/ingressclasses", m{
			"metadata": m{"name": "edge", "annotations": m{"ingressclass.kubernetes.io/is-default-class": "true"}},
			"spec":     m{"controller": "example.com/c"},
		})
		return s.spec(networking+"/namespaces/default/ingresses", m{
			"metadata": m{"name": "i"},
			"spec":     m{"defaultBackend": m{"service": m{"name": "s", "port": m{"number": 80}}}},
		}, "ingressClassName") == "edge"
	}},
	"DenyServiceExternalIPs": {happens: func(s *server) bool {
		return s.do(http.MethodPost, services,
			m{"metadata": m{"name": "s"},
				"spec": m{"ports": []m{{"port": 80}}, "externalIPs": []string{"192.0.2.1"}}}).forbidden(
			"external IPs is denied")
	}},
	"PodTopologyLabels": {happens: func(s *server) bool {
		s.create(nodes, m{"metadata": m{"name": "n", "labels": m{"topology.kubernetes.io/zone": "z"}}})
		return s.create(pods, podOf("a", m{"nodeName": "n"})).at("metadata", "labels",
			"topology.kubernetes.io/zone") == "z"
	}},
	"MutatingAdmissionPolicy": {happens: func(s *server) bool {
		s.mutating("p", m{"matchConstraints": m{"resourceRules": []m{rule("", "configmaps", "CREATE")}},
			"mutations": []m{
				{"patchType": "ApplyConfiguration",
					"applyConfiguration": m{"expression": "Object{metadata: Object.metadata{labels: {'a': 'b'}}}"}}}},
			m{})
		labels := s.create(configMapsURL, settings("c", m{})).object().GetLabels()
		return labels["a"] == "b"
	}},
	"ValidatingAdmissionPolicy": {happens: func(s *server) bool {
		s.validating("p", policyOn(rule("", "configmaps", "CREATE"), "false"), m{})
		return s.do(http.MethodPost, configMapsURL, settings("c", m{})).code == http.StatusUnprocessableEntity
	}},
	"MutatingAdmissionWebhook": {happens: func(s *server) bool {
		h := hookedBy(s)
		h.mutates("m", h.hook("h.example.com", nil))
		h.on("h.example.com", respondPatch(add("/data", m{"a": "b"})))
		data, _ := s.create(configMaps, settings("c", nil)).at("data").(m)
		return data["a"] == "b"
	}},
	"ValidatingAdmissionWebhook": {happens: func(s *server) bool {
		h := hookedBy(s)
		h.validates("v", h.hook("h.example.com", nil))
		h.on("h.example.com", respond(m{"allowed": false}))
		return s.do(http.MethodPost, configMaps, settings("c", nil)).code == http.StatusBadRequest
	}},
	"ResourceQuota": {happens: func(s *server) bool {
		s.quota(0)
		return s.do(http.MethodPost, pods,
			pod("a")).forbidden("exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0")
	}},
}

func claimOf(class string) m {
	spec := m{"accessModes": []string{"ReadWriteOnce"}, "resources": m{"requests": m{"storage": "1Gi"}}}
	if class != "" {
		spec["storageClassName"] = class
	}
	return m{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": m{"name": "claim"}, "spec": spec}
}

// quota creates a quota for the pods of the namespace default, with the status that the controller would write.
func (s *server) quota(most int) {
	s.t.Helper()
	const quotas = "/api/v1/namespaces/default/resourcequotas"
	hard := m{"pods": most}
	s.create(quotas, m{"metadata": m{"name": "q"}, "spec": m{"hard": hard}})
	s.patch(quotas+"/q/status", mergePatch, m{"status": m{"hard": hard, "used": m{"pods": "0"}}}).ok(http.StatusOK)
	s.get(quotas + "/q") // a consistent read: memory, which the plugin reads, has the quota now
}

// TestAdmission_EachPluginActsWhereItRunsAndOnlyThere enables and disables each plugin of the table, alone: its effect
// is observed with it, and not without it.
func TestAdmission_EachPluginActsWhereItRunsAndOnlyThere(t *testing.T) {
	t.Parallel()
	for _, r := range admission.Table {
		c, ok := pluginCases[r.Name]
		require.True(t, ok, "%s: add what it does to pluginCases", r.Name)
		for _, on := range []bool{true, false} {
			t.Run(r.Name+map[bool]string{true: " on", false: " off"}[on], func(t *testing.T) {
				t.Parallel()
				o := admission.Options{Disable: slices.Clone(c.without)}
				switch {
				case on:
					o.Enable = append(o.Enable, r.Name)
				case r.Default:
					o.Disable = append(o.Disable, r.Name)
				}
				s := connect(t, testenv.Start(t, testenv.APIServerOnly(), testenv.WithAdmission(o)))
				require.Equal(t, on, c.happens(s))
			})
		}
	}
	require.Len(t, pluginCases, len(admission.Table))
}

func TestAdmission_QuotaIsExactUnderConcurrency(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.quota(5)
	var created, refused atomic.Int64
	var racing sync.WaitGroup
	for i := range 50 {
		racing.Go(func() {
			switch a := s.do(http.MethodPost, pods, with(pod(""), "generateName", "p-")); {
			case a.code == http.StatusCreated:
				created.Add(1)
			case a.forbidden("exceeded quota: q"):
				refused.Add(1)
			default:
				t.Errorf("%d: %d %s", i, a.code, a.body)
			}
		})
	}
	racing.Wait()
	require.EqualValues(t, 5, created.Load())
	require.EqualValues(t, 45, refused.Load())
	require.Len(t, s.get(pods).names(), 5)
	require.Equal(t, "5", s.get("/api/v1/namespaces/default/resourcequotas/q").at("status", "used", "pods"))
}

// A node's agent writes only its own objects, even if RBAC allows it to write all of a kind.
func TestNodeRestriction_IsOnByDefaultAndHolds(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, name := range []string{"node-a", "node-b"} {
		s.create(nodes, m{"metadata": m{"name": name}})
	}
	s.create(accounts, m{"metadata": m{"name": "robot"}})
	withToken := []m{{"name": "token", "projected": m{"sources": []m{{"serviceAccountToken": m{"path": "token"}}}}}}
	s.create(pods, podOf("mine", m{"nodeName": "node-a", "serviceAccountName": "robot", "volumes": withToken}))
	s.create(pods, podOf("theirs", m{"nodeName": "node-b", "serviceAccountName": "robot", "volumes": withToken}))
	a := s.as("system:node:node-a", "system:nodes")
	refused := func(answer *answer, words string) {
		t.Helper()
		answer.refused(http.StatusForbidden, metav1.StatusReasonForbidden, words)
	}
	ready := m{"status": m{"conditions": []m{{"type": "Ready", "status": "True"}}}}
	a.patch(nodes+"/node-a/status", mergePatch, ready).ok(http.StatusOK)
	refused(a.patch(nodes+"/node-b/status", mergePatch, ready), `node "node-a" is not allowed to modify node "node-b"`)
	refused(a.patch(nodes+"/node-a", mergePatch, m{"spec": m{"taints": []m{{"key": "k", "effect": "NoSchedule"}}}}),
		"is not allowed to modify taints")
	refused(a.patch(nodes+"/node-a", mergePatch,
		m{"metadata": m{"labels": m{"node-restriction.kubernetes.io/x": "y"}}}), "is not allowed to modify labels")
	a.patch(pods+"/mine/status", mergePatch, m{"status": m{"phase": "Running"}}).ok(http.StatusOK)
	refused(a.patch(pods+"/theirs/status", mergePatch, m{"status": m{"phase": "Running"}}), "theirs")
	refused(a.delete(pods+"/theirs", m{"gracePeriodSeconds": 0}), "theirs")
	refused(a.do(http.MethodPost, pods, podOf("new", m{"nodeName": "node-a"})), "mirror")

	token := func(pod string, audiences ...string) *answer {
		bound := s.get(pods + "/" + pod).object()
		return a.do(http.MethodPost, accounts+"/robot/token",
			m{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": m{"audiences": audiences,
				"boundObjectRef": m{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": bound.GetUID()},
			}})
	}
	token("mine").ok(http.StatusCreated)
	refused(token("mine", "bank"), `audience "bank" not found in pod spec volume, system:node:node-a is not authorized`)
	s.grant("system:node:node-a", "bank", m{"apiGroups": []string{""}, "resources": []string{"bank"},
		"resourceNames": []string{"robot"}, "verbs": []string{"request-serviceaccounts-token-audience"}})
	token("mine", "bank").ok(http.StatusCreated)
	refused(token("mine", "bank", "vault"), "node may only request 0 or 1 audiences")
	refused(token("theirs"), "")
	refused(a.do(http.MethodPost, accounts+"/robot/token",
		m{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": m{}}), "")
	const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	a.do(http.MethodPost, leases, m{"metadata": m{"name": "node-a"}, "spec": m{}}).ok(http.StatusCreated)
	refused(a.do(http.MethodPost, leases, m{"metadata": m{"name": "node-b"}, "spec": m{}}), "")
}
