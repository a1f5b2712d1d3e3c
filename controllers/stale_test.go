package controllers_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

// stale is a controller whose cache shows an object that has been replaced by another of the same name.
type stale struct {
	controllers []string // the first is the tested one
	// setup creates the objects before the controllers start, and running waits until the controllers have done
	// their part.
	setup, running func(*controllertest.Clocked)
	held           []string // resources whose caches are frozen after running
	// replace replaces the object. cause then gives the controller a reason to delete or change the object in
	// its cache.
	replace      func(*controllertest.Clocked) (touched func() string)
	cause        func(*controllertest.Clocked)
	verb, plural string // the controller's request to change the object, or to read it first
}

// exempt lists the controllers without a case, with the reason why they cannot change another object of the
// name.
var exempt = map[string]string{
	"replicationcontroller-controller":                               "it is the ReplicaSet controller with other objects",
	"horizontal-pod-autoscaler-controller":                           "it updates scales and statuses by resourceVersion",
	"namespace-controller":                                           "it reads the namespace past the cache and compares the uid",
	"serviceaccount-controller":                                      "it only creates",
	"ephemeral-volume-controller":                                    "it only creates",
	"root-ca-certificate-publisher-controller":                       "it updates by resourceVersion",
	"resourcequota-controller":                                       "it updates statuses by resourceVersion",
	"persistentvolume-protection-controller":                         "it updates by resourceVersion",
	"persistentvolume-binder-controller":                             "it updates by resourceVersion",
	"persistentvolume-expander-controller":                           "its patches name uid and resourceVersion, which its own tests check",
	"node-local-provisioner":                                         "its deletions and patches name uid and resourceVersion",
	"service-lb-controller":                                          "its patches name uid and resourceVersion",
	"node-ipam-controller":                                           "its patches name the uid",
	"ttl-controller":                                                 "its patches name the uid, which its own tests check",
	"cloud-node-controller":                                          "it updates by resourceVersion",
	"service-cidr-controller":                                        "it updates by resourceVersion",
	"clusterrole-aggregation-controller":                             "it updates by resourceVersion",
	"legacy-serviceaccount-token-cleaner-controller":                 "its deletions and patches name the uid",
	"certificatesigningrequest-approving-controller":                 "it updates by resourceVersion",
	"certificatesigningrequest-signing-controller":                   "it updates by resourceVersion",
	"kube-apiserver-serving-clustertrustbundle-publisher-controller": "its deletions name the uid",
	"storage-version-migrator-controller":                            "its patches name uid and resourceVersion",
	"bootstrap-signer-controller":                                    "it updates by resourceVersion",
	"cluster-dns-controller":                                         "it updates by resourceVersion, and its deletions name the uid",
}

// TestControllers_DoNotChangeReplacedObjects runs each controller on a cache that shows an object after another
// of the same name has replaced it, and gives the controller a reason to delete or change it.
func TestControllers_DoNotChangeReplacedObjects(t *testing.T) {
	t.Parallel()
	covered := map[string]bool{}
	for i, s := range cases() {
		covered[s.controllers[0]] = true
		t.Run(fmt.Sprintf("%s-%d", s.controllers[0], i), func(t *testing.T) {
			t.Parallel()
			c := controllertest.NewIdle(t, s.controllers...)
			s.setup(c)
			c.Restart()
			s.running(c)
			defer c.Faults.Hold(s.held...)()
			touched := s.replace(c)
			before := c.Faults.Answered(s.verb, s.plural)
			s.cause(c)
			c.Reaches(s.controllers[0]+" acts on what its cache shows", func() bool {
				return c.Faults.Answered(s.verb, s.plural) > before
			})
			require.Empty(t, touched())
		})
	}
	for _, name := range controllers.Names() {
		require.NotEqual(t, covered[name], exempt[name] != "",
			"%s needs a case, or a reason why it deletes and changes no namesake", name)
	}
}

// lagging is a controller whose cache does not show the objects that it has created. Changes of the owner cause
// repeated reconciliations.
type lagging struct {
	controller, plural string
	create             func(*controllertest.Clocked)
	touch              func(c *controllertest.Clocked, n int)
}

