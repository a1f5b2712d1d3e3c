package controllers_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func atRest(c *controllertest.Clocked) { c.AwaitRest() }

// bare returns the metadata of an object without an owner.
func bare(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

func barePod(name, node string, tolerations ...corev1.Toleration) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: bare(name), Spec: corev1.PodSpec{NodeName: node, Tolerations: tolerations,
		Containers: []corev1.Container{{Name: "c", Image: "one"}}}}
}

// replacePod replaces the only pod.
func replacePod(c *controllertest.Clocked) func() string {
	pods := c.Pods()
	require.Len(c, pods, 1)
	return controllertest.Replace(c.Cluster, c.Client.CoreV1().Pods("default"), barePod(pods[0].Name, ""))
}

func awaitPods(n int) func(*controllertest.Clocked) {
	return func(c *controllertest.Clocked) {
		c.Reaches("there are pods", func() bool { return len(c.Pods()) == n })
		c.AwaitRest()
	}
}

func pkcs10(t testing.TB) []byte {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "jane"}}, key)
	require.NoError(t, err)
	return der
}

func signingRequest(t testing.TB) *certificatesv1.CertificateSigningRequest {
	return &certificatesv1.CertificateSigningRequest{ObjectMeta: bare("r"),
		Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: "example.com/signer",
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: pkcs10(t)}),
			Usages:  []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}}}
}

func podCertificateRequest(t testing.TB) *certificatesv1.PodCertificateRequest {
	return &certificatesv1.PodCertificateRequest{ObjectMeta: bare("r"), Spec: certificatesv1.PodCertificateRequestSpec{
		SignerName: "example.com/signer", PodName: "p", PodUID: "1", ServiceAccountName: "s", ServiceAccountUID: "2",
		NodeName: "n", NodeUID: "3", StubPKCS10Request: pkcs10(t)}}
}

// createFinishedJob creates a Job that has completed at the clock's time.
func createFinishedJob(c *controllertest.Clocked, edit func(*batchv1.Job)) {
	c.CreateJob("work", edit)
	controllertest.EditStatus(c.Cluster, c.Client.BatchV1().Jobs("default"), "work", func(j *batchv1.Job) {
		j.Status.StartTime, j.Status.CompletionTime = new(metav1.NewTime(c.Now())), new(metav1.NewTime(c.Now()))
		for _, t := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete} {
			j.Status.Conditions = append(j.Status.Conditions, batchv1.JobCondition{Type: t,
				Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(c.Now())})
		}
	})
}

func lease(renewed time.Time) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: bare("gone"), Spec: coordinationv1.LeaseSpec{
		HolderIdentity: new("gone"), LeaseDurationSeconds: new(int32(40)), RenewTime: new(metav1.NewMicroTime(renewed))}}
}

func bootstrapToken(expires time.Time) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: bare("bootstrap-token-aaaaaa"), Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{"token-id": "aaaaaa", "token-secret": "0123456789abcdef",
			"expiration": expires.UTC().Format(time.RFC3339)}}
}

func servicePorts() []corev1.ServicePort {
	return []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}
}

func createService(selector map[string]string) func(*controllertest.Clocked) {
	return func(c *controllertest.Clocked) {
		_, err := c.Client.CoreV1().Services("default").Create(c.Context(), &corev1.Service{ObjectMeta: bare("web"),
			Spec: corev1.ServiceSpec{Selector: selector, Ports: servicePorts()}}, metav1.CreateOptions{})
		require.NoError(c, err)
	}
}

// createServingPod creates a pod of the Service "web" with an address.
func createServingPod(c *controllertest.Clocked) {
	pod := barePod("p", "n")
	pod.Labels = map[string]string{"app": "web"}
	_, err := c.Client.CoreV1().Pods("default").Create(c.Context(), pod, metav1.CreateOptions{})
	require.NoError(c, err)
	controllertest.EditStatus(c.Cluster, c.Client.CoreV1().Pods("default"), "p", func(p *corev1.Pod) {
		p.Status.Phase, p.Status.PodIP = corev1.PodRunning, "192.0.2.7"
		p.Status.PodIPs = []corev1.PodIP{{IP: p.Status.PodIP}}
	})
}

func awaitSlice(c *controllertest.Clocked) {
	c.Reaches("there is a slice", func() bool { return len(c.Slices("web")) == 1 })
	c.AwaitRest()
}

