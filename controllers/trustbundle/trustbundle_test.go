package trustbundle_test

import (
	"encoding/pem"
	"testing"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestTrustBundle_PublishesTheCAOfTheServer(t *testing.T) {
	t.Parallel()
	c := controllertest.NewSigning(t, "kube-apiserver-serving-clustertrustbundle-publisher-controller")
	const signer = "kubernetes.io/kube-apiserver-serving"
	bundles := c.Client.CertificatesV1().ClusterTrustBundles()
	published := func() []certificatesv1.ClusterTrustBundle {
		list, err := bundles.List(c.Context(), metav1.ListOptions{FieldSelector: "spec.signerName=" + signer})
		require.NoError(t, err)
		return list.Items
	}
	var name string
	as := func() bool {
		list := published()
		if len(list) != 1 || list[0].Spec.TrustBundle != string(c.Config.CAData) || name != "" && list[0].Name != name {
			return false
		}
		name = list[0].Name
		return true
	}
	c.Reaches("the bundle exists", as)
	require.Regexp(t, "^kubernetes.io:kube-apiserver-serving:[0-9a-f]{24}$", name)

	// Other bundles are deleted, and a deleted bundle is created again.
	der, _ := pem.Decode(c.Config.CAData)
	_, err := bundles.Create(c.Context(), &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes.io:kube-apiserver-serving:old"},
		Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer,
			TrustBundle: string(pem.EncodeToMemory(der)) + "\n"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.Reaches("the other bundle is deleted", as)
	require.NoError(t, bundles.Delete(c.Context(), name, metav1.DeleteOptions{}))
	c.Reaches("the bundle is created again", as)
}

func TestTrustBundle_PublishesTheCAOfKubeletServingCertificates(t *testing.T) {
	t.Parallel()
	c := controllertest.NewSigning(t, "kube-apiserver-serving-clustertrustbundle-publisher-controller")
	const signer = "kubernetes.io/kubelet-serving"
	c.Reaches("the bundle exists", func() bool {
		list, err := c.Client.CertificatesV1().ClusterTrustBundles().List(c.Context(),
			metav1.ListOptions{FieldSelector: "spec.signerName=" + signer})
		require.NoError(t, err)
		return len(list.Items) == 1 &&
			list.Items[0].Spec.TrustBundle == string(c.Settings.Signing.KubeletServing.Cert)
	})
	require.NotEqual(t, c.Config.CAData, c.Settings.Signing.KubeletServing.Cert)
}