func laggingCases() []lagging {
	touch := func(o metav1.Object, n int) {
		o.SetAnnotations(map[string]string{"example.com/touched": fmt.Sprint(n)})
	}
	return []lagging{{
		"replicaset-controller", "pods", func(c *controllertest.Clocked) { c.Replicate("web", 1, nil) },
		func(c *controllertest.Clocked, n int) {
			controllertest.Edit(c.Cluster, c.Client.AppsV1().ReplicaSets("default"), "web",
				func(rs *appsv1.ReplicaSet) { touch(rs, n) })
		},
	}, {
		"replicationcontroller-controller", "pods", func(c *controllertest.Clocked) {
			template := podSpec()
			_, err := c.Client.CoreV1().ReplicationControllers("default").Create(c.Context(),
				&corev1.ReplicationController{ObjectMeta: bare("web"),
					Spec: corev1.ReplicationControllerSpec{Replicas: new(int32(1)), Template: &template}},
				metav1.CreateOptions{})
			require.NoError(c, err)
		},
		func(c *controllertest.Clocked, n int) {
			controllertest.Edit(c.Cluster, c.Client.CoreV1().ReplicationControllers("default"), "web",
				func(rc *corev1.ReplicationController) { touch(rc, n) })
		},
	}, {
		"daemonset-controller", "pods", createDaemonSet,
		func(c *controllertest.Clocked, n int) {
			controllertest.Edit(c.Cluster, c.Client.AppsV1().DaemonSets("default"), "web",
				func(d *appsv1.DaemonSet) { touch(d, n) })
		},
	}, {
		"statefulset-controller", "pods", func(c *controllertest.Clocked) { c.CreateStatefulSet("web", 1, nil) },
		func(c *controllertest.Clocked, n int) {
			controllertest.Edit(c.Cluster, c.Client.AppsV1().StatefulSets("default"), "web",
				func(s *appsv1.StatefulSet) { touch(s, n) })
		},
	}, {
		"job-controller", "pods", func(c *controllertest.Clocked) { c.CreateJob("work", nil) },
		func(c *controllertest.Clocked, n int) { c.EditJob("work", func(j *batchv1.Job) { touch(j, n) }) },
	}, {
		"deployment-controller", "replicasets", func(c *controllertest.Clocked) { c.Deploy("web", 1, nil) },
		func(c *controllertest.Clocked, n int) {
			c.EditDeployment("web", func(d *appsv1.Deployment) { touch(d, n) })
		},
	}, {
		"statefulset-controller", "controllerrevisions",
		func(c *controllertest.Clocked) { c.CreateStatefulSet("web", 0, nil) },
		func(c *controllertest.Clocked, n int) {
			controllertest.Edit(c.Cluster, c.Client.AppsV1().StatefulSets("default"), "web",
				func(s *appsv1.StatefulSet) { touch(s, n) })
		},
	}, {
		"endpointslice-controller", "endpointslices", createService(map[string]string{"app": "web"}),
		func(c *controllertest.Clocked, n int) {
			controllertest.Edit(c.Cluster, c.Client.CoreV1().Services("default"), "web",
				func(s *corev1.Service) { touch(s, n) })
		},
	}, {
		"endpointslice-mirroring-controller", "endpointslices", createEndpoints,
		func(c *controllertest.Clocked, n int) {
			controllertest.Edit(c.Cluster, c.Client.CoreV1().Endpoints("default"), "web",
				func(e *corev1.Endpoints) { touch(e, n) })
		},
	}}
}

// TestControllers_CreateNoDuplicatesOnAStaleCache enqueues each controller's owner while its cache does not
// show the created objects.
func TestControllers_CreateNoDuplicatesOnAStaleCache(t *testing.T) {
	t.Parallel()
	for _, l := range laggingCases() {
		t.Run(l.controller+" "+l.plural, func(t *testing.T) {
			t.Parallel()
			c := controllertest.NewIdle(t, l.controller)
			c.Restart()
			release := c.Faults.Hold(l.plural)
			l.create(c)
			c.Reaches("one is made", func() bool { return c.Faults.Answered(http.MethodPost, l.plural) == 1 })
			for n := range 3 {
				l.touch(c, n)
				c.AwaitRest()
			}
			release()
			c.AwaitRest()
			require.Equal(t, 1, c.Faults.Answered(http.MethodPost, l.plural))
		})
	}
}