func replaceSlice(c *controllertest.Clocked) func() string {
	return controllertest.Replace(c.Cluster, c.Client.DiscoveryV1().EndpointSlices("default"),
		&discoveryv1.EndpointSlice{ObjectMeta: bare(c.Slices("web")[0].Name), AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{}})
}

func createDaemonSet(c *controllertest.Clocked) {
	c.CreateReadyNode("n")
	_, err := c.Client.AppsV1().DaemonSets("default").Create(c.Context(), &appsv1.DaemonSet{ObjectMeta: bare("web"),
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: podSpec()}}, metav1.CreateOptions{})
	require.NoError(c, err)
}

func csiVolume() *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: bare("v")}
	v.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "h"}
	return v
}

func attachment() *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: bare(fmt.Sprintf("csi-%x", sha256.Sum256([]byte("hcsi.example.comn")))),
		Spec: storagev1.VolumeAttachmentSpec{Attacher: "csi.example.com", NodeName: "n",
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("v")}}}
}

// cases returns cases for all controllers that delete or change objects by name.
func cases() []stale {
	return slices.Concat(podCases(), workloadCases(), serviceCases(), storageCases(), cleanerCases())
}

func podCases() []stale {
	var replaced atomic.Bool // the Node
	execute := corev1.Taint{Key: "example.com/out", Effect: corev1.TaintEffectNoExecute}
	tolerates := func(seconds *int64) corev1.Toleration {
		return corev1.Toleration{Key: execute.Key, Operator: corev1.TolerationOpExists, Effect: execute.Effect,
			TolerationSeconds: seconds}
	}
	createPod := func(node string, tolerations ...corev1.Toleration) func(*controllertest.Clocked) {
		return func(c *controllertest.Clocked) {
			c.CreateReadyNode("n", execute)
			_, err := c.Client.CoreV1().Pods("default").Create(c.Context(), barePod("p", node, tolerations...),
				metav1.CreateOptions{})
			require.NoError(c, err)
		}
	}
	return []stale{{
		controllers: []string{"pod-garbage-collector-controller"},
		setup:       createPod("gone"), running: atRest, held: []string{"pods"}, replace: replacePod,
		cause: func(c *controllertest.Clocked) { c.Step(time.Minute) },
		verb:  http.MethodPatch, plural: "pods",
	}, {
		controllers: []string{"taint-eviction-controller"},
		setup:       createPod("n", tolerates(new(int64(60)))), running: atRest, held: []string{"pods"},
		replace: func(c *controllertest.Clocked) func() string {
			return controllertest.Replace(c.Cluster, c.Client.CoreV1().Pods("default"), barePod("p", "n", tolerates(nil)))
		},
		cause: func(c *controllertest.Clocked) { c.Step(time.Minute) },
		verb:  http.MethodPut, plural: "pods",
	}, {
		controllers: []string{"disruption-controller"},
		setup: func(c *controllertest.Clocked) {
			createPod("n")(c)
			controllertest.EditStatus(c.Cluster, c.Client.CoreV1().Pods("default"), "p", func(p *corev1.Pod) {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget,
					Status: corev1.ConditionTrue, Reason: "ByATest", LastTransitionTime: metav1.NewTime(c.Now())}}
			})
		},
		running: atRest, held: []string{"pods"}, replace: replacePod,
		cause: func(c *controllertest.Clocked) { c.Step(2 * time.Minute) },
		verb:  http.MethodPatch, plural: "pods",
	}, {
		controllers: []string{"node-lifecycle-controller"},
		setup: func(c *controllertest.Clocked) {
			c.CreateNode("n", func(n *corev1.Node) { n.Spec.Unschedulable = true }) // the controllers taint it
			c.Faults.RefuseWhile(func() bool { return !replaced.Load() }, http.MethodPatch, "nodes")
		},
		running: func(c *controllertest.Clocked) {
			c.Reaches("it is to be tainted", func() bool { return c.Faults.Writes(http.MethodPatch, "nodes") > 0 })
		},
		held: []string{"nodes"},
		replace: func(c *controllertest.Clocked) func() string {
			return controllertest.Replace(c.Cluster, c.Client.CoreV1().Nodes(), &corev1.Node{ObjectMeta: bare("n")})
		},
		cause: func(c *controllertest.Clocked) { replaced.Store(true) },
		verb:  http.MethodPatch, plural: "nodes",
	}}
}

