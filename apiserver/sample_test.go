package apiserver_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
)

const (
	samplePodSpec  = `{"containers":[{"name":"main","image":"nginx"}]}`
	sampleTemplate = `{"metadata":{"labels":{"a":"b"}},"spec":` + samplePodSpec + `}`
	sampleWorkload = `{"spec":{"selector":{"matchLabels":{"a":"b"}},"template":` + sampleTemplate + `}}`
	sampleJob      = `{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"main","image":"nginx"}]}}}}`
	sampleRules    = `"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["pods"]}]}`
)

// samples has the smallest valid document of each built-in kind with required fields.
var samples = map[string]string{
	"ControllerRevision": `{"data":{"a":1},"revision":1}`,
	"CronJob":            `{"spec":{"schedule":"* * * * *","jobTemplate":` + sampleJob + `}}`,
	"CSIStorageCapacity": `{"storageClassName":"fast"}`,
	"ClusterRoleBinding": `{"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"r"}}`,
	"DaemonSet":          sampleWorkload,
	"Deployment":         sampleWorkload,
	"APIService":         `{"spec":{"group":"sample.example.com","version":"v1","groupPriorityMinimum":1,"versionPriority":1}}`,
	"CustomResourceDefinition": `{"spec":{"group":"example.com","scope":"Namespaced",` +
		`"names":{"plural":"samples","kind":"Sample"},"versions":[{"name":"v1","served":true,"storage":true,` +
		`"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`,
	"DeviceTaintRule":         `{"spec":{"taint":{"key":"example.com/broken","effect":"None"}}}`,
	"ResourceSlice":           `{"spec":{"driver":"example.com","pool":{"name":"p","generation":0,"resourceSliceCount":1},"allNodes":true}}`,
	"EndpointSlice":           `{"addressType":"IPv4"}`,
	"Event":                   `{"involvedObject":{"kind":"Pod","name":"p","namespace":"default"}}`,
	"FlowSchema":              `{"spec":{"priorityLevelConfiguration":{"name":"exempt"}}}`,
	"HorizontalPodAutoscaler": `{"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"web"}}}`,
	"IPAddress":               `{"spec":{"parentRef":{"resource":"services","namespace":"default","name":"s"}}}`,
	"Ingress":                 `{"spec":{"defaultBackend":{"service":{"name":"s","port":{"number":80}}}}}`,
	"IngressClass":            `{"spec":{"controller":"example.com/ingress"}}`,
	"Job":                     sampleJob,
	"Lease":                   `{"spec":{"holderIdentity":"me","leaseDurationSeconds":15}}`,
	"MutatingAdmissionPolicy": `{"spec":{"reinvocationPolicy":"Never","failurePolicy":"Ignore",` +
		sampleRules + `,"mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{}"}}]}}`,
	"MutatingAdmissionPolicyBinding": `{"spec":{"policyName":"none"}}`,
	"PersistentVolume":               `{"spec":{"accessModes":["ReadWriteOnce"],"capacity":{"storage":"1Gi"},"hostPath":{"path":"/tmp/x"}}}`,
	"PersistentVolumeClaim":          `{"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`,
	"Pod":                            `{"spec":` + samplePodSpec + `}`,
	"PodTemplate":                    `{"template":` + sampleTemplate + `}`,
	"PriorityLevelConfiguration":     `{"spec":{"type":"Limited","limited":{"limitResponse":{"type":"Reject"}}}}`,
	"ReplicaSet":                     sampleWorkload,
	"ReplicationController":          `{"spec":{"selector":{"a":"b"},"template":` + sampleTemplate + `}}`,
	"RoleBinding":                    `{"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"r"}}`,
	"RuntimeClass":                   `{"handler":"runc"}`,
	"Service":                        `{"spec":{"ports":[{"port":80}]}}`,
	"ServiceCIDR":                    `{"spec":{"cidrs":["10.97.0.0/24"]}}`,
	"StatefulSet":                    sampleWorkload,
	"StorageClass":                   `{"provisioner":"example.com/disk"}`,
	"StorageVersionMigration":        `{"spec":{"resource":{"group":"apps","resource":"deployments"}}}`,
	"ValidatingAdmissionPolicy": `{"spec":{"failurePolicy":"Ignore",` + sampleRules +
		`,"validations":[{"expression":"true"}]}}`,
	"ValidatingAdmissionPolicyBinding": `{"spec":{"policyName":"none","validationActions":["Audit"]}}`,
	"VolumeAttachment":                 `{"spec":{"attacher":"example.com","nodeName":"n","source":{"persistentVolumeName":"v"}}}`,
	"VolumeAttributesClass":            `{"driverName":"example.com","parameters":{"a":"b"}}`,
}

// fillSample completes an empty object so that it is valid, and returns its required name.
func fillSample(t testing.TB, obj api.Object, kind string) string {
	t.Helper()
	if text := samples[kind]; text != "" {
		require.NoError(t, json.Unmarshal([]byte(text), obj))
	}
	switch o := obj.(type) {
	case *certificatesv1.CertificateSigningRequest:
		o.Spec = certificatesv1.CertificateSigningRequestSpec{
			Request: certificateRequest(t), SignerName: "example.com/signer",
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		}
	case *certificatesv1.ClusterTrustBundle:
		o.Spec.TrustBundle = string(trustAnchor(t))
	case *certificatesv1.PodCertificateRequest:
		o.Spec = certificatesv1.PodCertificateRequestSpec{
			SignerName: "example.com/signer", PodName: "p", PodUID: "1", ServiceAccountName: "default",
			ServiceAccountUID: "2",
			NodeName:          "n", NodeUID: "3", MaxExpirationSeconds: ptr.To[int32](3600),
			StubPKCS10Request: stubRequest(t),
		}
	case *eventsv1.Event:
		*o = eventsv1.Event{
			EventTime: metav1.NowMicro(), Type: "Normal", Reason: "Tested", Action: "Testing",
			ReportingController: "test", ReportingInstance: "test-0",
			Regarding: corev1.ObjectReference{Kind: "Pod", Name: "p", Namespace: "default"},
		}
		return "sample-new"
	case *autoscalingv1.HorizontalPodAutoscaler:
		return "sample-v1"
	}
	switch kind {
	case "IPAddress":
		return "10.96.0.77"
	case "CustomResourceDefinition":
		return "samples.example.com"
	case "APIService":
		return "v1.sample.example.com"
	}
	return "sample"
}

// stubRequest returns the request in a PodCertificateRequest of a kubelet.
func stubRequest(t testing.TB) []byte {
	t.Helper()
	block, _ := pem.Decode(certificateRequest(t))
	return block.Bytes
}

// trustAnchor returns the certificate of a new CA.
func trustAnchor(t testing.TB) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true,
		BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func certificateRequest(t testing.TB) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: "me"}}, key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}
