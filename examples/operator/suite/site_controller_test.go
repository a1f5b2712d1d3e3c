package suite_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/coxswain-dev/coxswain/examples/operator/sites"
)

var _ = Describe("Site Controller", func() {
	Context("When reconciling a resource", func() {
		typeNamespacedName := types.NamespacedName{Name: "test-resource", Namespace: "default"}

		BeforeEach(func() {
			By("creating the custom resource for the Kind Site")
			resource := &sites.Site{
				ObjectMeta: metav1.ObjectMeta{Name: typeNamespacedName.Name, Namespace: typeNamespacedName.Namespace},
				Spec: sites.SiteSpec{Domain: "test.example.org",
					Pages: map[string]string{"index.html": "<h1>Hello</h1>"}},
			}
			Expect(k8sClient.Create(ctx, resource)).To(Succeed())
		})

		AfterEach(func() {
			By("Cleanup the specific resource instance Site")
			resource := &sites.Site{}
			Expect(k8sClient.Get(ctx, typeNamespacedName, resource)).To(Succeed())
			Expect(k8sClient.Delete(ctx, resource)).To(Succeed())
			_, err := reconciler().Reconcile(ctx, reconcile.Request{NamespacedName: typeNamespacedName})
			Expect(err).NotTo(HaveOccurred())
			err = k8sClient.Get(ctx, typeNamespacedName, resource)
			Expect(errors.IsNotFound(err)).To(BeTrue(), "the finalizer is done")
		})

		It("should successfully reconcile the resource", func() {
			By("Reconciling the created resource")
			for range 2 { // the first time it adds the finalizer
				_, err := reconciler().Reconcile(ctx, reconcile.Request{NamespacedName: typeNamespacedName})
				Expect(err).NotTo(HaveOccurred())
			}
			deployment := &appsv1.Deployment{}
			Expect(k8sClient.Get(ctx, typeNamespacedName, deployment)).To(Succeed())
			Expect(*deployment.Spec.Replicas).To(BeEquivalentTo(1), "by the definition's default")
			Expect(deployment.Status.ReadyReplicas).To(BeZero(), "envtest has no controllers")

			resource := &sites.Site{}
			Expect(k8sClient.Get(ctx, typeNamespacedName, resource)).To(Succeed())
			ready := meta.FindStatusCondition(resource.Status.Conditions, sites.Ready)
			Expect(ready).NotTo(BeNil())
			Expect(ready.Reason).To(Equal(sites.ReasonStarting))
		})
	})
})

func reconciler() *sites.Reconciler {
	return &sites.Reconciler{Client: k8sClient, Events: events.NewFakeRecorder(10)}
}