func workloadCases() []stale {
	return []stale{{
		controllers: []string{"replicaset-controller"},
		setup:       func(c *controllertest.Clocked) { c.Replicate("web", 1, nil) },
		running:     awaitPods(1), held: []string{"pods"}, replace: replacePod,
		cause: func(c *controllertest.Clocked) {
			controllertest.Edit(c.Cluster, c.Client.AppsV1().ReplicaSets("default"), "web",
				func(rs *appsv1.ReplicaSet) { rs.Spec.Replicas = new(int32) })
		},
		verb: http.MethodDelete, plural: "pods",
	}, {
		controllers: []string{"statefulset-controller"},
		setup:       func(c *controllertest.Clocked) { c.CreateStatefulSet("web", 1, nil) },
		running:     awaitPods(1), held: []string{"pods"}, replace: replacePod,
		cause: func(c *controllertest.Clocked) {
			controllertest.Edit(c.Cluster, c.Client.AppsV1().StatefulSets("default"), "web",
				func(s *appsv1.StatefulSet) { s.Spec.Replicas = new(int32) })
		},
		verb: http.MethodDelete, plural: "pods",
	}, {
		controllers: []string{"daemonset-controller"},
		setup:       createDaemonSet, running: awaitPods(1), held: []string{"pods"}, replace: replacePod,
		cause: func(c *controllertest.Clocked) {
			controllertest.Edit(c.Cluster, c.Client.AppsV1().DaemonSets("default"), "web", func(d *appsv1.DaemonSet) {
				d.Spec.Template.Spec.NodeSelector = map[string]string{"example.com/no": "node"}
			})
		},
		verb: http.MethodDelete, plural: "pods",
	}, {
		controllers: []string{"job-controller"},
		setup:       func(c *controllertest.Clocked) { c.CreateJob("work", nil) },
		running:     awaitPods(1), held: []string{"pods"}, replace: replacePod,
		cause: func(c *controllertest.Clocked) {
			c.EditJob("work", func(j *batchv1.Job) { j.Spec.Suspend = new(true) })
		},
		verb: http.MethodPatch, plural: "pods", // it first removes the finalizer
	}, {
		controllers: []string{"statefulset-controller"}, // its ControllerRevisions
		setup:       func(c *controllertest.Clocked) { c.CreateStatefulSet("web", 0, nil) },
		running: func(c *controllertest.Clocked) {
			revisions := func(n int) {
				c.Reaches("its revisions", func() bool {
					list, err := c.Client.AppsV1().ControllerRevisions("default").List(c.Context(), metav1.ListOptions{})
					require.NoError(c, err)
					return len(list.Items) == n
				})
			}
			revisions(1)
			controllertest.Edit(c.Cluster, c.Client.AppsV1().StatefulSets("default"), "web",
				func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = "two" })
			revisions(2)
			c.Reaches("the older is not needed", func() bool {
				s, err := c.Client.AppsV1().StatefulSets("default").Get(c.Context(), "web", metav1.GetOptions{})
				require.NoError(c, err)
				return s.Status.CurrentRevision == s.Status.UpdateRevision && s.Status.ObservedGeneration == 2
			})
			c.AwaitRest()
		},
		held: []string{"controllerrevisions"},
		replace: func(c *controllertest.Clocked) func() string {
			list, err := c.Client.AppsV1().ControllerRevisions("default").List(c.Context(), metav1.ListOptions{})
			require.NoError(c, err)
			older := slices.MinFunc(list.Items, func(a, b appsv1.ControllerRevision) int {
				return int(a.Revision - b.Revision)
			})
			return controllertest.Replace(c.Cluster, c.Client.AppsV1().ControllerRevisions("default"),
				&appsv1.ControllerRevision{ObjectMeta: bare(older.Name), Data: older.Data, Revision: 7})
		},
		cause: func(c *controllertest.Clocked) {
			controllertest.Edit(c.Cluster, c.Client.AppsV1().StatefulSets("default"), "web",
				func(s *appsv1.StatefulSet) { s.Spec.RevisionHistoryLimit = new(int32) })
		},
		verb: http.MethodDelete, plural: "controllerrevisions",
	}, {
		controllers: []string{"deployment-controller", "replicaset-controller"},
		setup:       func(c *controllertest.Clocked) { c.Deploy("web", 0, nil) },
		running: func(c *controllertest.Clocked) {
			c.AwaitRollout("web")
			c.EditDeployment("web", controllertest.Image("two"))
			c.AwaitRollout("web")
			c.AwaitRest()
		},
		held: []string{"replicasets"},
		replace: func(c *controllertest.Clocked) func() string {
			rs := c.ReplicaSetOf("one")
			return controllertest.Replace(c.Cluster, c.Client.AppsV1().ReplicaSets("default"), &appsv1.ReplicaSet{
				ObjectMeta: bare(rs.Name), Spec: appsv1.ReplicaSetSpec{Replicas: new(int32), Selector: rs.Spec.Selector,
					Template: rs.Spec.Template}})
		},
		cause: func(c *controllertest.Clocked) {
			c.EditDeployment("web", func(d *appsv1.Deployment) { d.Spec.RevisionHistoryLimit = new(int32) })
		},
		verb: http.MethodDelete, plural: "replicasets",
	}, {
		controllers: []string{"cronjob-controller"},
		setup: func(c *controllertest.Clocked) {
			template := batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: podSpec()}}
			template.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
			cj, err := c.Client.BatchV1().CronJobs("default").Create(c.Context(), &batchv1.CronJob{
				ObjectMeta: bare("nightly"),
				Spec: batchv1.CronJobSpec{Schedule: "0 0 * * *", Suspend: new(true), JobTemplate: template,
					SuccessfulJobsHistoryLimit: new(int32(3))},
			}, metav1.CreateOptions{})
			require.NoError(c, err)
			createFinishedJob(c, func(j *batchv1.Job) {
				j.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(cj,
					batchv1.SchemeGroupVersion.WithKind("CronJob"))}
			})
		},
		running: atRest, held: []string{"jobs"}, replace: replaceJob,
		cause: func(c *controllertest.Clocked) {
			controllertest.Edit(c.Cluster, c.Client.BatchV1().CronJobs("default"), "nightly",
				func(cj *batchv1.CronJob) { cj.Spec.SuccessfulJobsHistoryLimit = new(int32) })
		},
		verb: http.MethodDelete, plural: "jobs",
	}, {
		controllers: []string{"ttl-after-finished-controller"},
		setup: func(c *controllertest.Clocked) {
			createFinishedJob(c, func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = new(int32(60)) })
		},
		running: atRest, held: []string{"jobs"}, replace: replaceJob,
		cause: func(c *controllertest.Clocked) { c.Step(time.Minute) },
		verb:  http.MethodGet, plural: "jobs",
	}}
}

func replaceJob(c *controllertest.Clocked) func() string {
	j := &batchv1.Job{ObjectMeta: bare("work"), Spec: batchv1.JobSpec{Template: podSpec()}}
	j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	return controllertest.Replace(c.Cluster, c.Client.BatchV1().Jobs("default"), j)
}

// createEndpoints creates a Service with Endpoints that a user keeps.
func createEndpoints(c *controllertest.Clocked) {
	createService(nil)(c)
	_, err := c.Client.CoreV1().Endpoints("default").Create(c.Context(), &corev1.Endpoints{ObjectMeta: bare("web"),
		Subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}},
			Ports: []corev1.EndpointPort{{Name: "http", Port: 80}}}}}, metav1.CreateOptions{})
	require.NoError(c, err)
}

func serviceCases() []stale {
	selector := map[string]string{"app": "web"}
	deleteService := func(c *controllertest.Clocked) {
		require.NoError(c, c.Client.CoreV1().Services("default").Delete(c.Context(), "web", metav1.DeleteOptions{}))
	}
	return []stale{{
		controllers: []string{"endpoints-controller"},
		setup:       createService(selector),
		running: func(c *controllertest.Clocked) {
			c.Reaches("there are Endpoints", func() bool {
				_, err := c.Client.CoreV1().Endpoints("default").Get(c.Context(), "web", metav1.GetOptions{})
				return err == nil
			})
			c.AwaitRest()
		},
		held: []string{"endpoints"},
		replace: func(c *controllertest.Clocked) func() string {
			return controllertest.Replace(c.Cluster, c.Client.CoreV1().Endpoints("default"),
				&corev1.Endpoints{ObjectMeta: bare("web")})
		},
		cause: deleteService, verb: http.MethodDelete, plural: "endpoints",
	}, {
		controllers: []string{"endpointslice-controller"},
		setup: func(c *controllertest.Clocked) {
			c.CreateNode("n", nil)
			createService(selector)(c)
		},
		running: awaitSlice, held: []string{"endpointslices"},
		replace: replaceSlice, cause: createServingPod, verb: http.MethodPut, plural: "endpointslices",
	}, {
		controllers: []string{"endpointslice-mirroring-controller"},
		setup:       createEndpoints, running: awaitSlice, held: []string{"endpointslices"}, replace: replaceSlice,
		cause: func(c *controllertest.Clocked) {
			require.NoError(c, c.Client.CoreV1().Endpoints("default").Delete(c.Context(), "web", metav1.DeleteOptions{}))
		},
		verb: http.MethodDelete, plural: "endpointslices",
	}}
}

func storageCases() []stale {
	return []stale{{
		controllers: []string{"persistentvolume-attach-detach-controller"},
		setup: func(c *controllertest.Clocked) {
			_, err := c.Client.CoreV1().PersistentVolumes().Create(c.Context(), csiVolume(), metav1.CreateOptions{})
			require.NoError(c, err)
			c.CreateNode("n", nil)
			controllertest.EditStatus(c.Cluster, c.Client.CoreV1().Nodes(), "n", func(n *corev1.Node) {
				n.Status.VolumesInUse = []corev1.UniqueVolumeName{"kubernetes.io/csi/csi.example.com^h"}
			})
			_, err = c.Client.StorageV1().VolumeAttachments().Create(c.Context(), attachment(), metav1.CreateOptions{})
			require.NoError(c, err)
		},
		running: atRest, held: []string{"volumeattachments"},
		replace: func(c *controllertest.Clocked) func() string {
			return controllertest.Replace(c.Cluster, c.Client.StorageV1().VolumeAttachments(), attachment())
		},
		cause: func(c *controllertest.Clocked) {
			controllertest.EditStatus(c.Cluster, c.Client.CoreV1().Nodes(), "n",
				func(n *corev1.Node) { n.Status.VolumesInUse = nil })
			c.Step(10 * time.Minute)
		},
		verb: http.MethodDelete, plural: "volumeattachments",
	}, {
		controllers: []string{"persistentvolumeclaim-protection-controller"},
		setup: func(c *controllertest.Clocked) {
			c.CreateClaim("data", "1Gi", nil)
			pod := barePod("p", "n")
			pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
			_, err := c.Client.CoreV1().Pods("default").Create(c.Context(), pod, metav1.CreateOptions{})
			require.NoError(c, err)
			require.NoError(c, c.Client.CoreV1().PersistentVolumeClaims("default").Delete(c.Context(), "data",
				metav1.DeleteOptions{}))
		},
		running: atRest, held: []string{"persistentvolumeclaims"},
		replace: func(c *controllertest.Clocked) func() string {
			spec := c.Claim("data").Spec
			return controllertest.Replace(c.Cluster, c.Client.CoreV1().PersistentVolumeClaims("default"),
				&corev1.PersistentVolumeClaim{ObjectMeta: bare("data"), Spec: spec})
		},
		cause: func(c *controllertest.Clocked) {
			require.NoError(c, c.Client.CoreV1().Pods("default").Delete(c.Context(), "p", *metav1.NewDeleteOptions(0)))
		},
		verb: http.MethodPut, plural: "persistentvolumeclaims",
	}}
}

func cleanerCases() []stale {
	return []stale{{
		controllers: []string{"lease-housekeeping-controller"},
		setup: func(c *controllertest.Clocked) {
			_, err := c.Client.CoordinationV1().Leases("kube-node-lease").Create(c.Context(), lease(c.Now()),
				metav1.CreateOptions{})
			require.NoError(c, err)
		},
		running: atRest, held: []string{"leases"},
		replace: func(c *controllertest.Clocked) func() string {
			return controllertest.Replace(c.Cluster, c.Client.CoordinationV1().Leases("kube-node-lease"),
				lease(c.Now().Add(time.Hour)))
		},
		cause: func(c *controllertest.Clocked) { c.Step(61 * time.Minute) },
		verb:  http.MethodDelete, plural: "leases",
	}, {
		controllers: []string{"token-cleaner-controller"},
		setup: func(c *controllertest.Clocked) {
			_, err := c.Client.CoreV1().Secrets("kube-system").Create(c.Context(), bootstrapToken(c.Now().Add(time.Hour)),
				metav1.CreateOptions{})
			require.NoError(c, err)
		},
		running: atRest, held: []string{"secrets"},
		replace: func(c *controllertest.Clocked) func() string {
			return controllertest.Replace(c.Cluster, c.Client.CoreV1().Secrets("kube-system"),
				bootstrapToken(c.Now().Add(24*time.Hour)))
		},
		cause: func(c *controllertest.Clocked) { c.Step(time.Hour) },
		verb:  http.MethodDelete, plural: "secrets",
	}, {
		controllers: []string{"serviceaccount-token-controller"},
		setup: func(c *controllertest.Clocked) {
			_, err := c.Client.CoreV1().ServiceAccounts("default").Create(c.Context(),
				&corev1.ServiceAccount{ObjectMeta: bare("robot")}, metav1.CreateOptions{})
			require.NoError(c, err)
			_, err = c.Client.CoreV1().Secrets("default").Create(c.Context(), &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: "robot-token",
					Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot"}},
				Type: corev1.SecretTypeServiceAccountToken}, metav1.CreateOptions{})
			require.NoError(c, err)
		},
		running: atRest, held: []string{"secrets"},
		replace: func(c *controllertest.Clocked) func() string {
			return controllertest.Replace(c.Cluster, c.Client.CoreV1().Secrets("default"),
				&corev1.Secret{ObjectMeta: bare("robot-token")})
		},
		cause: func(c *controllertest.Clocked) {
			require.NoError(c, c.Client.CoreV1().ServiceAccounts("default").Delete(c.Context(), "robot",
				metav1.DeleteOptions{}))
		},
		verb: http.MethodDelete, plural: "secrets",
	}, {
		controllers: []string{"certificatesigningrequest-cleaner-controller"},
		setup: func(c *controllertest.Clocked) {
			_, err := c.Client.CertificatesV1().CertificateSigningRequests().Create(c.Context(), signingRequest(c),
				metav1.CreateOptions{})
			require.NoError(c, err)
		},
		running: atRest, held: []string{"certificatesigningrequests"},
		replace: func(c *controllertest.Clocked) func() string {
			return controllertest.Replace(c.Cluster, c.Client.CertificatesV1().CertificateSigningRequests(),
				signingRequest(c))
		},
		cause: func(c *controllertest.Clocked) { c.Step(25 * time.Hour) },
		verb:  http.MethodDelete, plural: "certificatesigningrequests",
	}, {
		controllers: []string{"podcertificaterequest-cleaner-controller"},
		setup: func(c *controllertest.Clocked) {
			_, err := c.Client.CertificatesV1().PodCertificateRequests("default").Create(c.Context(),
				podCertificateRequest(c), metav1.CreateOptions{})
			require.NoError(c, err)
		},
		running: atRest, held: []string{"podcertificaterequests"},
		replace: func(c *controllertest.Clocked) func() string {
			return controllertest.Replace(c.Cluster, c.Client.CertificatesV1().PodCertificateRequests("default"),
				podCertificateRequest(c))
		},
		cause: func(c *controllertest.Clocked) { c.Step(time.Hour) },
		verb:  http.MethodDelete, plural: "podcertificaterequests",
	}, {
		controllers: []string{"garbage-collector-controller"},
		setup: func(c *controllertest.Clocked) {
			owner, err := c.Client.CoreV1().Secrets("default").Create(c.Context(),
				&corev1.Secret{ObjectMeta: bare("owner")}, metav1.CreateOptions{})
			require.NoError(c, err)
			c.CreateMap("default", "owned", metav1.OwnerReference{APIVersion: "v1", Kind: "Secret", Name: "owner",
				UID: owner.UID})
		},
		running: func(c *controllertest.Clocked) { c.AwaitCollected("default") }, held: []string{"configmaps"},
		replace: func(c *controllertest.Clocked) func() string {
			return controllertest.Replace(c.Cluster, c.Client.CoreV1().ConfigMaps("default"),
				&corev1.ConfigMap{ObjectMeta: bare("owned")})
		},
		cause: func(c *controllertest.Clocked) {
			require.NoError(c, c.Client.CoreV1().Secrets("default").Delete(c.Context(), "owner", metav1.DeleteOptions{}))
		},
		verb: http.MethodDelete, plural: "configmaps",
	}}
}
